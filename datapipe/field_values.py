"""Bytes of a field that is no image to its value: masks, arrays, captions, JSON.

Values are numpy arrays, str and what JSON gives. Knows no torch. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from datapipe.errors import DecodeError
from datapipe.manifest import Kind
from datapipe.npy import NPY_MAGIC, read_npy_header
from datapipe.probe import probe

_PILLOW_ERRORS = (
    UnidentifiedImageError, OSError, SyntaxError, ValueError, KeyError, TypeError, IndexError, EOFError, OverflowError,
    struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip


def value_of(kind: Kind, data: bytes) -> Any:
    """What the bytes of a field of that kind mean. Raises DecodeError, with the reason, if they mean nothing.

    MASK: (h, w) labels, uint8 (a palette's indices, not its colours) or int32 where they are stored in 16 bits, or
    (h, w, c) as stored. ARRAY: the array of an .npy file. TEXT: str. JSON: what the document holds. BYTES: themselves.
    """
    return _VALUES[kind](data)


def _mask(data: bytes) -> NDArray[Any]:
    if data[:6] == NPY_MAGIC:
        return _array(data)
    probe(data)  # a header that lies about its size, or a bomb, is refused before Pillow allocates
    try:
        with Image.open(io.BytesIO(data)) as image:
            labels = np.asarray(image)
    except _PILLOW_ERRORS as exc:
        raise DecodeError(f"mask does not decode: {exc}") from exc
    if labels.dtype == np.bool_:
        return labels.astype(np.uint8)
    if labels.dtype.kind not in "iu":
        raise DecodeError(f"mask holds {labels.dtype} values; labels are whole numbers")
    return labels if labels.dtype == np.uint8 else labels.astype(np.int32)


def _array(data: bytes) -> NDArray[Any]:
    """A read-only view of the bytes."""
    try:
        header = read_npy_header(data)
    except DecodeError as exc:
        raise DecodeError(f"array is not a plain .npy file: {exc}") from exc
    found, shape = len(data) - header.start, header.shape
    if found != header.nbytes:
        raise DecodeError(f"array is not a plain .npy file: {found} bytes for {header.dtype} of shape {shape}")
    if not found:
        return np.empty(shape, header.dtype)
    return np.frombuffer(data, header.dtype, offset=header.start).reshape(shape, order="F" if header.is_fortran else "C")


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
    Kind.MASK: _mask,
    Kind.ARRAY: _array,
    Kind.TEXT: _text,
    Kind.JSON: _json,
    Kind.BYTES: bytes,
}
