"""Arrays in `.npy` files: looked at, never unpickled."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import DecodeError
from datapipe.npy import read_npy_header


def check_array(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a whole `.npy` file of plain values. Raises DecodeError for anything else."""
    header = read_npy_header(data)
    found = len(data) - header.start
    if found < header.nbytes:
        raise DecodeError(f".npy of {header.dtype} {header.shape} is cut off: {found} bytes of values, expected {header.nbytes}")
    return header.shape, header.dtype


def read_array(data: bytes) -> NDArray[Any]:
    """The array in a `.npy` file. Raises DecodeError as `check_array` does."""
    check_array(data)
    array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array
