"""Records of conversations and of documents with images, as people publish them, in one form.

    LLaVA        `conversations` of `from` and `value`, `<image>` where an image belongs, `image`: a name, or several
    TRL, OpenAI  `messages` (or `prompt` and `completion`), whose contents are texts with `<image>`, or parts; `images`
    Cauldron     `texts` of `user` and `assistant`, `images`, which come first
    OBELICS      `texts` and `images`, one list beside the other, each with gaps
    MMC4         `text_list`, and `image_info`, which says before which text each image belongs

An image is a name, bytes, the struct of bytes and path that Hugging Face's `datasets` writes, or a `data:` URL. A conversation
whose messages have no place for an image has its images first, in the first message of the user, as in TRL.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from datapipe.codecs.messages import IMAGE_PARTS, messages_of
from datapipe.core.printable import counted
from datapipe.errors import DecodeError

COLUMNS = (
    "messages", "conversations", "prompt", "completion", "texts", "text_list", "text", "images", "image", "image_info",
)  # fmt: skip
PLACE = "<image>"  # of an image in a text
_TEXT_PARTS = ("text", "input_text", "output_text")
_SOURCES = ("image", "image_url", "url", "path")  # members of a part that may say which image it is

Image = str | bytes  # a name, or the file itself


class Record(NamedTuple):
    """A conversation or a document, and its images in the order of their places.

    `content`: JSON. {"messages": [...]}, whose contents are lists of parts, {"type": "text", "text": ...} or {"type": "image"};
    or {"document": [...]}, texts, and None in the place of each image.
    """

    content: dict[str, Any]
    images: list[Image]


def record_of(value: Any, *, beside: Sequence[str] = ()) -> Record:
    """Return what a record says. `beside`: the names of the images that lie beside it, which it need not name.

    Raises DecodeError for what is none of these forms, and where images and places for them differ in number.
    """
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise DecodeError("no conversation: its record is no JSON object")
    value = {name: one for name, one in value.items() if one is not None}
    texts = value.get("texts")
    if "text_list" in value:
        return _of_mmc4(value, beside)
    if isinstance(texts, list) and texts and all(isinstance(one, dict) for one in texts):
        turns = [{"role": role, "content": one.get(role)} for one in texts for role in ("user", "assistant")]
        return _of_chat(turns, value, beside)
    if isinstance(texts, list):
        return _interleaved(texts, value.get("images", [None] * len(texts)))
    if "messages" in value or "conversations" in value:
        return _of_chat(messages_of(value), value, beside)
    if "prompt" in value and "completion" in value:
        turns = [*_turns(value["prompt"], "user"), *_turns(value["completion"], "assistant")]
        return _of_chat(turns, value, beside)
    if isinstance(value.get("text"), str):
        images = _images_of(value, beside)
        document = [*_divided(value["text"])]
        _refuse_others(document.count(None), len(images))
        return _of_document(document, images)
    raise DecodeError(f"no conversation: it has none of {', '.join(COLUMNS[:7])}, or not as these are written")


# -- chats ------------------------------------------------------------------------------------------------


def _turns(value: Any, role: str) -> list[dict[str, Any]]:
    """Return the messages of a prompt or a completion, which is a text or a list of them."""
    return [{"role": role, "content": value}] if isinstance(value, str) else messages_of(value)


def _of_chat(messages: Sequence[Mapping[str, Any]], value: Mapping[str, Any], beside: Sequence[str]) -> Record:
    """Return a chat. `value`: its record, which may name the images that its messages have places for."""
    contents = [_parts_of(message.get("content")) for message in messages]
    places = [part for parts in contents for part in parts or () if not isinstance(part, str)]
    are_own = bool(places) and all(isinstance(one, _Own) for one in places)
    given = _images_of(value, () if are_own else beside)
    first = next((number for number, one in enumerate(messages) if one["role"] == "user"), 0)
    if not places and given:
        places = [None] * len(given)
        contents[first] = [*places, *(contents[first] or ())]
    images = _filled(places, given)
    made = [{**message, "content": _written(parts)} for message, parts in zip(messages, contents, strict=True)]
    return Record({"messages": made}, images)


class _Own(NamedTuple):
    """An image that a message holds, or names, itself."""

    image: Image


_Place = _Own | int | None  # of an image: its own, that of this number among those of the record, or the next of the others
_Part = str | _Place


def _parts_of(content: Any) -> list[_Part] | None:
    """Return the parts of a message; None for a message without contents, such as a call of a tool. Raises DecodeError."""
    if content is None:
        return None
    if isinstance(content, str):
        return [*_divided(content)]
    if not isinstance(content, list):
        raise DecodeError(f"no chat: the content of a message is {content!r:.40}; expected a text, or a list of parts")
    return [part for one in content for part in _parts_in(one)]


def _divided(text: str) -> Iterator[str | None]:
    """Yield the texts around places for images, and None for each. The end of a line next to a place belongs to it."""
    pieces = text.split(PLACE)
    for number, piece in enumerate(pieces):
        if number:
            yield None
            piece = piece.removeprefix("\n")
        piece = piece if number == len(pieces) - 1 else piece.removesuffix("\n")
        if piece:
            yield piece


def _parts_in(part: Any) -> list[_Part]:
    if isinstance(part, str):
        return [part]
    if not isinstance(part, dict):
        raise DecodeError(f"no chat: a part of a message is {part!r:.40}; expected an object")
    part = {name: one for name, one in part.items() if one is not None}
    kind = part.get("type") or next((name for name in ("text", *IMAGE_PARTS) if name in part), None)
    if kind in _TEXT_PARTS:
        text = part.get("text", "")
        if not isinstance(text, str):
            raise DecodeError(f"no chat: a part's text is {text!r:.40}")
        return [text] if text else []
    if kind not in IMAGE_PARTS:
        raise DecodeError(f"a part of type {kind!r:.40}, which is neither text nor an image; leave such samples out")
    found = next((part[name] for name in _SOURCES if name in part), None)
    if found is not None:
        return [_Own(_image(found))]
    if "base64" in part:
        return [_Own(_decoded(part["base64"]))]
    number = part.get("index")
    return [number if isinstance(number, int) else None]


def _filled(places: Sequence[_Place], given: Sequence[Image]) -> list[Image]:
    """Return the image of each place."""
    numbers = {one for one in places if isinstance(one, int)}
    wrong = next((one for one in numbers if not 0 <= one < len(given)), None)
    if wrong is not None:
        raise DecodeError(f"a part is image {wrong} of {counted(len(given), 'image')}")
    _refuse_others(places.count(None) + len(numbers), len(given))
    others = (image for number, image in enumerate(given) if number not in numbers)
    return [one.image if isinstance(one, _Own) else next(others) if one is None else given[one] for one in places]


def _written(parts: list[_Part] | None) -> list[dict[str, str]] | None:
    if parts is None:
        return None
    return [{"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in parts]


def _refuse_others(num_places: int, num_images: int) -> None:
    if num_places != num_images:
        raise DecodeError(
            f"{counted(num_places, 'place')} for images ({PLACE}) and {counted(num_images, 'image')}; repair the record"
        )


# -- documents --------------------------------------------------------------------------------------------


def _interleaved(texts: Sequence[Any], images: Any) -> Record:
    """Return a document of two lists, of which one has a gap where the other has something."""
    if not isinstance(images, list) or len(images) != len(texts):
        raise DecodeError("its texts and images are no two lists of one length, each with gaps where the other has something")
    document: list[str | None] = []
    found: list[Image] = []
    for text, image in zip(texts, images, strict=True):
        if image is not None:
            found.append(_image(image))
            document.append(None)
        if text is not None and not isinstance(text, str):
            raise DecodeError(f"one of its texts is {text!r:.40}")
        if text:
            document.append(text)
    return _of_document(document, found)


def _of_mmc4(value: Mapping[str, Any], beside: Sequence[str]) -> Record:
    """Return a document of MMC4's, whose images come before the texts that they match."""
    texts, described = value["text_list"], value.get("image_info", [])
    if not isinstance(texts, list) or not isinstance(described, list) or not all(isinstance(one, str) for one in texts):
        raise DecodeError("its text_list is no list of texts, or its image_info no list")
    before: dict[int, list[Image]] = {}
    for one in described:
        where = one.get("matched_text_index") if isinstance(one, dict) else None
        if not isinstance(where, int) or not 0 <= where < len(texts):
            raise DecodeError(f"image_info: matched_text_index is {where!r:.20} of {counted(len(texts), 'text')}")
        found = one.get("image_base64") or one.get("image_name") or one.get("raw_url")
        image = _decoded(found) if one.get("image_base64") else _image(found)
        before.setdefault(where, []).append(image)
    document: list[str | None] = []
    for number, text in enumerate(texts):
        document += [None] * len(before.get(number, ()))
        if text:
            document.append(f"{text} " if number < len(texts) - 1 else text)
    return _of_document(document, [image for number in sorted(before) for image in before[number]])


