"""Records of each form become the same conversations and documents; what is none of them is refused, with the reason."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from datapipe.errors import DecodeError
from datapipe.sources.conversations.records import Record, record_of

DATA = b"\xff\xd8 an image"
IN_BASE64 = base64.b64encode(DATA).decode()
URL = f"data:image/jpeg;base64,{IN_BASE64}"
IMAGE = {"type": "image"}


def text(one: str) -> dict[str, str]:
    return {"type": "text", "text": one}


def chat(*contents: list[dict[str, str]]) -> dict[str, Any]:
    """Of the user, and of the assistant, in turn."""
    return {"messages": [{"role": ("user", "assistant")[turn % 2], "content": one} for turn, one in enumerate(contents)]}


ONE = chat([IMAGE, text("What is it?")], [text("A dog.")])
TWO = chat([text("First"), IMAGE, text("then"), IMAGE], [text("I see.")])
NONE = chat([text("What is it?")], [text("A dog.")])


def messages(question: Any, answer: Any = "A dog.") -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def turns(question: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": "A dog."}]


RECORDS: dict[str, tuple[Any, dict[str, Any], list[str | bytes]]] = {
    "llava": ({"id": "1", "image": "a/b.jpg", "conversations": turns("<image>\nWhat is it?")}, ONE, ["a/b.jpg"]),
    "llava, the image last": (
        {"image": "a.jpg", "conversations": turns("What is it?\n<image>")},
        chat([text("What is it?"), IMAGE], [text("A dog.")]),
        ["a.jpg"],
    ),
    "llava, several images": (
        {"image": ["a.jpg", "b.jpg"], "conversations": turns("<image><image>\n\nWhat is it?")},
        chat([IMAGE, IMAGE, text("\nWhat is it?")], [text("A dog.")]),
        ["a.jpg", "b.jpg"],
    ),
    "llava, no image": ({"id": "1", "conversations": turns("What is it?")}, NONE, []),
    "llava, an image that is null": ({"image": None, "conversations": turns("What is it?")}, NONE, []),
    "llava, an image without a name": ({"image": "", "conversations": turns("What is it?")}, NONE, []),
    "llava, no place": ({"image": "a.jpg", "conversations": turns("What is it?")}, ONE, ["a.jpg"]),
    "trl, parts": (
        {"messages": messages([text("First"), IMAGE, text("then"), IMAGE], [text("I see.")]), "images": ["a.jpg", DATA]},
        TWO,
        ["a.jpg", DATA],
    ),
    "trl, texts": (
        {"messages": messages("First\n<image>\nthen\n<image>", "I see."), "images": ["a.jpg", "b.jpg"]},
        TWO,
        ["a.jpg", "b.jpg"],
    ),
    "trl, no places": (
        {"messages": [{"role": "system", "content": "Be brief."}, *messages("What is it?")], "images": ["a.jpg"]},
        {"messages": [{"role": "system", "content": [text("Be brief.")]}, *ONE["messages"]]},
        ["a.jpg"],
    ),
    "trl, numbers": (
        {"messages": messages([{**IMAGE, "index": 1}, {**IMAGE, "index": 0}]), "images": ["a.jpg", "b.jpg"]},
        chat([IMAGE, IMAGE], [text("A dog.")]),
        ["b.jpg", "a.jpg"],
    ),
    "trl, one image twice": (
        {"messages": messages([{**IMAGE, "index": 0}, {**IMAGE, "index": 0}]), "images": ["a.jpg"]},
        chat([IMAGE, IMAGE], [text("A dog.")]),
        ["a.jpg", "a.jpg"],
    ),
    "trl, some numbers": (
        {"messages": messages([IMAGE, {**IMAGE, "index": 0}, IMAGE]), "images": ["a.jpg", "b.jpg", "c.jpg"]},
        chat([IMAGE, IMAGE, IMAGE], [text("A dog.")]),
        ["b.jpg", "a.jpg", "c.jpg"],
    ),
    "trl, members of columns": (
        {
            "messages": messages([{**IMAGE, "text": None, "index": 0}, {**text("What is it?"), "index": None}]),
            "images": [{"bytes": DATA, "path": None}],
        },
        ONE,
        [DATA],
    ),
    "trl, a message that calls": (
        {"messages": [*messages("What is it?", None), {"role": "tool", "content": "7"}]},
        {"messages": [*NONE["messages"][:1], {"role": "assistant", "content": None}, {"role": "tool", "content": [text("7")]}]},
        [],
    ),
    "trl, prompt and completion": ({"prompt": "What is it?", "completion": "A dog.", "images": ["a.jpg"]}, ONE, ["a.jpg"]),
    "trl, lists of them": (
        {"prompt": messages("<image>What is it?")[:1], "completion": messages("")[1:], "image": "a.jpg"},
        ONE,
        ["a.jpg"],
    ),
    "openai": (
        {"messages": messages([{"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, text("What is it?")])},
        ONE,
        [DATA],
    ),
    "openai, of answers": (
        {"messages": messages([{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "What is it?"}])},
        ONE,
        [DATA],
    ),
    "transformers, a path": ({"messages": messages([{**IMAGE, "path": "a.jpg"}, text("What is it?")])}, ONE, ["a.jpg"]),
    "transformers, a url": ({"messages": messages([{**IMAGE, "url": "file:///a.jpg"}, text("What is it?")])}, ONE, ["/a.jpg"]),
    "transformers, base64": ({"messages": messages([{**IMAGE, "base64": IN_BASE64}, text("What is it?")])}, ONE, [DATA]),
    "an image of its own, and the record's": (
        {
            "messages": messages([text("First"), {**IMAGE, "image": "own.jpg"}, text("then"), IMAGE], "I see."),
            "images": ["a.jpg"],
        },
        TWO,
        ["own.jpg", "a.jpg"],
    ),
    "parts without a type": ({"messages": messages([{"image": "a.jpg"}, {"text": "What is it?"}])}, ONE, ["a.jpg"]),
    "parts that are texts": ({"messages": messages([{**IMAGE, "image": DATA}, "What is it?"])}, ONE, [DATA]),
    "a place in a part is text": (
        {"messages": messages([text("Is <image> a tag?")])},
        chat([text("Is <image> a tag?")], [text("A dog.")]),
        [],
    ),
    "a list of messages": (messages("What is it?"), NONE, []),
    "a text that says its image": ({"conversations": turns("<image>What is it?"), "image": URL}, ONE, [DATA]),
    "cauldron": (
        {"texts": [{"user": "What is it?", "assistant": "A dog.", "source": "x"}], "images": [{"bytes": DATA, "path": "x"}]},
        ONE,
        [DATA],
    ),
    "cauldron, turns": (
        {"texts": [{"user": "What is it?", "assistant": "A dog."}] * 2},
        {"messages": NONE["messages"] * 2},
        [],
    ),
    "obelics": (
        {"texts": ["A fox.", None, None, "It jumps."], "images": [None, "a.jpg", {"path": "b.jpg", "bytes": None}, None]},
        {"document": ["A fox.", None, None, "It jumps."]},
        ["a.jpg", "b.jpg"],
    ),
    "obelics, empty texts": ({"texts": ["", "A fox."], "images": ["a.jpg", None]}, {"document": [None, "A fox."]}, ["a.jpg"]),
    "obelics, no images": ({"texts": ["A fox."]}, {"document": ["A fox."]}, []),
    "mmc4": (
        {
            "text_list": ["A fox.", "It jumps.", "The end."],
            "image_info": [
                {"image_name": "b.jpg", "matched_text_index": 1, "raw_url": "http://x/b"},
                {"raw_url": "http://x/c", "matched_text_index": 2},
                {"image_name": "a.jpg", "image_base64": IN_BASE64, "matched_text_index": 1},
            ],
        },
        {"document": ["A fox. ", None, None, "It jumps. ", None, "The end."]},
        ["b.jpg", DATA, "http://x/c"],
    ),
    "mmc4, no images": ({"text_list": ["A fox."]}, {"document": ["A fox."]}, []),
    "a text": (
        {"text": "A fox.\n<image>\nIt jumps.<image>", "images": ["a.jpg", "b.jpg"]},
        {"document": ["A fox.", None, "It jumps.", None]},
        ["a.jpg", "b.jpg"],
    ),
    "a text without images": ({"text": "A fox.\n"}, {"document": ["A fox.\n"]}, []),
}


@pytest.mark.parametrize("name", RECORDS)
def test_each_form_says_the_same(name: str) -> None:
    value, content, images = RECORDS[name]
    assert record_of(value) == Record(content, images)


@pytest.mark.parametrize(
    ("value", "images"),
    [
        ({"conversations": turns("<image>What is it?")}, ["0.jpg"]),
        ({"messages": messages([IMAGE, text("What is it?")])}, ["0.jpg"]),
        ({"messages": messages("What is it?")}, ["0.jpg"]),
        ({"conversations": turns("<image>What is it?"), "image": "named.jpg"}, ["named.jpg"]),
        ({"messages": messages([{**IMAGE, "image": "own.jpg"}, text("What is it?")])}, ["own.jpg"]),
    ],
)
def test_images_beside_a_record_need_no_names(value: Any, images: list[str]) -> None:
    assert record_of(value, beside=["0.jpg"]) == Record(ONE, images)  # type: ignore[arg-type]


def test_texts_beside_images() -> None:
    assert record_of({"text": "<image>A fox."}, beside=["0.jpg"]) == Record({"document": [None, "A fox."]}, ["0.jpg"])


WRONG: dict[str, tuple[Any, str]] = {
    "no object": (5, "no conversation: its record is no JSON object"),
    "none of the forms": ({"caption": "A fox."}, "no conversation: it has none of messages, conversations, prompt"),
    "a text that is none": ({"text": 5}, "or not as these are written"),
    "no messages": ({"messages": []}, "no chat: expected a list of messages"),
    "no message": ({"messages": ["hello"]}, "no chat: expected a list of messages"),
    "no role": ({"messages": [{"content": "x"}]}, "no chat: a message has no `role`"),
    "a content that is none": ({"messages": messages(5)}, "the content of a message is 5; expected a text, or a list of parts"),
    "a part that is none": ({"messages": messages([5])}, "a part of a message is 5; expected an object"),
    "a part's text that is none": ({"messages": messages([{"type": "text", "text": 5}])}, "a part's text is 5"),
    "a video": ({"messages": messages([{"type": "video"}])}, "a part of type 'video', which is neither text nor an image"),
    "a part that says nothing": ({"messages": messages([{"x": 1}])}, "a part of type None, which is neither"),
    "more places": (
        {"image": "a.jpg", "conversations": turns("<image><image>")},
        "2 places for images (<image>) and 1 image; repair the record",
    ),
    "fewer places": ({"image": ["a", "b"], "conversations": turns("<image>")}, "1 place for images (<image>) and 2 images"),
    "places and no image": ({"conversations": turns("<image>")}, "1 place for images (<image>) and 0 images"),
    "images that no part takes": (
        {"messages": messages([{**IMAGE, "image": "own.jpg"}]), "images": ["a.jpg"]},
        "0 places for images (<image>) and 1 image",
    ),
    "an image that no number takes": (
        {"messages": messages([{**IMAGE, "index": 1}, {**IMAGE, "index": 1}]), "images": ["a", "b"]},
        "1 place for images (<image>) and 2 images",
    ),
    "a number too large": (
        {"messages": messages([{**IMAGE, "index": 2}]), "images": ["a", "b"]},
        "a part is image 2 of 2 images",
    ),
    "a number below 0": ({"messages": messages([{**IMAGE, "index": -1}]), "images": ["a"]}, "a part is image -1 of 1 image"),
    "an image that is none": ({"image": 5, "conversations": turns("<image>")}, "an image is 5; expected a name, or its bytes"),
    "a part's image that is none": ({"messages": messages([{**IMAGE, "image": ""}])}, "an image is ''; expected a name"),
    "a struct of nothing": ({"image": {"x": 1}, "conversations": turns("<image>")}, "an image is {'x': 1}; expected a name"),
    "another encoding": ({"image": "data:image/png,%20", "conversations": turns("<image>")}, "expected base64"),
    "bad base64": ({"image": "data:image/png;base64,x!", "conversations": turns("<image>")}, "an image is no base64 ("),
    "a part's bad base64": ({"messages": messages([{**IMAGE, "base64": "x!"}])}, "an image is no base64 ("),
    "a part's base64 that is none": ({"messages": messages([{**IMAGE, "base64": 5}])}, "an image is no base64 ("),
    "cauldron, nothing": ({"texts": [], "images": ["a.jpg"]}, "no two lists of one length"),
    "obelics, lists of other lengths": ({"texts": ["a"], "images": ["a", "b"]}, "no two lists of one length, each with gaps"),
    "obelics, no list": ({"texts": ["a"], "images": "a"}, "no two lists of one length, each with gaps"),
    "obelics, no text": ({"texts": [5], "images": [None]}, "one of its texts is 5"),
    "obelics, nothing": ({"texts": ["", None]}, "has no texts and no images"),
    "mmc4, a place too large": (
        {"text_list": ["a"], "image_info": [{"image_name": "x", "matched_text_index": 1}]},
        "image_info: matched_text_index is 1 of 1 text",
    ),
    "mmc4, no place": ({"text_list": ["a"], "image_info": ["x"]}, "image_info: matched_text_index is None of 1 text"),
    "mmc4, no image": ({"text_list": ["a"], "image_info": [{"matched_text_index": 0}]}, "an image is None; expected a name"),
    "mmc4, bad base64": (
        {"text_list": ["a"], "image_info": [{"matched_text_index": 0, "image_base64": "x!"}]},
        "an image is no base64 (",
    ),
    "mmc4, no texts": ({"text_list": [5]}, "its text_list is no list of texts"),
    "mmc4, no images": ({"text_list": ["a"], "image_info": 5}, "or its image_info no list"),
    "mmc4, nothing": ({"text_list": ["", ""]}, "has no texts and no images"),
    "a text of nothing": ({"text": ""}, "has no texts and no images"),
    "a text, more places": ({"text": "<image> <image>", "image": "a"}, "2 places for images (<image>) and 1 image"),
    "a text, fewer places": ({"text": "A fox.", "image": "a"}, "0 places for images (<image>) and 1 image"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_record_is_said(name: str) -> None:
    value, said = WRONG[name]
    with pytest.raises(DecodeError, match=re.escape(said)) as raised:
        record_of(value)
    assert "\n" not in str(raised.value)
