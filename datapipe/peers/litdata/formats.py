"""Parse the formats of LitData's values.

An array of several dimensions begins with numbers of its dtype, its dimensions, and their sizes, uint32 each: big-endian if it
was a tensor, little-endian if it was numpy's. One of a single dimension has no head; its format names the dtype. Dtypes are
numbered by `litdata/constants.py`, values written by `litdata/streaming/serializers.py`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from datapipe.codecs.field_values import FieldKind
from datapipe.peers.packed_fields import BYTES, ENCODED, MAX_DIMENSIONS, PIXELS, TEXT, ReadHead, StoredAs, number_of, unread

_OF_TORCH = {
    0: "f4", 1: "f4", 2: "f8", 3: "f8", 4: "c8", 5: "c8", 6: "c16", 7: "c16", 8: "f2", 9: "f2", 11: "u1", 12: "i1", 13: "i2",
    14: "i2", 15: "i4", 16: "i4", 17: "i8", 18: "i8", 19: "?", 20: "u2",
}  # fmt: skip
_OF_NUMPY = {
    0: "i1", 1: "i2", 2: "i4", 3: "i8", 4: "u1", 5: "u2", 6: "u4", 7: "u8", 8: "f2", 9: "f4", 10: "f8", 11: "c8", 12: "c16",
    13: "?",
}  # fmt: skip
_HEAD_NBYTES = 8 + 4 * MAX_DIMENSIONS
_LITERAL = Literal["little", "big"]


def _array_head(dtypes: dict[int, str], order: _LITERAL) -> ReadHead:
    def read(data: bytes) -> tuple[int, tuple[int, ...], np.dtype[np.generic]]:
        dtype, number = (int.from_bytes(data[at : at + 4], order) for at in (0, 4))
        end = 8 + 4 * number
        if len(data) < end:
            raise ValueError("cut off")
        return end, tuple(int.from_bytes(data[at : at + 4], order) for at in range(8, end, 4)), np.dtype(dtypes[dtype])

    return read


_STORED = {
    "str": TEXT,
    "text": TEXT,
    "bool": number_of("?"),
    "int": number_of("i8"),
    "float": number_of("f8"),
    "jpeg": ENCODED,
    "image": ENCODED,
    "tifffile": ENCODED,
    "pil": PIXELS,
    "bytes": BYTES,
    **dict.fromkeys(("file", "video", "audio", "nifti", "mesh", "pdf"), BYTES),
    "tensor": StoredAs(FieldKind.ARRAY, read_head=_array_head(_OF_TORCH, "big"), head_nbytes=_HEAD_NBYTES),
    "numpy": StoredAs(FieldKind.ARRAY, read_head=_array_head(_OF_NUMPY, "little"), head_nbytes=_HEAD_NBYTES),
    "pickle": unread("pickled, and reading it could run code"),
    "json": unread("nested values in a coding of LitData's own"),
    "graph": unread("a graph"),
    "jpeg_array": unread("a list of images"),
}


def parse_format(text: str) -> StoredAs:
    """Return what a format means, such as `jpeg`, `video:mp4` or `no_header_tensor:0`."""
    name, _, argument = text.partition(":")
    if name in ("no_header_tensor", "no_header_numpy"):
        dtypes = _OF_TORCH if name == "no_header_tensor" else _OF_NUMPY
        code = dtypes.get(int(argument)) if argument.isascii() and argument.isdigit() and len(argument) < 4 else None
        if code is None:
            return unread(f"of the format {text!r:.40}, whose dtype numpy has not")
        return StoredAs(FieldKind.ARRAY, row_dtype=np.dtype(code).newbyteorder("<"))
    return _STORED.get(name) or unread(f"of the format {text!r:.40}, which is not known")
