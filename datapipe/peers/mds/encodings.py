"""Parse the encodings of MDS columns.

Numbers, such as `int` and `float32`, have a fixed size; so has `ndarray:DTYPE:SHAPE`. Of arrays that lack one of these each value
begins with what its column does not say: a byte for the dtype, a byte of which the upper six bits are the number of dimensions
and the lower two the size of each (1, 2, 4 or 8 bytes), and these. All numbers are little-endian
(streaming/base/format/mds/encodings.py).
"""

from __future__ import annotations

import math

import numpy as np

from datapipe.codecs.field_values import FieldKind
from datapipe.errors import FormatError
from datapipe.peers.packed_fields import BYTES, ENCODED, MAX_DIMENSIONS, PIXELS, TEXT, ReadHead, StoredAs, number_of, unread

_NUMBERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_LIST = unread("a list of images")
_STORED = {
    "jpeg": ENCODED,
    "png": ENCODED,
    "pil": PIXELS,
    "str": TEXT,
    "str_decimal": TEXT,
    "str_int": StoredAs(FieldKind.JSON, is_digits=True),
    "str_float": StoredAs(FieldKind.JSON),
    "json": StoredAs(FieldKind.JSON),
    "bytes": BYTES,
    "int": number_of("int64"),
    **{name: number_of(name) for name in _NUMBERS},
    "pkl": unread("pickled, and reading it could run code"),
    **dict.fromkeys(("jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]"), _LIST),
}
_DTYPES = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8", 65: "<i8", 66: "<f8",
}  # fmt: skip


def parse_encoding(text: str, where: str) -> StoredAs:
    """Return what an encoding means, such as `jpeg` or `ndarray:uint8:3,4`. Raises FormatError for no dtype, or no shape."""
    if text in _STORED:
        return _STORED[text]
    name, *arguments = text.split(":")
    if name != "ndarray" or len(arguments) > 2:
        return unread(f"of the encoding {text!r:.40}, which is not known")
    try:
        dtype = number_of(arguments[0]).number if arguments and arguments[0] in _NUMBERS else None
        shape = tuple(int(extent) for extent in arguments[1].split(",")) if len(arguments) > 1 else None
    except ValueError:
        dtype, shape = None, (-1,)
    is_wrong = (arguments and dtype is None) or (shape is not None and (min(shape) < 1 or math.prod(shape) >= 1 << 32))
    if is_wrong or len(shape or ()) > MAX_DIMENSIONS:
        raise FormatError(f"{where}: the encoding {text!r:.60} has no dtype, or no shape, of numpy's; write the shard again")
    if dtype is not None and shape is not None:
        return StoredAs(FieldKind.ARRAY, number=dtype, shape=shape)
    return StoredAs(FieldKind.ARRAY, read_head=_array_head(dtype), head_nbytes=2 + 8 * MAX_DIMENSIONS)


def _array_head(known: np.dtype[np.generic] | None) -> ReadHead:
    """Return what reads the head of an array whose dtype is known, or stands in the head too."""

    def read(data: bytes) -> tuple[int, tuple[int, ...], np.dtype[np.generic]]:
        begin = 0 if known is not None else 1
        dtype = known if known is not None else np.dtype(_DTYPES[data[0]])
        size, number = 1 << (data[begin] & 3), data[begin] >> 2
        end = begin + 1 + size * number
        if len(data) < end:
            raise ValueError("cut off")
        return end, tuple(int.from_bytes(data[at : at + size], "little") for at in range(begin + 1, end, size)), dtype

    return read
