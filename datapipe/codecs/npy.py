"""Parse `.npy` files from untrusted bytes, and make them. Never unpickles."""

from __future__ import annotations

import io
import math
import tokenize
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import DecodeError

NPY_MAGIC = b"\x93NUMPY"
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_NUM_TRIES = 10
_ERRORS = (ValueError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError, tokenize.TokenError)


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """The header of a `.npy` file, which describes the values after it."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    start: int  # of the values, in bytes from the beginning

    @property
    def nbytes(self) -> int:
        """The size of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(data: bytes) -> NpyHeader:
    """Return the header of a `.npy` file of plain values. The caller checks that the values are complete.

    Raises DecodeError for anything else, in particular Python objects: reading them could run code.
    """
    if data[:6] != NPY_MAGIC:
        shown = "empty file" if not data else f"{len(data)} bytes starting with {data[:8]!r}"
        raise DecodeError(f"not a .npy file: {shown}")
    try:
        version = np.lib.format.read_magic(io.BytesIO(data))
        if version not in _READERS:
            raise DecodeError(f".npy of version {version[0]}.{version[1]}, expected 1.0 or 2.0; save it again")
        num_length = 2 if version == (1, 0) else 4
        start = 8 + num_length + int.from_bytes(data[8 : 8 + num_length], "little")
        return _parse(version, data[8:start])
    except DecodeError:
        raise
    except _ERRORS as exc:
        raise DecodeError(f".npy header does not parse: {str(exc)[:80]}") from exc


@lru_cache(maxsize=256)  # the files of one field have few headers
def _parse(version: tuple[int, int], header: bytes) -> NpyHeader:
    """Return the header after the magic bytes, from the field of its length on. Raises one of `_ERRORS`, or DecodeError.

    Before Python 3.13, threads that parse at the same time may disturb each other's count of nested brackets, which ends in a
    SystemError ("recursion depth mismatch"); so parsing is repeated.
    """
    for number in range(_NUM_TRIES):
        stream = io.BytesIO(header)
        try:
            shape, is_fortran, dtype = _READERS[version](stream)
            break
        except SystemError:
            if number == _NUM_TRIES - 1:
                raise
    if dtype.hasobject:
        raise DecodeError("holds Python objects (pickled), which are never loaded; save it as an array of numbers or texts")
    if any(extent < 0 for extent in shape):
        raise DecodeError(f".npy header does not parse: shape {shape}")
    return NpyHeader(shape, is_fortran, dtype, 8 + stream.tell())


def check_npy(data: bytes) -> NpyHeader:
    """Return the header of a `.npy` file that holds all of its values and nothing else. Raises DecodeError otherwise."""
    header = read_npy_header(data)
    found, what = len(data) - header.start, f".npy of {header.dtype} {header.shape}"
    if found < header.nbytes:
        raise DecodeError(f"{what} is cut off: {found} bytes of values, expected {header.nbytes}")
    if found > header.nbytes:
        raise DecodeError(f"{what} has {found - header.nbytes} bytes too many after its values")
    return header


def read_npy_array(data: bytes) -> NDArray[Any]:
    """Return the array of a `.npy` file, a read-only view of the bytes. Raises DecodeError as `check_npy` does."""
    header = check_npy(data)
    if not header.nbytes:
        return np.empty(header.shape, header.dtype)
    values = np.frombuffer(data, header.dtype, offset=header.start)
    return values.reshape(header.shape, order="F" if header.is_fortran else "C")


@lru_cache(maxsize=256)
def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header of a version 1 `.npy` file of such values in C order."""
    sink = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(sink, {"descr": descr, "fortran_order": False, "shape": shape})
    return sink.getvalue()


def npy_bytes(array: NDArray[Any]) -> bytes:
    """Return the array as a `.npy` file."""
    return npy_header(array.shape, array.dtype) + array.tobytes()
