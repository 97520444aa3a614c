"""Scenes whose every field can be checked against the image: the red channel is the mask, the green one shows the boxes."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from fixtures import encode
from numpy.typing import NDArray

from converters import ConvertOptions, convert
from datapipe.containers.form import FieldChoice

NUM = 13
HEIGHT, WIDTH = 40, 48
FIELDS = ("image", "label", "seg", "boxes", "twin", "txt", "json", "vector", "blob")
KINDS = {"seg.png": "mask", "boxes.npy": "boxes", "txt": "text", "json": "json"}


def mask_of(number: int) -> NDArray[np.uint8]:
    """(h, w) labels 0 to 4."""
    return np.random.default_rng(number).integers(0, 5, (HEIGHT, WIDTH), np.uint8)


def boxes_of(number: int) -> NDArray[np.float32]:
    """(k, 5) with k of 0 to 3; none overlaps another."""
    rng = np.random.default_rng(100 + number)
    rows = []
    for box in range(number % 4):
        left, top = 2 + 15 * box + rng.integers(0, 4), rng.integers(0, 20)
        rows.append([left, top, left + rng.integers(2, 9), top + rng.integers(2, 15), box])
    return np.array(rows, np.float32).reshape(-1, 5)


def image_of(number: int) -> NDArray[np.uint8]:
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[:, :, 0] = 20 * mask_of(number)
    for left, top, right, bottom, label in boxes_of(number).astype(int).tolist():
        image[top:bottom, left:right, 1] = 50 + label
    image[:, :, 2] = number
    return image


def boxes_seen(image: NDArray[np.uint8]) -> list[list[float]]:
    """The boxes that the green channel of (h, w, 3) shows, by label."""
    found = []
    for value in sorted(set(image[:, :, 1].ravel().tolist()) - {0}):
        rows, columns = np.nonzero(image[:, :, 1] == value)
        found.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1, value - 50])
    return [[float(number) for number in row] for row in found]


def npy(array: NDArray[Any]) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def fields_of(number: int, **instead: bytes) -> dict[str, bytes]:
    """The members of one sample, by suffix; `instead`: others, or without them where empty."""
    members = {
        "png": encode(image_of(number), "PNG"),
        "seg.png": encode(mask_of(number), "PNG"),
        "boxes.npy": npy(boxes_of(number)),
        "twin.png": encode(image_of(number)[:, :, ::-1], "PNG"),
        "txt": f"scene № {number}".encode(),
        "json": json.dumps({"number": number, "tags": ["a"] * (number % 3)}).encode(),
        "vector.npy": npy(np.arange(3, dtype="<i2") + number),
        "blob": bytes([number]) * (number + 1),
        "cls": b"%d" % (number % 3),
    }
    return {suffix: data for suffix, data in (members | instead).items() if data}


def write_tar(path: Path, samples: list[dict[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, sample in enumerate(samples):
            for suffix, data in sample.items():
                info = tarfile.TarInfo(f"{number:04d}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def convert_scenes(
    root: Path, samples: list[dict[str, bytes]] | None = None, *, to: str = "webdataset", unchecked: str = ""
) -> Path:
    """The scenes as a converted dataset. `unchecked`: a suffix whose contents the converter is not to look at."""
    source = write_tar(root / "source" / "scenes.tar", samples or [fields_of(number) for number in range(NUM)])
    kinds = {"boxes.npy": "boxes", "twin.png": "image", "blob": "bytes"} | ({unchecked: "bytes"} if unchecked else {})
    choices = tuple(FieldChoice(suffix, kind) for suffix, kind in kinds.items())
    convert(ConvertOptions(source.parent, root / "set", to=to, shard_nbytes=20_000, num_workers=1, fields=choices))
    if unchecked:
        path = root / "set" / "dataset.json"
        manifest = json.loads(path.read_text())
        for spec in manifest["fields"]:
            spec["kind"] = KINDS[unchecked] if spec["name"] == unchecked.partition(".")[0] else spec["kind"]
        path.write_text(json.dumps({**manifest, "checksum": ""}))
    return root / "set"
