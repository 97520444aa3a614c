"""Conversations with images become the ids that transformers gives them, with a token an image, and the images as they are."""

from __future__ import annotations

import io
import itertools
import json
import re
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import conversation_trees as trees_of
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conversation_trees import CHATS, DOCUMENTS, NO_IMAGE, PICTURES, SOURCES, Sample, put_lines, put_pictures, put_tar
from fixtures import mostly_nightly
from PIL import Image, ImageOps
from reading import converted
from stand_in_stores import BUCKET, moto_store, needs_moto, upload
from test_tokens_killed import finish_and_compare, num_done
from tokenizers import Tokenizer
from tokenizers_of_tests import CHATML, byte_level
from trees import ROOT, cli_command, contents, run_cli
from vision_models import FAMILIES, TEMPLATES, model_folder, text_processor

import datapipe as dp
from converters import ConvertOptions, OnError, preview, recognise
from converters.options import Encode, ResizeRule
from converters.samples.chats import ChatRenderer
from converters.tokenizer import Tokenizing
from converters.verify import verify
from datapipe.codecs.model_folder import ModelFolder
from datapipe.errors import DatapipeError, DecodeError, MissingDataError, OptionError
from datapipe.index.manifest import read_manifest
from datapipe.opening.tokens.opening import open_tokens
from datapipe.processors.reading import read_processor
from datapipe.stores.places import parse_place

END = "<|end|>"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), "qwen")


@pytest.fixture(scope="module")
def chats(model: Path) -> Tokenizing:
    """As `--chat-template auto` reads it: texts get no token at their end."""
    return Tokenizing.of(model, chat_template="auto")


