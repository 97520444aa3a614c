"""Arrays in `.npy` files: looked at, never unpickled."""

from __future__ import annotations

import io
import math
import tokenize
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import DecodeError

_MAGIC = b"\x93NUMPY"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_array(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a whole `.npy` file of plain values.

    Raises DecodeError for anything else, Python objects in particular: reading them could run code.
    """
    if data[:6] != _MAGIC:
        shown = "empty file" if not data else f"{len(data)} bytes starting with {data[:8]!r}"
        raise DecodeError(f"not a .npy file: {shown}")
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise DecodeError(f".npy of version {version[0]}.{version[1]}, expected 1.0 or 2.0; save it again")
        shape, _, dtype = _HEADERS[version](stream)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError) as exc:
        if isinstance(exc, DecodeError):
            raise
        raise DecodeError(f".npy header does not parse: {str(exc)[:80]}") from exc
    if dtype.hasobject:
        raise DecodeError("holds Python objects (pickled), which are never loaded; save it as an array of numbers or texts")
    expected, found = math.prod(shape) * dtype.itemsize, len(data) - stream.tell()
    if found < expected:
        raise DecodeError(f".npy of {dtype} {shape} is cut off: {found} bytes of values, expected {expected}")
    return shape, dtype


def read_array(data: bytes) -> NDArray[Any]:
    """The array in a `.npy` file. Raises DecodeError as `check_array` does."""
    check_array(data)
    array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array
