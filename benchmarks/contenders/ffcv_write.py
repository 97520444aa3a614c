"""Write an image folder as FFCV's file: `python -m benchmarks.contenders.ffcv_write FOLDER OUT jpg|raw`.

Runs in FFCV's environment. With "jpg" the files' own bytes are stored, so that every contender decodes
the same JPEGs (FFCV's field would encode them anew).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.rgb_image import IMAGE_MODES
from ffcv.types import TYPE_ID_HANDLER
from ffcv.writer import DatasetWriter
from numpy.typing import NDArray
from PIL import Image


class StoredImageField(RGBImageField):  # type: ignore[misc]
    """FFCV's image field, given a path."""

    def encode(self, destination: Any, image: Path, malloc: Callable[[int], tuple[int, NDArray[np.uint8]]]) -> None:
        with Image.open(image) as opened:
            if self.write_mode == "jpg":
                width, height = opened.size
                stored = np.frombuffer(image.read_bytes(), np.uint8)
            else:
                pixels = np.asarray(opened.convert("RGB"))
                (height, width), stored = pixels.shape[:2], pixels.reshape(-1)
        destination["mode"] = IMAGE_MODES[self.write_mode]
        destination["height"], destination["width"] = height, width
        destination["data_ptr"], storage = malloc(stored.nbytes)
        storage[:] = stored


class Folder:
    """(path, label) by position."""

    def __init__(self, root: Path) -> None:
        names = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.samples = [(path, label) for label, name in enumerate(names) for path in sorted((root / name).iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> tuple[Path, int]:
        return self.samples[position]


def main(folder: str, out: str, mode: str) -> None:
    type_id = next(number for number, field in TYPE_ID_HANDLER.items() if field is RGBImageField)
    TYPE_ID_HANDLER[type_id] = StoredImageField  # which stores images as that does, so that any reader knows them
    fields = {"image": StoredImageField(write_mode=mode), "label": IntField()}
    DatasetWriter(out, fields, num_workers=2).from_indexed_dataset(Folder(Path(folder)), shuffle_indices=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
