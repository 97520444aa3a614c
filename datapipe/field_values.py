"""Bytes of a field that is no image to its value: masks, arrays, captions, JSON.

Values are numpy arrays, str and what JSON gives. Knows no torch. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from datapipe.errors import DecodeError
from datapipe.manifest import Kind
from datapipe.masks import mask_labels
from datapipe.npy import read_npy_array


def value_of(kind: Kind, data: bytes) -> Any:
    """What the bytes of a field of that kind mean. Raises DecodeError, with the reason, if they mean nothing.

    MASK: (h, w) labels, as `datapipe.masks.mask_labels` gives them. ARRAY: the array of an .npy file. TEXT: str. JSON: what
    the document holds. BYTES: themselves.
    """
    return _VALUES[kind](data)


def _array(data: bytes) -> NDArray[Any]:
    """A read-only view of the bytes."""
    try:
        return read_npy_array(data)
    except DecodeError as exc:
        raise DecodeError(f"array is not a plain .npy file: {exc}") from exc


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise DecodeError(f"text is not UTF-8: {exc}") from exc


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise DecodeError(f"not JSON: {exc}") from exc


_VALUES: dict[Kind, Callable[[bytes], Any]] = {
    Kind.MASK: mask_labels,
    Kind.ARRAY: _array,
    Kind.TEXT: _text,
    Kind.JSON: _json,
    Kind.BYTES: bytes,
}
