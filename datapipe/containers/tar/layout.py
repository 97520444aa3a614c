"""The write side of WebDataset tar shards: plain USTAR headers, and DALI's index of them.

Every header is 512 bytes: regular file, mode 0644, owner 0, time 0, no PAX or GNU extension, so the
same samples give the same bytes and every reader agrees on offsets. (POSIX.1-1988 "ustar" layout.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from datapipe.core.errors import FormatError

BLOCK_NBYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_NBYTES)
MAX_NAME_NBYTES = 100
MAX_MEMBER_NBYTES = 8**11 - 1  # eleven octal digits
DALI_INDEX_VERSION = "v1.2"
DALI_INDEX_SUFFIX = ".idx"
LABEL_SUFFIX = "cls"  # WebDataset's name for a class number in decimal ASCII

# mode, uid, gid | size | mtime | checksum, as spaces while it is computed | type, link name | magic, version, owners, prefix
_NUL = bytes(1)
_BEFORE_SIZE = b"0000644" + _NUL + b"0000000" + _NUL + b"0000000" + _NUL
_AFTER_SIZE = _NUL + b"00000000000" + _NUL
_AFTER_CHECKSUM = _NUL + b" 0" + bytes(100) + b"ustar" + _NUL + b"00" + bytes(32 + 32 + 8 + 8 + 155 + 12)
# the checksum field counts as eight spaces; what follows it starts with its own two closing bytes
_CONSTANT_SUM = sum(_BEFORE_SIZE) + sum(_AFTER_SIZE) + 8 * ord(" ") + sum(_AFTER_CHECKSUM) - ord(" ")


class IndexedMember(NamedTuple):
    """One field of a sample as DALI's index names it."""

    suffix: str  # after the first dot of the base name
    offset: int  # of the data, bytes from the start of the tar
    nbytes: int
    name: str


def member_header(name: bytes, nbytes: int) -> bytes:
    """Return the 512 bytes before a member's data.

    Raises FormatError for a name or size that a plain USTAR header cannot hold.
    """
    if not 0 < len(name) <= MAX_NAME_NBYTES or not name.isascii():
        raise FormatError(f"tar member name {name!r} is not 1 to {MAX_NAME_NBYTES} ASCII bytes; choose another key")
    if not 0 <= nbytes <= MAX_MEMBER_NBYTES:
        raise FormatError(f"tar member {name!r} of {nbytes} bytes exceeds USTAR's {MAX_MEMBER_NBYTES}; leave the sample out")
    size = b"%011o" % nbytes
    checksum = _CONSTANT_SUM + sum(name) + sum(size)
    return b"%b%b%b%b%06o%b" % (name.ljust(100, b"\0"), _BEFORE_SIZE, size, _AFTER_SIZE, checksum, _AFTER_CHECKSUM)


def padding(nbytes: int) -> bytes:
    """Return the padding after a member's data up to the next block."""
    return bytes(-nbytes % BLOCK_NBYTES)


def dali_index(samples: Iterable[Sequence[IndexedMember]], num_samples: int) -> bytes:
    """Return the index that `fn.readers.webdataset(index_paths=...)` reads, as DALI's `wds2idx` writes it."""
    lines = [f"{DALI_INDEX_VERSION} {num_samples}"]
    lines.extend(" ".join(f"{m.suffix} {m.offset} {m.nbytes} {m.name}" for m in members) for members in samples)
    return ("\n".join(lines) + "\n").encode()
