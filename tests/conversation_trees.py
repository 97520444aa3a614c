"""Conversations and documents with images in the forms that people publish, and what must come out of each."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fixtures import encode, picture
from PIL import Image


class Picture(NamedTuple):
    """A file of an image, its size as it is seen, and how it has to be turned for that."""

    data: bytes
    width: int
    height: int
    orientation: int = 1


def held(orientation: int) -> Image.Exif:
    """EXIF of a camera that was held so."""
    exif = Image.Exif()
    exif[0x112] = orientation
    return exif


def _moving() -> bytes:
    sink = io.BytesIO()
    first, *others = (Image.fromarray(picture(number, 30, 44)) for number in range(3))
    first.save(sink, "GIF", save_all=True, append_images=others)
    return sink.getvalue()


PICTURES = {
    "wide.jpg": Picture(encode(picture(0, 60, 120)), 120, 60),
    "turned.jpg": Picture(encode(picture(1, 40, 72), exif=held(6)), 40, 72, 6),
    "moving.gif": Picture(_moving(), 44, 30),
    "dot.png": Picture(encode(picture(2, 1, 1), "PNG"), 1, 1),
    "cmyk.jpg": Picture(encode(picture(3, 64, 64), mode="CMYK"), 64, 64),
    "deep.png": Picture(encode(picture(4, 90, 31)[:, :, 0].astype(np.uint16) * 257, "PNG"), 31, 90),
    "tall.png": Picture(encode(picture(5, 180, 20), "PNG"), 20, 180),
}


@dataclass(frozen=True)
class Sample:
    """A conversation, or a document: texts, and names of pictures in their places.

    `parts`: of each message, the user's first, then the assistant's, and so on; of a document there is one list.
    """

    parts: Sequence[Sequence[str]]
    is_document: bool = False

    @property
    def pictures(self) -> list[str]:
        return [part for parts in self.parts for part in parts if part in PICTURES]

    @property
    def answers(self) -> list[str]:
        return [part for parts in self.parts[1::2] for part in parts]

    @property
    def content(self) -> dict[str, Any]:
        """As templates take it, and as `records.Record` has it."""
        if self.is_document:
            return {"document": [None if part in PICTURES else part for part in self.parts[0]]}
        return {"messages": self.messages(lambda name: {"type": "image"})}

    def messages(self, write: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
        """As messages of parts, in which `write` writes a picture."""
        contents = [[write(one) if one in PICTURES else {"type": "text", "text": one} for one in parts] for parts in self.parts]
        return [{"role": ("user", "assistant")[turn % 2], "content": one} for turn, one in enumerate(contents)]

    @property
    def turns(self) -> list[dict[str, str]]:
        """As ShareGPT's messages."""
        texts = map(with_places, self.parts)
        return [{"from": ("human", "gpt")[turn % 2], "value": text} for turn, text in enumerate(texts)]


def with_places(parts: Sequence[str]) -> str:
    """As a text with `<image>` in the place of each picture."""
    return "\n".join("<image>" if part in PICTURES else part for part in parts)


def without_places(parts: Sequence[str]) -> str:
    return "\n".join(part for part in parts if part not in PICTURES)


MIXED = Sample([["Look:", "tall.png", "that is one,", "dot.png"], ["I see."], ["moving.gif", "And that?"], ["Three."]])
PLAIN = [  # whose images come first, as they do in forms without places for them
    Sample([["wide.jpg", "What is the brown fox?"], ["A dog that waits."]]),
    Sample([["Who waits?"], ["A GPU."], ["For what?"], ["For money; naïve café, 東京."]]),
    Sample([["turned.jpg", "moving.gif", "Which of them jumps?"], ["The second."], ["And the first?"], ["It looks up."]]),
    Sample([["dot.png", "What is it?"], ["One pixel."]]),
    Sample([["cmyk.jpg", "deep.png", "wide.jpg", "Name them."], ["The rest of it."]]),
]
CHATS = [*PLAIN, MIXED]
NO_IMAGE = Sample([["No image at all."]], is_document=True)
DOCUMENTS = [
    Sample([["The quick brown fox.", "wide.jpg", "It jumps over ", "turned.jpg"]], is_document=True),
    NO_IMAGE,
    Sample([["moving.gif", "dot.png", "deep.png", "and the lazy dog."]], is_document=True),
]