def _of_document(document: list[str | None], images: list[Image]) -> Record:
    if not document:
        raise DecodeError("has no texts and no images")
    return Record({"document": document}, images)


# -- images -----------------------------------------------------------------------------------------------


def _images_of(value: Mapping[str, Any], beside: Sequence[str]) -> list[Image]:
    """Return the images that a record names, or else those that lie beside it."""
    found = value.get("images", value.get("image"))
    if found is None or found == "":
        return list(beside)
    return [_image(one) for one in (found if isinstance(found, list) else [found])]


def _image(value: Any) -> Image:
    """Return an image. Raises DecodeError for what is none."""
    found = value
    if isinstance(value, dict):
        named = (value.get(name) for name in ("bytes", "path", "url"))
        found = next((one for one in named if one is not None), None)
    if isinstance(found, str) and found.startswith("data:"):
        head, _, data = found.partition(",")
        if not head.endswith(";base64"):
            raise DecodeError(f"an image is {found!r:.40}; expected base64")
        return _decoded(data)
    if isinstance(found, str) and found:
        return found.removeprefix("file://")
    if isinstance(found, bytes):
        return found
    raise DecodeError(f"an image is {value!r:.40}; expected a name, or its bytes")


def _decoded(text: Any) -> bytes:
    """Return the bytes of an image in base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as exc:
        raise DecodeError(f"an image is no base64 ({exc})") from exc
