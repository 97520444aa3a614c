"""Boxes in their stored form, and their parsing from JSON.

Boxes are stored in every container as a `.npy` file (version 1.0, little-endian, C order) of float32 (n, 5): x1, y1, x2, y2,
label. Coordinates are pixels of the stored image, from the upper left corner of its upper left pixel, x to the right and y down.
A box covers x1 <= x < x2 and y1 <= y < y2, so its width is x2 - x1, and pixel (row, column) covers (column, row, column + 1,
row + 1). Labels are whole numbers: positions in the dataset's classes. Float32 is exact for those below 2^24. An image without
boxes has (0, 5).
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.npy import npy_bytes, read_npy_array
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


def store_boxes(boxes: NDArray[np.float64]) -> bytes:
    """Return (n, 5) boxes as a `.npy` file of float32."""
    return npy_bytes(boxes.astype("<f4"))