@dataclass(frozen=True)
class Made:
    """A source, and its samples in the order of their ids."""

    source: Path
    samples: list[Sample]
    options: dict[str, Any] = field(default_factory=dict)  # of ConvertOptions


def put_pictures(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, one in PICTURES.items():
        (root / name).write_bytes(one.data)
    return root


def put_lines(path: Path, records: Sequence[Any]) -> Path:
    data = "".join(json.dumps(one) + "\n" for one in records).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def put_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def in_base64(name: str) -> str:
    return base64.b64encode(PICTURES[name].data).decode()


def struct(name: str) -> dict[str, Any]:
    """As Hugging Face's `datasets` stores an image."""
    return {"bytes": PICTURES[name].data, "path": name}


def _of_llava(sample: Sample, number: int) -> dict[str, Any]:
    """One image is a name, several are a list of them."""
    names = [f"train/{name}" for name in sample.pictures]
    images = {"image": names[0] if len(names) == 1 else names} if names else {}
    return {"id": f"{number:012d}", **images, "conversations": sample.turns}


def llava(root: Path) -> Made:
    put_pictures(root / "images" / "train")
    (root / "llava.json").write_text(json.dumps([_of_llava(one, number) for number, one in enumerate(CHATS)], indent=2))
    return Made(root / "llava.json", CHATS, {"root": root / "images"})


def llava_and_a_zip(root: Path) -> Made:
    with zipfile.ZipFile(root / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, one in PICTURES.items():
            archive.writestr(f"all/train/{name}", one.data)
    (root / "llava.json").write_text("\ufeff" + json.dumps([_of_llava(one, number) for number, one in enumerate(CHATS)]))
    return Made(root / "llava.json", CHATS, {"root": root / "images.zip" / "all"})


def _of_trl(sample: Sample) -> dict[str, Any]:
    """Parts, and a list of images beside the messages."""
    return sample.content | {"images": [f"images/{name}" for name in sample.pictures]}


def messages(root: Path) -> Made:
    put_pictures(root / "images")
    return Made(put_lines(root / "chats.jsonl", list(map(_of_trl, CHATS))), CHATS)


def compressed(root: Path) -> Made:
    put_pictures(root / "images")
    return Made(put_lines(root / "chats.jsonl.gz", list(map(_of_trl, CHATS))), CHATS, {"form": "conversations"})


def prompts(root: Path) -> Made:
    """TRL's of one turn, without places for images."""
    put_pictures(root)
    chats = [one for one in PLAIN if len(one.parts) == 2]
    records = [{"prompt": without_places(one.parts[0]), "completion": one.answers[0], "images": one.pictures} for one in chats]
    return Made(put_lines(root / "prompts.ndjson", records), chats)


def openai(root: Path) -> Made:
    """Images in the messages themselves."""
    records = [
        {
            "messages": one.messages(
                lambda name: {"type": "image_url", "image_url": {"url": f"data:image/x;base64,{in_base64(name)}"}}
            )
        }
        for one in CHATS
    ]
    return Made(put_lines(root / "openai.jsonl", records), CHATS)


def parquet(root: Path) -> Made:
    columns = {
        "id": range(len(CHATS)),
        "messages": [one.content["messages"] for one in CHATS],
        "images": [list(map(struct, one.pictures)) for one in CHATS],
    }
    pq.write_table(pa.table(columns), root / "messages.parquet", row_group_size=4)
    return Made(root / "messages.parquet", CHATS)


def parquet_of_one_image(root: Path) -> Made:
    """A struct a row, which is null where there is no image."""
    chats = [one for one in PLAIN if len(one.pictures) < 2]
    images = [struct(one.pictures[0]) if one.pictures else None for one in chats]
    pq.write_table(pa.table({"image": images, "conversations": [one.turns for one in chats]}), root / "one.parquet")
    return Made(root / "one.parquet", chats)


def cauldron(root: Path) -> Made:
    """Two files of rows in a folder."""
    texts = [
        [
            {"user": without_places(question), "assistant": answer[0], "source": "x"}
            for question, answer in zip(one.parts[::2], one.parts[1::2], strict=True)
        ]
        for one in PLAIN
    ]
    images = [list(map(struct, one.pictures)) for one in PLAIN]
    (root / "data").mkdir()
    for number, some in enumerate((slice(3), slice(3, None))):
        pq.write_table(pa.table({"images": images[some], "texts": texts[some]}), root / "data" / f"train-{number}.parquet")
    return Made(root / "data", PLAIN)


def tars(root: Path) -> Made:
    """WebDataset's: the images of a key come as their numbers say, 9 before 10, whatever their order in the tar."""
    for number, some in enumerate((CHATS[:3], CHATS[3:])):
        members: list[tuple[str, bytes]] = []
        for place, sample in enumerate(some):
            suffixes = [f"{order}.{name.rpartition('.')[2]}" for order, name in enumerate(sample.pictures, 9)]
            files = {suffix: PICTURES[name].data for suffix, name in zip(suffixes, sample.pictures, strict=True)}
            files["json"] = json.dumps({"conversations": sample.turns}).encode()
            members += [(f"part/{place:04d}.{suffix}", data) for suffix, data in sorted(files.items())]
        put_tar(root / f"train-{number}.tar", members)
    return Made(root, CHATS, {"form": "conversations"})


def obelics(root: Path) -> Made:
    columns = {
        "images": [[struct(part) if part in PICTURES else None for part in one.parts[0]] for one in DOCUMENTS],
        "texts": [[None if part in PICTURES else part for part in one.parts[0]] for one in DOCUMENTS],
        "metadata": ["[]"] * len(DOCUMENTS),
    }
    pq.write_table(pa.table(columns), root / "obelics.parquet")
    return Made(root / "obelics.parquet", DOCUMENTS)


def mmc4(root: Path) -> Made:
    """Images come before the texts that they match, in the order of these."""
    put_pictures(root)
    images = [
        {"image_name": "wide.jpg", "matched_text_index": 1},
        {"image_name": "absent.png", "image_base64": in_base64("dot.png"), "matched_text_index": 0},
        {"image_name": "turned.jpg", "raw_url": "http://x/turned.jpg", "matched_text_index": 1},
    ]
    records = [
        {"text_list": ["The quick brown fox.", "It jumps."], "image_info": images},
        {"text_list": ["No image at all."], "image_info": []},
    ]
    document = Sample([["dot.png", "The quick brown fox. ", "wide.jpg", "turned.jpg", "It jumps."]], is_document=True)
    return Made(put_lines(root / "mmc4.jsonl", records), [document, NO_IMAGE])


def texts(root: Path) -> Made:
    put_pictures(root)
    records = [{"text": with_places(one.parts[0]), "images": one.pictures} for one in DOCUMENTS]
    return Made(put_lines(root / "texts.jsonl", records), DOCUMENTS)


SOURCES: dict[str, Callable[[Path], Made]] = {
    "llava": llava,
    "llava and a zip": llava_and_a_zip,
    "compressed": compressed,
    "messages": messages,
    "prompts": prompts,
    "openai": openai,
    "parquet": parquet,
    "parquet of one image": parquet_of_one_image,
    "cauldron": cauldron,
    "tars": tars,
    "obelics": obelics,
    "mmc4": mmc4,
    "texts": texts,
}


def all_in_one(root: Path) -> Made:
    """A folder of nearly all of them, whose files come by name, those of the folder itself first."""
    in_order = (
        messages, compressed, parquet, mmc4, obelics, parquet_of_one_image, openai, prompts, texts, tars, cauldron,
    )  # fmt: skip
    return Made(root, [sample for make in in_order for sample in make(root).samples])
