"""The central directory of a zip, read entry by entry, so that memory does not grow with the number of members.

(PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12 to 4.3.16, 4.5.3.)
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator
from typing import NamedTuple

from datapipe.containers.mapped import ByteSource
from datapipe.errors import FormatError

_END = struct.Struct("<4s4H2LH")  # end of central directory
_LOCATOR = struct.Struct("<4sLQL")  # of the zip64 end of central directory
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_COMMENT = (1 << 16) - 1
_ZIP64_EXTRA = 1
_ENCRYPTED = 1
_STORED, _DEFLATED = 0, 8
_UNIX = 3
_METHODS = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz", 99: "AES encryption"}


class ZipMember(NamedTuple):
    """A file in a zip, or a link."""

    name: bytes
    offset: int  # of its stored bytes
    stored_nbytes: int
    nbytes: int
    crc32: int
    is_deflated: bool
    problem: str | None  # why it cannot be read
    is_link: bool = False  # whose contents are the path that it leads to, from its folder


def scan_zip(data: ByteSource, where: str) -> Iterator[ZipMember]:
    """Yield the files and links of a zip in the order of its directory; folders are passed over.

    Backslashes in a name without a slash are what is between folders, as some writers on Windows have it, and `unzip` takes it.
    Raises FormatError for what is no zip, is cut off, or whose members overlap.
    """
    start, end, num_entries, shift = _directory(data, where)
    position, total = start, 0
    for number in range(num_entries):
        if position + _ENTRY.size > end:
            raise FormatError(f"{where}: its directory ends after {number} of {num_entries} members: damaged; get the file again")
        magic, made_by, _, flags, method, _, _, crc32, stored, nbytes, *lengths, _, _, attributes, offset = _ENTRY.unpack(
            data[position : position + _ENTRY.size]
        )
        name_at, extra_at = position + _ENTRY.size, position + _ENTRY.size + lengths[0]
        position = extra_at + lengths[1] + lengths[2]
        if magic != b"PK\1\2" or position > end:
            raise FormatError(f"{where}: member {number} of its directory does not parse: damaged; get the file again")
        name = data[name_at:extra_at]
        if b"/" not in name:
            name = name.replace(b"\\", b"/")
        stored, nbytes, offset = _widened(data[extra_at : extra_at + lengths[1]], stored, nbytes, offset, where)
        is_link = made_by >> 8 == _UNIX and stat.S_ISLNK(attributes >> 16)
        if name.endswith(b"/"):
            continue
        total += stored
        if total > start:
            raise FormatError(f"{where}: its members overlap, they add up to more than the file: a bomb, or damaged; not read")
        member = _member(data, name, offset + shift, start, (stored, nbytes, crc32), flags, method)
        yield member._replace(is_link=True) if is_link else member


def _member(data: ByteSource, name: bytes, at: int, end: int, sizes: tuple[int, int, int], flags: int, method: int) -> ZipMember:
    stored, nbytes, crc32 = sizes
    problem: str | None = None
    offset = 0
    if flags & _ENCRYPTED:
        problem = "is encrypted; unpack the zip with its password first"
    elif method not in (_STORED, _DEFLATED):
        problem = f"is compressed by {_METHODS.get(method, f'method {method}')}, which is not read; unpack the zip first"
    elif at < 0 or at + _LOCAL.size > end or data[at : at + 4] != b"PK\3\4":
        problem = "has no header where the directory says: the zip is damaged or cut off; get it again"
    else:
        *_, len_name, len_extra = _LOCAL.unpack(data[at : at + _LOCAL.size])
        offset = at + _LOCAL.size + len_name + len_extra
        if offset + stored > end or (method == _STORED and stored != nbytes):
            problem = "reaches beyond the zip's members: the zip is damaged or cut off; get it again"
    return ZipMember(name, offset, stored, nbytes, crc32, method == _DEFLATED, problem)


def _directory(data: ByteSource, where: str) -> tuple[int, int, int, int]:
    """Return (start, end, number of entries, bytes before the zip's own first byte) of the central directory."""
    size = len(data)
    at = _last(data, b"PK\5\6", max(0, size - _END.size - _MAX_COMMENT), size)
    if at < 0 or at + _END.size > size:
        raise FormatError(f"{where}: not a zip, or cut off (it has no end of its directory); get the file again")
    _, disk, _, _, num, nbytes, offset, _ = _END.unpack(data[at : at + _END.size])
    end = at
    locator = at - _LOCATOR.size
    if locator >= 0 and data[locator : locator + 4] == b"PK\6\7":
        _, _, at64, num_disks = _LOCATOR.unpack(data[locator : locator + _LOCATOR.size])
        found = _last(data, b"PK\6\6", max(0, locator - _END64.size - 4096), locator)
        at64 = at64 if data[at64 : at64 + 4] == b"PK\6\6" else found
        if at64 < 0 or at64 + _END64.size > locator or num_disks > 1:
            raise FormatError(
                f"{where}: its zip64 directory does not parse: damaged, or one of several parts; get the file again"
            )
        *_, num, nbytes, offset = _END64.unpack(data[at64 : at64 + _END64.size])
        end = at64
    elif disk not in (0, 0xFFFF):
        raise FormatError(f"{where}: is the last of several parts; join them first, such as with `zip -s 0 OLD --out NEW`")
    start = end - nbytes
    if start < 0 or start < offset:
        raise FormatError(f"{where}: its directory lies outside of the file: damaged, or cut off; get the file again")
    return start, end, num, start - offset


def _last(data: ByteSource, sign: bytes, start: int, end: int) -> int:
    """Return the offset of the last `sign` between `start` and `end`, -1 if there is none."""
    found = data[start:end].rfind(sign)
    return found if found < 0 else start + found


def _widened(extra: bytes, stored: int, nbytes: int, offset: int, where: str) -> tuple[int, int, int]:
    """Return the sizes and the offset, taken from the zip64 extra field where they do not fit 32 bits."""
    if 0xFFFFFFFF not in (stored, nbytes, offset):
        return stored, nbytes, offset
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        values = extra[4 : 4 + length]
        if kind == _ZIP64_EXTRA:
            numbers = iter(struct.unpack(f"<{len(values) // 8}Q", values[: len(values) // 8 * 8]))
            try:
                nbytes = next(numbers) if nbytes == 0xFFFFFFFF else nbytes
                stored = next(numbers) if stored == 0xFFFFFFFF else stored
                offset = next(numbers) if offset == 0xFFFFFFFF else offset
            except StopIteration:
                break
            if max(nbytes, stored, offset) >= 1 << 62:
                break
            return stored, nbytes, offset
        extra = extra[4 + length :]
    raise FormatError(f"{where}: a member of more than 4 GiB has no zip64 size: damaged; get the file again")
