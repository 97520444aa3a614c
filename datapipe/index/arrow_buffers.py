"""Arrow arrays that are made of buffers, and read as buffers.

`pa.array`, and `to_numpy` of its result, import pandas if that is installed: 50 MB and a third of a second for each process.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def array_of(values: NDArray[Any]) -> pa.Array:
    """Return numbers as an Arrow array."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def strings_of(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Return byte strings, or encoded texts, as an Arrow array of this type."""
    is_large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    ends = np.array([0, *itertools.accumulate(map(len, values))], np.int64 if is_large else np.int32)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def lists_of(lengths: Sequence[int], values: pa.Array) -> pa.Array:
    """Return lists of these lengths, whose values follow each other."""
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    kind = pa.large_list(values.type)
    return pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(ends)], children=[values])


def values_of(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """Return the numbers of an array, of that dtype and without nulls, where they lie."""
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * np.dtype(dtype).itemsize)
