"""The format of a store's index file: a head, then an entry of fixed size for each sample id.

Both carry a checksum of their own, so torn ones are recognised. A file of zeros has no head and no entries.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import crc32c

FORMAT_VERSION = 1
HEAD_NBYTES = 64
ENTRY_NBYTES = 48

_MAGIC = b"DPCACHE1"
_HEAD = struct.Struct("<8sQQ")  # magic, end, num_kept
_ENTRY = struct.Struct("<QQQQIII")  # id, offset, nbytes, stamp, height, width, crc32c
_CRC = struct.Struct("<I")


class Head(NamedTuple):
    """How much of the data file is allocated."""

    end: int  # bytes
    num_kept: int  # entries for which space was allocated


class Entry(NamedTuple):
    """One kept value."""

    offset: int  # bytes, in the data file
    nbytes: int
    stamp: int  # identifies the source of the value; 64 bits
    height: int  # pixels of the source
    width: int
    crc32c: int  # of the value


def position_of(id: int) -> int:
    """Return where the entry of a sample lies in the index file, in bytes."""
    return HEAD_NBYTES + id * ENTRY_NBYTES


def pack_head(head: Head) -> bytes:
    """Return the bytes of a head."""
    return _sealed(_HEAD.pack(_MAGIC, *head), HEAD_NBYTES)


def unpack_head(data: bytes) -> Head | None:
    """Return the head in these bytes; None if they are no head, or a torn one."""
    if not _is_sealed(data, HEAD_NBYTES):
        return None
    magic, end, num_kept = _HEAD.unpack_from(data)
    return Head(end, num_kept) if magic == _MAGIC else None


def pack_entry(id: int, entry: Entry) -> bytes:
    """Return the bytes of a sample's entry."""
    return _sealed(_ENTRY.pack(id, *entry), ENTRY_NBYTES)


def unpack_entry(id: int, data: bytes) -> Entry | None:
    """Return the entry in these bytes; None if they are no entry of that sample, or a torn one."""
    if not _is_sealed(data, ENTRY_NBYTES):
        return None
    found, *values = _ENTRY.unpack_from(data)
    return Entry(*values) if found == id else None


def _sealed(values: bytes, nbytes: int) -> bytes:
    body = values.ljust(nbytes - _CRC.size, b"\0")
    return body + _CRC.pack(crc32c.crc32c(body))


def _is_sealed(data: bytes, nbytes: int) -> bool:
    if len(data) != nbytes:
        return False
    (expected,) = _CRC.unpack_from(data, nbytes - _CRC.size)
    return bool(crc32c.crc32c(data[: -_CRC.size]) == expected)
