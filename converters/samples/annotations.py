"""Masks and boxes of a source, checked, and resized with their image.

Labels of masks are never mixed, and their storage is lossless. Boxes are stored in every container as a `.npy` file (version
1.0, little-endian, C order) of float32 (n, 5): x1, y1, x2, y2, label. Coordinates are pixels of the stored image, from the upper
left corner of its upper left pixel, x to the right and y down. A box covers x1 <= x < x2 and y1 <= y < y2, so its width is
x2 - x1, and pixel (row, column) covers (column, row, column + 1, row + 1). Labels are whole numbers: positions in the dataset's
classes. Float32 is exact for those below 2^24. An image without boxes has (0, 5).
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from datapipe.codecs.masks import nearest_sources, open_mask
from datapipe.codecs.npy import check_npy, read_npy_array
from datapipe.codecs.probe import encoding_of, probe
from datapipe.errors import DecodeError

MAX_LABEL = 1 << 24  # from here on float32 is not exact
_SHAPE = "expected rows of [x1, y1, x2, y2, label]"


def parse_boxes(text: str) -> bytes:
    """Return JSON rows in stored form. Raises DecodeError for anything that is not boxes."""
    try:
        rows: Any = json.loads(text)
        table = np.array(rows, np.float64).reshape(len(rows), -1) if rows else np.empty((0, 5), np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise DecodeError(f"{text[:40]!r} is not a list of boxes, {_SHAPE}") from exc
    return store_boxes(checked_boxes(table))


def load_boxes(data: bytes) -> NDArray[np.float64]:
    """Return (n, 5) boxes of a stored field. Raises DecodeError for anything that is not boxes."""
    return checked_boxes(read_npy_array(data))


def checked_boxes(table: NDArray[Any]) -> NDArray[np.float64]:
    """Return the table as boxes; raises DecodeError if it is not boxes."""
    if table.dtype.kind not in "iuf" or table.ndim != 2 or table.shape[1] != 5:
        raise DecodeError(f"an array of {table.dtype} {table.shape} is not a list of boxes, {_SHAPE}")
    boxes = table.astype(np.float64)
    if not np.isfinite(boxes).all():
        raise DecodeError("boxes have coordinates that are not finite numbers")
    if (boxes[:, 2:4] < boxes[:, :2]).any():
        first = boxes[(boxes[:, 2:4] < boxes[:, :2]).any(axis=1)][0, :4].tolist()
        raise DecodeError(f"the box {first} ends before it begins, {_SHAPE}")
    labels = boxes[:, 4]
    if (labels != np.floor(labels)).any() or (labels < 0).any() or (labels >= MAX_LABEL).any():
        raise DecodeError(f"labels of boxes are not whole numbers from 0 to {MAX_LABEL - 1}")
    return boxes


def scale_boxes(boxes: NDArray[np.float64], *, height: float, width: float) -> NDArray[np.float64]:
    """Return the boxes after the image's height and width are multiplied by these factors."""
    scaled: NDArray[np.float64] = boxes * np.array([width, height, width, height, 1.0])
    return scaled


def store_boxes(boxes: NDArray[np.float64]) -> bytes:
    """Return (n, 5) boxes as a `.npy` file of float32."""
    sink = io.BytesIO()
    np.lib.format.write_array(sink, np.ascontiguousarray(boxes, "<f4"), version=(1, 0), allow_pickle=False)
    return sink.getvalue()


_MODES = ("1", "L", "P", "I;16", "LA", "RGB", "RGBA")  # supported by PNG and numpy


def mask_size(data: bytes) -> tuple[str, tuple[int, int]]:
    """Return (encoding, (height, width)) of a mask: any image, or a `.npy` of (height, width) whole numbers.

    Raises DecodeError for any other or truncated data.
    """
    if encoding_of(data) == "npy":
        header = check_npy(data)
        if len(header.shape) != 2 or header.dtype.kind not in "biu":
            raise DecodeError(f"an array of {header.dtype} {header.shape} is not a mask, expected (height, width) whole numbers")
        return "npy", (header.shape[0], header.shape[1])
    image = probe(data)
    if not image.complete:
        raise DecodeError(f"{image.encoding} of {len(data)} bytes is truncated: its end marker is missing")
    return image.encoding, (image.height, image.width)


def resize_mask(data: bytes, size: tuple[int, int]) -> tuple[str, bytes]:
    """Return (encoding, bytes) of the mask at (height, width); `datapipe.codecs.masks` says which source pixel each is.

    An image becomes a PNG of the same mode, palette included; an array stays an array. Raises DecodeError.
    """
    sink = io.BytesIO()
    if encoding_of(data) == "npy":
        array = read_npy_array(data)
        rows, columns = (nearest_sources(have, want) for have, want in zip(array.shape, size, strict=True))
        np.lib.format.write_array(sink, np.ascontiguousarray(array[rows][:, columns]), version=(1, 0), allow_pickle=False)
        return "npy", sink.getvalue()
    image = open_mask(data)
    if image.mode not in _MODES:
        raise DecodeError(f"a mask of mode {image.mode} cannot be stored as PNG; convert it to one of {', '.join(_MODES)}")
    _resized(image, size).save(sink, "PNG")
    return "png", sink.getvalue()


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    rows, columns = nearest_sources(image.height, size[0]), nearest_sources(image.width, size[1])
    resized = Image.fromarray(np.ascontiguousarray(np.asarray(image)[rows][:, columns]))
    if image.mode == "P":
        resized.putpalette(image.getpalette() or [])
    if "transparency" in image.info:
        resized.info["transparency"] = image.info["transparency"]
    return resized