@pytest.fixture(scope="module")
def plain(model: Path) -> Tokenizing:
    """Without a template, for documents alone, which is not tried before anything is read."""
    return Tokenizing.of(model)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty folder."""
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def to_tokens(source: Any, tokens: Tokenizing, out: Path | None = None, **options: Any) -> Path:
    """Where they are converted to, beside the source unless told otherwise."""
    return converted(source, out or source.parent / "out", to="tokens", tokens=tokens, **options)


class Stored(NamedTuple):
    """A document in the shards."""

    ids: list[int]
    runs: list[list[int]]  # of tokens that carry loss
    images: list[bytes]
    table: list[list[int]]  # of each image: place, bytes, width, height, orientation


def stored(out: Path) -> list[Stored]:
    """The documents of a set, by id."""
    index, found = open_tokens(out), {}
    for number in range(index.num_shards):
        sidecar = index.samples.sidecar(number)  # type: ignore[union-attr]
        data = (out / index.samples.manifest.shards[number].name).read_bytes()  # type: ignore[union-attr]
        assert not (sidecar.offsets("tokens") % index.facts.stored.itemsize).any()
        run_ends, runs = sidecar.runs("tokens") or no_rows(sidecar.num_samples, 2)
        image_ends, table = sidecar.images("images") or no_rows(sidecar.num_samples, 5)
        for row, document in enumerate(sidecar.ids.tolist()):
            tokens, images = (cut(data, sidecar, field, row) for field in ("tokens", "images"))
            mine = table[image_ends[row] : image_ends[row + 1]]
            bounds = [0, *np.cumsum(mine[:, 1]).tolist()]
            assert bounds[-1] == len(images)
            found[document] = Stored(
                np.frombuffer(tokens, index.facts.stored).tolist(),
                runs[run_ends[row] : run_ends[row + 1]].tolist(),
                [images[first:end] for first, end in itertools.pairwise(bounds)],
                mine.tolist(),
            )
    return [one for _, one in sorted(found.items())]


def no_rows(num: int, width: int) -> tuple[Any, Any]:
    return np.zeros(num + 1, np.int64), np.zeros((0, width), np.int32)


def cut(data: bytes, sidecar: Any, field: str, row: int) -> bytes:
    offset, nbytes = int(sidecar.offsets(field)[row]), int(sidecar.nbytes(field)[row])
    return data[offset : offset + nbytes]


class Reference:
    """Hugging Face's libraries alone, for the tokenizer and the template of a model."""

    def __init__(self, model: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.image = "<|image_pad|>"
        self.template = (model / "chat_template.jinja").read_text()

    def ids(self, sample: Sample, end: str = "") -> list[int]:
        if sample.is_document:
            alone = f"<|vision_start|>{self.image}<|vision_end|>"
            text = "".join(alone if part in PICTURES else part for part in sample.parts[0]) + end
        else:
            text = rendered(self.template, sample)
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def texts(self, one: Stored) -> list[str]:
        """What carries loss."""
        return [self.tokenizer.decode(one.ids[first:end], skip_special_tokens=False) for first, end in one.runs]


def rendered(template: str, sample: Sample) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template([sample.content["messages"]], chat_template=template)
    return str(texts[0])


def assert_stored(out: Path, samples: list[Sample], reference: Reference, *, end: str = "") -> None:
    """The set holds these samples: their ids, the images in the order of their places, and what the assistant says as loss."""
    found = stored(out)
    assert len(found) == len(samples)
    for one, sample in zip(found, samples, strict=True):
        pictures = [PICTURES[name] for name in sample.pictures]
        assert one.ids == reference.ids(sample, end)
        assert one.images == [picture.data for picture in pictures]
        places = np.flatnonzero(np.array(one.ids) == reference.tokenizer.token_to_id(reference.image)).tolist()
        assert one.table == [
            [place, len(data), width, height, orientation]
            for place, (data, width, height, orientation) in zip(places, pictures, strict=True)
        ]
        if sample.is_document:
            assert one.runs == [[0, len(one.ids)]]
        else:
            assert reference.texts(one) == [f"{answer}<|im_end|>\n" for answer in sample.answers]


@pytest.mark.promise("form: conversations")
@pytest.mark.parametrize("name", mostly_nightly(SOURCES, "llava and a zip"))
def test_each_form_gives_the_ids_and_images_that_it_says(name: str, source: Path, model: Path, chats: Tokenizing) -> None:
    made = SOURCES[name](source)
    out = to_tokens(made.source, chats, shard_nbytes=9_000, **made.options)
    assert_stored(out, made.samples, Reference(model))
    assert verify(out).problems == ()
    facts = read_manifest(out).tokens
    assert facts is not None
    assert facts.image == chats.with_images().facts.image


@pytest.mark.promise("form: conversations")
def test_a_folder_of_all_forms(source: Path, model: Path, chats: Tokenizing) -> None:
    made = trees_of.all_in_one(source)
    out = to_tokens(source, chats, shard_nbytes=20_000, form="conversations", seed=1)
    assert len(read_manifest(out).shards) > 4
    assert_stored(out, made.samples, Reference(model))
    assert verify(out).problems == ()


def test_images_beside_records_are_no_other_files(source: Path, plain: Tokenizing) -> None:
    trees_of.texts(source)
    (source / "notes.doc").write_text("x")
    options = ConvertOptions(source, source.parent / "out", to="tokens", tokens=plain)
    (warning,) = preview(options).warnings
    assert warning.startswith("1 file ignored")


def test_all_rows_of_a_large_row_group_come_in_their_order(source: Path, model: Path, plain: Tokenizing) -> None:
    samples = [Sample([["dot.png", f"number {number}"]], is_document=True) for number in range(150)]
    columns = {"text": [f"<image>{one.parts[0][1]}" for one in samples], "image": [trees_of.struct("dot.png")] * 150}
    pq.write_table(pa.table(columns), source / "a.parquet")
    assert_stored(to_tokens(source / "a.parquet", plain), samples, Reference(model), end=END)


def test_a_document_without_a_template_ends_with_a_token_that_carries_loss(source: Path, model: Path, plain: Tokenizing) -> None:
    """As one without images does."""
    out = to_tokens(trees_of.texts(source).source, plain)
    assert_stored(out, DOCUMENTS, Reference(model), end=END)


# -- ids of transformers --------------------------------------------------------------------------------

NESTED = ("idefics3", "idefics3_whole", "gemma3")  # whose processors take a list of images for each text


def as_seen(name: str) -> Image.Image:
    with Image.open(io.BytesIO(PICTURES[name].data)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def expanded(ids: list[int], table: list[list[int]], folder: Path) -> list[int]:
    """With the tokens of each image in its place, as its size alone says them."""
    processor = read_processor(folder)
    parts, before = [], 0
    for place, _, width, height, _ in table:
        grid = processor.grids(np.array([width]), np.array([height]))[0].tolist()
        parts += [ids[before:place], processor.tokens(*grid).tolist()]
        before = place + 1
    return [one for part in (*parts, ids[before:]) for one in part]


@pytest.mark.parametrize("family", mostly_nightly(FAMILIES, "idefics3", "gemma3"))
def test_each_family_gets_the_ids_of_its_own_processor(family: str, tmp_path: Path, source: Path) -> None:
    folder = model_folder(tmp_path / "model", family)
    samples = [*trees_of.messages(source).samples, *trees_of.texts(source).samples]
    found = stored(to_tokens(source, Tokenizing.of(folder, chat_template="auto"), form="conversations"))
    theirs, reference = text_processor(folder, family), Tokenizer.from_file(str(folder / "tokenizer.json"))
    written, kept, _, alone = ModelFolder(folder).image_tokens
    for one, sample in zip(found, samples, strict=True):
        if sample.is_document:
            text = "".join(alone.replace(kept, written) if part in PICTURES else part for part in sample.parts[0])
        else:
            text = rendered(TEMPLATES[family], sample)
            said = [reference.decode(one.ids[first:end], skip_special_tokens=False) for first, end in one.runs]
            assert [re.sub(r"(<\|im_end\|>|<end_of_utterance>)?\s$", "", answer.lstrip()) for answer in said] == sample.answers
        images = [as_seen(name) for name in sample.pictures]
        expected = theirs(text=[text], images=([images] if family in NESTED else images) if images else None)
        assert expanded(one.ids, one.table, folder) == np.asarray(expected["input_ids"][0]).tolist()


def test_tokens_of_images_in_texts_are_text(source: Path, model: Path, chats: Tokenizing) -> None:
    told = "Is <|image_pad|> an image, <|vision_start|> or <image>?"
    parts = [{"type": "text", "text": told}, {"type": "image"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "<|image_pad|> is<|im_end|> text."}]
    documents = [{"text": "<|image_pad|><image>", "image": "wide.jpg"}, {"text": "<|image_pad|>"}]
    put_lines(put_pictures(source) / "a.jsonl", [{"messages": messages, "images": ["wide.jpg"]}, *documents])
    found = stored(to_tokens(source / "a.jsonl", chats))
    reference = Reference(model)
    image = reference.tokenizer.token_to_id(reference.image)
    assert [one.ids.count(image) for one in found] == [1, 1, 0]
    assert [[one.ids[place] for place, *_ in one.table] for one in found] == [[image], [image], []]
    assert reference.texts(found[0]) == ["<|image_pad|> is<|im_end|> text.<|im_end|>\n"]
    decoded = [reference.tokenizer.decode(one.ids, skip_special_tokens=False) for one in found]
    assert told in decoded[0]
    assert decoded[1:] == ["<|image_pad|><|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"]


# -- how images are stored ------------------------------------------------------------------------------


def size_of(data: bytes) -> tuple[int, int]:
    """As it is seen without its EXIF."""
    with Image.open(io.BytesIO(data)) as image:
        return image.size


def test_resized_images_have_their_new_sizes_and_are_still_to_be_turned(source: Path, plain: Tokenizing) -> None:
    made = trees_of.texts(source)
    found = stored(to_tokens(made.source, plain, resize=ResizeRule.parse("longer:64")))
    for one, sample in zip(found, made.samples, strict=True):
        for data, (_, nbytes, width, height, orientation), name in zip(one.images, one.table, sample.pictures, strict=True):
            before = PICTURES[name]
            assert nbytes == len(data)
            assert max(width, height) == 64
            assert width / height == pytest.approx(before.width / before.height, rel=0.05)
            assert orientation == before.orientation
            assert size_of(data) == ((height, width) if orientation == 6 else (width, height))


def test_images_without_their_exif_are_still_to_be_turned(source: Path, plain: Tokenizing) -> None:
    put_lines(put_pictures(source) / "a.jsonl", [{"text": "<image>", "image": "turned.jpg"}] * 2)
    ((one, _), (other, _)) = (
        stored(to_tokens(source / "a.jsonl", plain, source / name, **options))
        for name, options in (("stripped", {"strip_exif": True}), ("png", {"encode": Encode.parse("png")}))
    )
    assert b"Exif" in PICTURES["turned.jpg"].data
    assert b"Exif" not in one.images[0]
    assert other.images[0].startswith(b"\x89PNG")
    assert [stored.table[0][2:] for stored in (one, other)] == [[40, 72, 6]] * 2


def test_duplicates_are_records_with_the_same_images(source: Path, plain: Tokenizing) -> None:
    records = [{"text": "<image>", "image": name} for name in ("wide.jpg", "dot.png", "wide.jpg")]
    put_lines(put_pictures(source) / "a.jsonl", records)
    found = stored(to_tokens(source / "a.jsonl", plain, dedupe=True))
    assert [one.images for one in found] == [[PICTURES[name].data] for name in ("wide.jpg", "dot.png")]


# -- bad samples ----------------------------------------------------------------------------------------

BAD: dict[str, tuple[Any, str]] = {
    "missing": ({"text": "<image>", "image": "absent.jpg"}, "image 1, 'absent.jpg': no such file"),
    "one of two missing": (
        {"text": "<image><image>", "image": ["wide.jpg", "absent.jpg"]},
        "image 2, 'absent.jpg': no such file",
    ),
    "no image": ({"text": "<image><image>", "image": ["wide.jpg", "noise.jpg"]}, "image 2: not an image: 5 bytes starting with"),
    "cut": ({"text": "<image>", "image": "cut.jpg"}, "image 1: jpeg of "),
    "empty": ({"text": "<image>", "image": "empty.png"}, "image 1: not an image: empty file"),
    "a folder": ({"text": "<image>", "image": "folder"}, "image 1, 'folder': not a regular file but a folder"),
    "outside": ({"text": "<image>", "image": "/etc/hostname"}, "image 1, '/etc/hostname': '/etc/hostname' leads out of "),
    "on the web": ({"text": "<image>", "image": "http://x/y.jpg"}, "on the web; fetch the images first"),
    "no places": ({"text": "A fox.", "image": "wide.jpg"}, "0 places for images (<image>) and 1 image"),
    "more places": ({"text": "<image><image>", "image": "wide.jpg"}, "2 places for images (<image>) and 1 image"),
    "no record": (5, "no conversation: its record is no JSON object"),
    "other members": ({"caption": "A fox."}, "no conversation: it has none of messages"),
    "a surrogate": ({"text": "\ud800"}, "has half of a surrogate pair, which is no text"),
    "a name that is none": ({"text": "<image>", "image": "a\0b"}, "is not a name that a file can have"),
    "no template": ({"messages": [{"role": "user", "content": "x"}]}, "a chat, and no chat template was named"),
}


@pytest.mark.promise("convert: Bad samples")
@pytest.mark.parametrize("policy", [OnError.SKIP, OnError.QUARANTINE])
def test_bad_records_are_left_out_and_named(policy: OnError, source: Path, model: Path, plain: Tokenizing) -> None:
    put_pictures(source)
    (source / "folder").mkdir()
    cut_off = PICTURES["wide.jpg"].data[:-300]
    for name, data in (("noise.jpg", b"noise"), ("cut.jpg", cut_off), ("empty.png", b"")):
        (source / name).write_bytes(data)
    good = [{"text": "<image> a fox", "image": "wide.jpg"}, {"text": "No image at all."}]
    put_lines(source / "a.jsonl", [good[0], *(record for record, _ in BAD.values()), good[1]])
    with (source / "a.jsonl").open("a") as file:
        file.write('{"text": "cut of')
    out = to_tokens(source / "a.jsonl", plain, on_error=policy)
    kept = [Sample([["wide.jpg", " a fox"]], is_document=True), NO_IMAGE]
    assert_stored(out, kept, Reference(model), end=END)
    errors = [json.loads(line) for line in (out / "errors.jsonl").read_text().splitlines()]
    expected = [*(said for _, said in BAD.values()), "not JSON ("]
    lines = [*range(2, 2 + len(BAD)), len(BAD) + 3]
    assert [error["source"] for error in errors] == [f"a.jsonl/line {number}" for number in lines]
    assert [error["reason"] for error, said in zip(errors, expected, strict=True) if said not in error["reason"]] == []
    assert verify(out).problems == ()
    if policy is OnError.QUARANTINE:
        assert (out / "quarantine" / "cut.jpg").read_bytes() == cut_off


def test_bad_members_of_tars_are_named_by_their_key(source: Path, model: Path, plain: Tokenizing) -> None:
    wide, tall = (PICTURES[name].data for name in ("wide.jpg", "tall.png"))
    members = [
        ("a.json", b'{"text": "<image>"}'), ("a.jpg", wide),
        ("b.json", b'{"text": "x"}'), ("b.meta.json", b"{}"),
        ("c.jpg", wide),
        ("d.json", b"{"), ("d.jpg", wide),
        ("e.json", b'{"text": "<image>", "image": "z.jpg"}'), ("e.0.jpg", wide), ("e.1.jpg", wide),
        ("f.json", b'{"text": "<image>", "image": "z.jpg"}'),
        ("g.json", b'{"text": "<image><image>", "images": ["old/1.jpg", "0.jpg"]}'), ("g.0.jpg", b"x"), ("g.1.jpg", wide),
        ("h.json", b'{"text": "<image> a fox", "image": "/data/called otherwise.png"}'), ("h.jpg", wide),
        ("i.json", b'{"text": "<image><image>", "images": ["old/i.1.png", "0.jpg"]}'), ("i.0.jpg", wide), ("i.1.png", tall),
    ]  # fmt: skip
    put_tar(source / "x.tar", members)
    out = to_tokens(source / "x.tar", plain, form="conversations", on_error=OnError.SKIP)
    kept = [Sample([parts], is_document=True) for parts in (["wide.jpg"], ["wide.jpg", " a fox"], ["tall.png", "wide.jpg"])]
    assert_stored(out, kept, Reference(model), end=END)
    errors = {error["source"]: error["reason"] for error in map(json.loads, (out / "errors.jsonl").read_text().splitlines())}
    assert errors == {
        "x.tar/b": "has 2 members of JSON (b.json, b.meta.json); expected one, which says the conversation",
        "x.tar/c": "has 0 members of JSON (c.jpg); expected one, which says the conversation",
        "x.tar/d": errors.get("x.tar/d", ""),
        "x.tar/e": "image 1, 'z.jpg': is none of the images of its key: e.0.jpg, e.1.jpg",
        "x.tar/f": "image 1, 'z.jpg': is none of the images of its key: there are none",
        "x.tar/g": "image 2: not an image: 1 bytes starting with b'x'",
    }
    assert errors["x.tar/d"].startswith("not JSON (")


@pytest.mark.nightly
def test_a_template_that_leaves_out_images_of_some_messages(source: Path, tmp_path: Path, model: Path) -> None:
    """The trial of the template has an image in the user's message alone."""
    path = tmp_path / "t.jinja"
    path.write_text(TEMPLATES["qwen"].replace("== 'image' %}", "== 'image' and message['role'] == 'user' %}", 1))
    messages = [{"role": "user", "content": "<image>x"}, {"role": "assistant", "content": [{"type": "image"}]}]
    put_lines(put_pictures(source) / "a.jsonl", [{"messages": messages, "images": ["wide.jpg"] * 2}])
    with pytest.raises(DecodeError, match="the chat template wrote 1 image where there are 2; repair the template"):
        to_tokens(source / "a.jsonl", Tokenizing.of(model, chat_template=str(path)))


def test_chats_with_images_are_no_documents(chats: Tokenizing) -> None:
    """They would have tokens of images, and no images."""
    encode = ChatRenderer(chats).encode
    with pytest.raises(
        DecodeError, match="a chat with images, of which documents have none; convert it with --from conversations"
    ):
        encode(json.dumps(CHATS[0].content).encode())
    assert len(encode(json.dumps(CHATS[1].content).encode())[0])


# -- what is said ---------------------------------------------------------------------------------------


def test_a_dry_run_shows_fields_and_a_command_says_what_it_took_the_source_for(source: Path, model: Path) -> None:
    made = trees_of.texts(source)
    arguments = ["convert", made.source, source / "out", "--to", "tokens", "--tokenizer", model]
    shown = run_cli(*arguments, "--dry-run")
    assert shown.returncode == 0
    assert "fields: conversation (json), images\n" in shown.stdout
    assert re.search(r"texts\.jsonl/line 1 +conversation \d+ B, images \d+ B\n", shown.stdout)
    assert re.search(r"texts\.jsonl/line 2 +conversation \d+ B\n", shown.stdout)
    assert not (source / "out").exists()
    done = run_cli(*arguments)
    assert done.returncode == 0, done.stderr
    assert "recognised as conversations with images (one of its first records has images; --from conversations)" in done.stderr
    verified = run_cli("verify", source / "out")
    assert (verified.returncode, "intact; 3 samples" in verified.stdout) == (0, True)
    again = run_cli(*arguments)
    assert "already converted" in again.stdout + again.stderr


KNOWN = [name for name, make in SOURCES.items() if name not in ("compressed", "tars")]


@pytest.mark.parametrize("name", KNOWN)
def test_conversations_are_recognised(name: str, source: Path, plain: Tokenizing) -> None:
    made = SOURCES[name](source)
    options = ConvertOptions(made.source, source.parent / "out", to="tokens", tokens=plain, **made.options)
    assert recognise(options).form == "conversations"


def form_of(source: Path, to: str, tokens: Tokenizing) -> str:
    more: dict[str, Any] = {"tokens": tokens} if to == "tokens" else {}
    try:
        return recognise(ConvertOptions(source, source.parent / "elsewhere" / "out", to=to, **more)).form
    except DatapipeError as exc:
        return f"! {exc}"


def test_other_things_are_what_they_were(source: Path, plain: Tokenizing) -> None:
    chat = CHATS[1].content
    assert form_of(put_lines(source / "chats.jsonl", [chat] * 3), "tokens", plain) == "documents"
    assert form_of(put_lines(source / "texts.jsonl", [{"text": "A fox."}] * 3), "tokens", plain) == "documents"
    pq.write_table(pa.table({"messages": [chat["messages"]] * 3}), source / "chats.parquet")
    assert form_of(source / "chats.parquet", "tokens", plain) == "documents"
    pq.write_table(pa.table({"text": ["A fox."] * 3}), source / "texts.parquet")
    assert form_of(source / "texts.parquet", "tokens", plain) == "documents"
    one = trees_of.parquet_of_one_image(source).source
    assert form_of(one, "webdataset", plain) == "parquet"
    assert len(dp.Images(one, fields=["image"])) == 3
    assert "is a table" in form_of(trees_of.cauldron(source).source, "webdataset", plain)
    pictures = put_pictures(source / "pictures" / "class").parent
    assert form_of(pictures, "tokens", plain) == "image-folder"


def test_images_are_looked_for_behind_the_first_records(source: Path, plain: Tokenizing) -> None:
    put_pictures(source)
    none, one = {"conversations": CHATS[1].turns}, {"conversations": CHATS[0].turns, "image": "wide.jpg"}
    assert form_of(put_lines(source / "a.jsonl", [none, *[none] * 90, one]), "tokens", plain) == "conversations"
    (source / "b.json").write_text(json.dumps([none, {}, one]))
    assert form_of(source / "b.json", "tokens", plain) == "conversations"
    images = [None, {"bytes": PICTURES["wide.jpg"].data, "path": "x"}]
    pq.write_table(pa.table({"text": ["A fox.", "<image>"], "image": images}), source / "c.parquet")
    assert form_of(source / "c.parquet", "tokens", plain) == "conversations"


# -- wrong input ----------------------------------------------------------------------------------------


def said_of(*arguments: str | Path) -> str:
    """What a conversion that fails says: one line."""
    done = run_cli("convert", *arguments, "--to", "tokens", "--workers", "1")
    assert done.returncode in (1, 2), done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if "recognised as" not in line]
    assert len(lines) == 1
    return lines[0].removeprefix("datapipe: ")


OPTIONS: dict[str, tuple[list[str], str]] = {
    "a root that is none": (["--root", "absent"], "absent: no such folder or archive; check --root"),
    "a root without the images": (
        ["--root", "empty"],
        "none of the first 5 files is there; the first is 'wide.jpg', looked for in empty; it is in {here}: pass --root {here}",
    ),
    "an archive without the images": (
        ["--root", "empty.zip"],
        "texts.jsonl: none of its 5 files is in empty.zip; the first is 'wide.jpg'; pass the folder in it that",
    ),
    "another aspect": (["--resize", "exact:8x8"], "images in conversations keep their aspect; pass longer:N or shorter:N"),
    "classes": (["--class-from", "none"], "--class-from has no effect with --from conversations; leave it out"),
    "labels": (["--class-map", "empty"], "--class-map has no effect with --from conversations; leave it out"),
    "fields": (["--field", "text"], "--field has no effect with --from conversations; leave it out"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_are_wrong(name: str, source: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trees_of.texts(source)
    (source / "empty").mkdir()
    zipfile.ZipFile(source / "empty.zip", "w").close()
    arguments, said = OPTIONS[name]
    monkeypatch.chdir(source)
    assert said.format(here=source) in said_of(made.source, "out", "--tokenizer", model, *arguments)
    assert not (source / "out").exists()


RECORD = json.dumps({"text": "<image>", "image": "wide.jpg"})
FILES: dict[str, tuple[str, str | bytes, str]] = {
    "a list that is cut": (
        "a.json",
        f'[{RECORD}, {{"text": ',
        "Expecting value; repair the file, or get it again",
    ),
    "a list without commas": ("a.json", f"[{RECORD} {RECORD}]", "expected ',' or ']', found '{'"),
    "a list that is no UTF-8": ("a.json", b'["\xff"]', "a.json: is not UTF-8 (invalid start byte); save it as UTF-8"),
    "a list of nothing": ("a.json", "[]", "no conversations in it (0 other files); conversations are JSON lists or lines (.json"),
    "a list with numbers": (
        "a.json",
        f"[{RECORD}, 5]",
        "1 of 2 samples cannot be read: a.json/record 2: bad sample: no conversation: its record is no JSON object; repair them",
    ),
    "an object": ("a.json", '{"images": []}', "a.json/line 1: bad sample: no conversation: it has none of messages"),
    "an image on the web": (
        "a.jsonl",
        json.dumps({"text": "<image>", "image": "https://x/y.jpg"}),
        "a.jsonl/line 1: bad sample: image 1, 'https://x/y.jpg': on the web; fetch the images first, as img2dataset does, and",
    ),
    "nothing": ("a.jsonl", "\n\n", "a.jsonl: no conversations in it (0 other files); conversations are"),
    "no Parquet": ("a.parquet", b"PAR1", "a.parquet: not a Parquet file, or truncated or damaged"),
    "no gzip": ("a.jsonl.gz", b"x", "a.jsonl.gz: not gzip, cut off or damaged"),
    "no tar": ("a.tar", b"x" * 600, "a.tar"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_none(name: str, source: Path, model: Path) -> None:
    put_pictures(source)
    file, data, said = FILES[name]
    (source / file).write_bytes(data if isinstance(data, bytes) else data.encode())
    found = said_of(source / file, source / "out", "--tokenizer", model, "--from", "conversations")
    assert said in found
    assert ";" in found  # a remedy
    assert not (source / "out" / "dataset.json").exists()


def test_other_columns_are_none_of_a_conversation(source: Path, model: Path) -> None:
    pq.write_table(pa.table({"caption": ["A fox."]}), source / "a.parquet")
    found = said_of(source / "a.parquet", source / "out", "--tokenizer", model, "--from", "conversations")
    assert "a.parquet: has none of the columns messages, conversations, prompt, completion, texts, " in found
    assert found.endswith("; it holds no conversations")


def test_tars_have_their_images_in_them(source: Path, model: Path) -> None:
    trees_of.tars(source)
    found = said_of(source, source.parent / "out", "--tokenizer", model, "--from", "conversations", "--root", source)
    assert found == f"--root {source}: images lie in the tars of {source}; leave it out"


def test_tokenizers_of_models_that_take_no_images(source: Path, tmp_path: Path, model: Path) -> None:
    made, folder = trees_of.texts(source), byte_level(tmp_path / "tokenizer").parent
    arguments = (made.source, source / "out", "--tokenizer", folder)
    assert said_of(*arguments) == (
        f"{folder}: has no preprocessor_config.json and no processor_config.json; pass the folder of a model that takes images"
    )
    config = folder / "preprocessor_config.json"
    config.write_text('{"image_processor_type": "FuyuImageProcessor"}')
    assert f"{config}: is of FuyuImageProcessor, which is not known here; known are " in said_of(*arguments)
    config.write_text((model / "preprocessor_config.json").read_text())
    assert said_of(*arguments) == (
        f"{folder / 'tokenizer.json'}: has no special token '<|image_pad|>', which stands for images; get the model again"
    )


TEMPLATES_WITHOUT: dict[str, tuple[str, str]] = {
    "texts alone": (CHATML, "it writes '<|image_pad|>' 0 times for a message with one image; pass that of a model that takes"),
    "another token": (TEMPLATES["llava"], "it writes '<|image_pad|>' 0 times for a message with one image; pass"),
    "images alone": (
        TEMPLATES["qwen"].replace("{{ part['text'] }}", ""),
        "it leaves out texts beside an image; pass that of a model that takes images, such as the chat_template.jinja beside",
    ),
    "a refusal": (
        "{% if messages[0]['content'] is not string %}{{ raise_exception('only texts') }}{% endif %}" + CHATML,
        "it refuses a message with an image (only texts); pass that of a model that takes images",
    ),
}


@pytest.mark.parametrize("name", mostly_nightly(TEMPLATES_WITHOUT, "texts alone"))
def test_templates_of_models_that_take_no_images(name: str, source: Path, tmp_path: Path, model: Path) -> None:
    made, path = trees_of.messages(source), tmp_path / "t.jinja"
    template, said = TEMPLATES_WITHOUT[name]
    path.write_text(template)
    found = said_of(made.source, source / "out", "--tokenizer", model, "--chat-template", path)
    assert found.startswith(f"--chat-template: {said}")


# -- workers, interruptions and stores ------------------------------------------------------------------


@pytest.mark.nightly
def test_bytes_do_not_depend_on_workers(source: Path, chats: Tokenizing) -> None:
    trees_of.all_in_one(source)
    options: dict[str, Any] = {"form": "conversations", "shard_nbytes": 9_000}
    one, several = (contents(to_tokens(source, chats, source.parent / str(num), num_workers=num, **options)) for num in (1, 3))
    assert one == several


@pytest.mark.nightly
def test_a_conversion_that_is_killed_goes_on(source: Path, tmp_path: Path, model: Path) -> None:
    """Killed as it has made so much, and resumed."""
    trees_of.all_in_one(source)
    arguments = ["--from", "conversations", "--to", "tokens", "--tokenizer", model, "--chat-template", "auto"]
    arguments += ["--shard-size", "9KB", "--workers", "2"]
    assert run_cli("convert", source, tmp_path / "reference", *arguments).returncode == 0
    expected = contents(tmp_path / "reference")
    command, num_killed = cli_command("convert", source, tmp_path / "out", *arguments), 0
    for num_awaited in (1, 6, 12, 20):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            while process.poll() is None and num_done(tmp_path / "out") < num_awaited:
                time.sleep(0.002)
            num_killed += process.poll() is None
            process.kill()
    assert num_killed > 2
    finish_and_compare(command, tmp_path / "out", expected)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with moto_store():
        yield


STORED = {  # what is passed of them
    "messages": "chats.jsonl", "compressed": "chats.jsonl.gz", "tars": "", "cauldron": "data", "texts": "", "mmc4": "mmc4.jsonl",
}  # fmt: skip


@needs_moto
@pytest.mark.nightly
@pytest.mark.parametrize("name", STORED)
def test_conversations_in_a_store(name: str, source: Path, tmp_path: Path, model: Path, chats: Tokenizing, store: None) -> None:
    made = SOURCES[name](source)
    upload(source, "set")
    place = parse_place(f"s3://{BUCKET}/set/{STORED[name]}".rstrip("/"))
    options: dict[str, Any] = {"form": "conversations", "shard_nbytes": 9_000}
    out = to_tokens(place, chats, tmp_path / "out", **options)
    assert_stored(out, made.samples, Reference(model))
    assert to_tokens(place, chats, tmp_path / "out", **options) == out  # nothing has changed


@needs_moto
@pytest.mark.nightly
def test_images_elsewhere_in_a_store(source: Path, tmp_path: Path, plain: Tokenizing, store: None) -> None:
    (source / "lists").mkdir()
    trees_of.texts(source).source.rename(source / "lists" / "texts.jsonl")
    upload(source, "set")
    place = parse_place(f"s3://{BUCKET}/set/lists/texts.jsonl")
    with pytest.raises(MissingDataError, match=r"'wide.jpg'; put texts.jsonl into the folder that the names start from"):
        to_tokens(place, plain, tmp_path / "out", form="conversations")
    with pytest.raises(OptionError, match=r"--root .*: names in a store start from the folder of their file; leave it out"):
        to_tokens(place, plain, tmp_path / "out", form="conversations", root=source)
