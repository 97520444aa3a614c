"""Small sources of every form, each with what must come out of it."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from trees import encoded_image

NUM = 12


@dataclass(frozen=True)
class Made:
    """A source, and its samples in the order of their ids."""

    source: Path
    samples: list[dict[str, bytes]]  # bytes by field
    labels: list[int] | None = None
    classes: tuple[str, ...] | None = None
    kinds: dict[str, str] = field(default_factory=dict)  # of further fields
    options: dict[str, Any] = field(default_factory=dict)  # of ConvertOptions


def size_of(number: int) -> tuple[int, int]:
    """(height, width), another one for each sample."""
    return 20 + number, 30


def image(number: int, form: str = "JPEG") -> bytes:
    return encoded_image(number, size=size_of(number), form=form)


def mask(number: int, size: tuple[int, int] | None = None) -> bytes:
    """A palette PNG of labels 0 to 3."""
    labels = np.random.default_rng(number).integers(0, 4, size or size_of(number), dtype=np.uint8)
    picture = Image.fromarray(labels).convert("P")
    picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    sink = io.BytesIO()
    picture.save(sink, "PNG")
    return sink.getvalue()


def npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def image_folder(root: Path) -> Made:
    classes = ("a", "b", "c")
    for number in range(NUM):
        put(root / classes[number // 4] / f"{number:02d}.jpg", image(number))
    return Made(root, [{"image": image(number)} for number in range(NUM)], [number // 4 for number in range(NUM)], classes)


def flat_folder(root: Path) -> Made:
    from datapipe.containers.form import ClassFrom

    for number in range(NUM):
        put(root / f"{number:02d}.png", image(number, "PNG"))
    options = {"class_from": ClassFrom.NONE}
    return Made(root, [{"image": image(number, "PNG")} for number in range(NUM)], options=options)


def manifest(root: Path) -> Made:
    rows, samples, names = [], [], ("dog", "cat", "ant")
    for number in range(NUM):
        put(root / "files" / f"{number}.jpg", image(number))
        put(root / "files" / f"{number}.png", mask(number))
        text = f'said "{number}",\nthen é'
        score = "" if number == 3 else f"{number}.50"
        rows.append([f"files/{number}.jpg", f"files/{number}.png", names[number % 3], text, str(number - 5), score])
        samples.append(
            {
                "image": image(number),
                "mask": mask(number),
                "caption": text.encode(),
                "year": str(number - 5).encode(),
                "score": score.encode() or b"null",
            }
        )
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\r\n")
    writer.writerows([["path", "mask_file", "label", "caption", "Year", "score"], *rows])
    source = put(root / "list.csv", "\ufeff" + sink.getvalue())
    kinds = {"mask": "mask", "caption": "text", "year": "json", "score": "json"}
    return Made(source, samples, [(2, 1, 0)[number % 3] for number in range(NUM)], ("ant", "cat", "dog"), kinds)


def json_lines(root: Path) -> Made:
    lines, samples = [], []
    for number in range(NUM):
        put(root / "photos" / f"{number}.jpg", image(number))
        value = {"tags": ["x", number], "ok": None}
        box = [[1, 2, 3.5, 4, number % 2]] if number % 3 else []
        lines.append(json.dumps({"file_name": f"{number}.jpg", "label": number, "meta": value, "regions": box}))
        boxes = npy(np.array(box, np.float32).reshape(-1, 5))
        samples.append({"image": image(number), "meta": json.dumps(value).encode(), "regions": boxes})
    source = put(root / "list.jsonl", "\n".join(lines))
    from datapipe.containers.form import FieldChoice

    options = {"root": root / "photos", "fields": (FieldChoice("regions", "boxes"),)}
    return Made(source, samples, list(range(NUM)), None, {"meta": "json", "regions": "boxes"}, options)


def pairs(root: Path) -> Made:
    samples = []
    for number in range(NUM):
        put(root / "imgs" / "day" / f"{number:02d}.jpg", image(number))
        put(root / "masks" / "day" / f"{number:02d}_mask.png", mask(number))
        put(root / "captions" / "day" / f"{number:02d}.txt", f"number {number}")
        samples.append({"image": image(number), "mask": mask(number), "captions": f"number {number}".encode()})
    return Made(root, samples, kinds={"mask": "mask", "captions": "text"})


def coco(root: Path) -> Made:
    images, annotations, samples = [], [], []
    for number in reversed(range(NUM)):
        put(root / "val" / f"{number}.jpg", image(number))
        height, width = size_of(number)
        images.append({"id": 100 + number, "file_name": f"{number}.jpg", "height": height, "width": width})
    for number in range(NUM):
        rows = []
        for box in range(number % 3):  # none, one or two
            annotations.append(
                {"id": 10 * number + box, "image_id": 100 + number, "bbox": [box, 2.5, 3, 4.25], "category_id": 7 - box}
            )
            rows.append([box, 2.5, box + 3, 6.75, 1 - box])
        boxes = npy(np.array(rows, np.float32).reshape(-1, 5))
        samples.append({"image": image(number), "boxes": boxes, "image_id": str(100 + number).encode()})
    categories = [{"id": 7, "name": "zebra"}, {"id": 6, "name": "yak"}]
    value = {"info": {"x": [1, {"y": 2}]}, "annotations": annotations, "images": images, "categories": categories}
    source = put(root / "instances.json", json.dumps(value))
    kinds = {"boxes": "boxes", "image_id": "json"}
    return Made(source, samples, None, ("yak", "zebra"), kinds, {"root": root / "val"})


def tars(root: Path) -> Made:
    samples = []
    root.mkdir(parents=True)
    for shard in range(2):
        with tarfile.open(root / f"old-{shard}.tar", "w") as tar:
            for number in range(shard * 6, shard * 6 + 6):
                meta = json.dumps({"n": number}).encode()
                members = {
                    "jpg": image(number), "seg.png": mask(number), "cls": b"%d\n" % (number % 3), "json": meta,
                    "vector.npy": npy(np.arange(number)), "pyd": b"\x80\x04never",
                }  # fmt: skip
                for suffix, data in members.items():
                    info = tarfile.TarInfo(f"../deep/key {number}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                samples.append(
                    {
                        "image": image(number),
                        "seg": mask(number),
                        "json": meta,
                        "vector": npy(np.arange(number)),
                        "pyd": b"\x80\x04never",
                    }
                )
    kinds = {"seg": "mask", "json": "json", "vector": "array", "pyd": "bytes"}
    return Made(root, samples, [number % 3 for number in range(NUM)], None, kinds)


def arrays(root: Path) -> Made:
    samples = []
    for number in range(NUM):
        array = npy(np.full((number * 40, 3), number, ("<i2", ">f8", "?")[number % 3]))
        put(root / "xy"[number // 6] / f"{number:02d}.npy", array)
        samples.append({"array": array})
    return Made(root, samples, [number // 6 for number in range(NUM)], ("x", "y"), {"array": "array"})


SOURCES: dict[str, Callable[[Path], Made]] = {
    "image-folder": image_folder,
    "image-folder, no classes": flat_folder,
    "manifest": manifest,
    "manifest, jsonl": json_lines,
    "pairs": pairs,
    "coco": coco,
    "tar": tars,
    "npy": arrays,
}
