"""List the members of tars: what `webdataset.ShardWriter`, GNU tar and Python's tarfile write (USTAR, GNU and PAX headers).

A tar is scanned, never extracted: names are keys, not paths. Files count, also sparse ones; links count as the files in the
tar to which they lead. A member that is a file by its header and cannot be read is listed with the reason. Several tars that
were joined, as by `cat`, are read as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from datapipe.codecs.stored import PLAIN, absent, decode_stored, value_nbytes, why_absent
from datapipe.containers.mapped import ByteSource
from datapipe.containers.tar import sparse
from datapipe.containers.tar.layout import BLOCK_NBYTES as BLOCK
from datapipe.core.archive_links import Link, NoTarget, Targets
from datapipe.core.printable import get_logger
from datapipe.errors import DecodeError, FormatError

_MAX_NAME = 1 << 20  # bytes accepted in a long name or PAX header
_HARD_LINK, _LINKS, _SPARSE = b"1", b"12", b"S"
_WITHOUT_DATA = b"123456"  # links, devices, directories, pipes: no data follows their header, whatever its size says
_PASSED_OVER = b"3456DNV"  # devices, directories, pipes, and GNU's lists of a directory, old long names, names of volumes
_ZEROS_AT_ONCE = 1 << 20  # bytes
_SPARSE_KEYS = frozenset((b"GNU.sparse.major", b"GNU.sparse.size"))
_SPARSE_PAIR = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")  # of PAX 0.0, one of each for every run

logger = get_logger(__name__)


class Member(NamedTuple):
    """A file in a tar."""

    name: bytes
    offset: int  # of its stored bytes
    nbytes: int  # of these
    codec: str = PLAIN  # how they become its contents, or why there are none; see `codecs/stored`

    def head(self, data: ByteSource, nbytes: int) -> bytes:
        """Return the first bytes of those that are stored."""
        return bytes(data[self.offset : self.offset + min(self.nbytes, nbytes)])

    def short_value(self, data: ByteSource, *, at_most: int) -> bytes:
        """Return the contents of a short file, the first bytes of a longer one. Raises DecodeError if it cannot be read."""
        if not self.codec:
            return self.head(data, at_most)
        reason = why_absent(self.codec)
        if reason is not None or value_nbytes(self.nbytes, self.codec) > _MAX_NAME:
            raise DecodeError(reason or "is too large")
        return decode_stored(self.head(data, self.nbytes), self.codec)[:at_most]


def scan_members(data: ByteSource, where: str, *, needs_end: bool = False) -> Iterator[Member]:
    """Yield the files of a tar, in order.

    A link is the file in the tar that it leads to, or has a codec that says why not; one that leads to a folder has a name that
    ends with a slash. `where` names the tar in errors; without it nothing is logged. Raises FormatError if a header does not
    parse or a member reaches beyond the end. A tar without an end-of-archive marker is logged, or with `needs_end` a FormatError:
    if it was cut between two members it would look complete. The headers are read once more if there are links.
    """
    targets: Targets[Member] | None = None
    for entry in _entries(data, where, needs_end=needs_end):
        if type(entry) is Member:
            yield entry
        else:
            assert isinstance(entry, Link)
            targets = targets or Targets(_named_entries(data))
            found = targets.resolve(entry)
            if isinstance(found, NoTarget):
                yield Member(entry.name + b"/" * found.is_folder, 0, 0, absent(found.reason))
            else:
                yield found._replace(name=entry.name)


def _named_entries(data: ByteSource) -> Iterator[tuple[bytes, Member] | Link]:
    """Yield what links may lead to, up to damage."""
    try:
        for entry in _entries(data, "", needs_end=False):
            yield entry if isinstance(entry, Link) else (entry.name, entry)
    except FormatError:
        return


def _entries(data: ByteSource, where: str, *, needs_end: bool) -> Iterator[Member | Link]:
    """Yield the files and links, as `scan_members` does, links as they are."""
    position, size, is_ended = 0, len(data), False
    long_name: bytes | None = None
    long_link: bytes | None = None
    pax: dict[bytes, bytes] = {}
    while True:
        header = data[position : position + BLOCK]
        if len(header) < BLOCK:
            if header.strip(b"\0"):
                raise FormatError(f"{where}: cut within a header at byte {position}; get the file again")
            if not is_ended:
                _without_end(where, needs_end=needs_end)
            return
        if header[0] == 0:
            if header.strip(b"\0"):
                raise FormatError(f"{where}: member without a name at byte {position}; not a tar, or damaged")
            position, is_ended = _next_tar(data, position, where), True
            continue
        _check_header(header, where, position)
        is_ended = False
        kind, nbytes, start = header[156:157], _number(header[124:136], where, position), position + BLOCK
        if kind in b"0\x007" and b"size" in pax:
            nbytes = _pax_size(pax[b"size"], where, position)
        elif kind in _WITHOUT_DATA:
            nbytes = 0
        codec = PLAIN
        if kind == _SPARSE:
            start, codec = sparse.old_gnu(data, header, start, nbytes)
        if nbytes < 0 or start + nbytes > size:
            raise FormatError(
                f"{where}: member at byte {position} reaches to {start + nbytes}, the file ends at {size}: it was cut"
            )
        position = start + -(-nbytes // BLOCK) * BLOCK
        if kind == b"L":
            long_name = _small(data, start, nbytes, where).rstrip(b"\0")
        elif kind == b"K":
            long_link = _small(data, start, nbytes, where).rstrip(b"\0")
        elif kind == b"x":
            pax = _parse_pax(_small(data, start, nbytes, where), where, start)
        elif kind == b"g":
            continue
        else:
            name = pax.get(b"path") or long_name or _ustar_name(header)
            if kind in b"0\x007":
                plain = Member(name, start, nbytes)
                yield plain if _SPARSE_KEYS.isdisjoint(pax) else _sparse(data, pax, plain)
            elif kind == _SPARSE:
                yield Member(name, start, nbytes, codec)
            elif kind in _LINKS:
                target = pax.get(b"linkpath") or long_link or header[157:257].split(b"\0", 1)[0]
                yield Link(name, target, is_hard=kind == _HARD_LINK)
            elif kind not in _PASSED_OVER:
                yield Member(name, start, nbytes, absent(f"is a member of kind {kind!r}, which is not read; write the tar again"))
            long_name, long_link, pax = None, None, {}


def _sparse(data: ByteSource, pax: dict[bytes, bytes], stored: Member) -> Member:
    """Return the file that a member is whose PAX header says that it is sparse."""
    return Member(pax.get(b"GNU.sparse.name") or stored.name, *sparse.of_pax(data, pax, stored.offset, stored.nbytes))


def _without_end(where: str, *, needs_end: bool) -> None:
    if needs_end:
        raise FormatError(f"{where}: no end-of-archive marker, so it was probably cut; get the file again")
    if where:
        logger.warning("%s: no end-of-archive marker; if it was cut, the samples after the cut are missing", where)


def _next_tar(data: ByteSource, position: int, where: str) -> int:
    """Return where a tar begins after the block of zeros at `position`; the end of the data if none does.

    Raises FormatError if a single block of zeros, which ends no tar, stands in place of a header.
    """
    after, size = position, len(data)
    rest = b""
    while after < size and not rest:
        chunk = data[after : after + _ZEROS_AT_ONCE]
        rest = chunk.lstrip(b"\0")
        after += (len(chunk) - len(rest)) // BLOCK * BLOCK if rest else len(chunk)
    if not rest:
        return size
    try:
        _check_header(data[after : after + BLOCK].ljust(BLOCK, b"\0"), where, after)
    except FormatError:
        if after - position < 2 * BLOCK:
            raise FormatError(f"{where}: zeros in place of the header at byte {position}: damaged; get the file again") from None
        if where:
            logger.warning(
                "%s: %d bytes from byte %d on, after the end-of-archive marker, are no tar and are not read",
                where,
                size - after,
                after,
            )
        return size
    if where:
        logger.warning(
            "%s: another tar begins at byte %d, after the end-of-archive marker, and is read too; other readers stop there",
            where,
            after,
        )
    return after


def _check_header(header: bytes, where: str, position: int) -> None:
    stored = _number(header[148:156], where, position)
    if sum(header) - sum(header[148:156]) + 8 * 0x20 != stored:
        raise FormatError(f"{where}: header checksum at byte {position} is wrong: not a tar, or damaged")


def _number(field: bytes, where: str, position: int) -> int:
    """Parse octal text, or base-256 if the top bit is set (GNU, for sizes above 8 GiB)."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError as exc:
        raise FormatError(f"{where}: header at byte {position} has no number in {field!r}: not a tar, or damaged") from exc


def _ustar_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0":  # GNU's magic is "ustar ", and it keeps times in place of the prefix
        prefix = header[345:500].split(b"\0", 1)[0]
        return prefix + b"/" + name if prefix else name
    return name


def _small(data: ByteSource, start: int, nbytes: int, where: str) -> bytes:
    if nbytes > _MAX_NAME:
        raise FormatError(f"{where}: header of {nbytes} bytes at byte {start}, more than the limit of {_MAX_NAME}")
    return bytes(data[start : start + nbytes])


def _parse_pax(text: bytes, where: str, position: int) -> dict[bytes, bytes]:
    """Parse repeated lines `LENGTH KEY=VALUE`; LENGTH counts itself and the line end (POSIX.1-2001, pax).

    Runs of PAX's sparse format 0.0, which repeats two keys, become the one value of format 0.1.
    """
    values: dict[bytes, bytes] = {}
    runs: list[bytes] = []
    at = 0
    while at < len(text):
        length, _, _ = text[at : at + 8].partition(b" ")
        end = at + int(length) if length.isdigit() and len(length) <= 7 else 0
        if not at + len(length) + 2 <= end <= len(text):
            raise FormatError(f"{where}: PAX header at byte {position} does not parse: not a tar, or damaged")
        key, _, value = text[at + len(length) + 1 : end].rstrip(b"\n").partition(b"=")
        if key in _SPARSE_PAIR:
            runs.append(value)
        values[key] = value
        at = end
    if runs:
        values[b"GNU.sparse.map"] = b",".join(runs)
    return values


def _pax_size(text: bytes, where: str, position: int) -> int:
    if not text.isdigit() or len(text) > 18:
        raise FormatError(f"{where}: PAX size {text[:20]!r} at byte {position} is not a number: damaged")
    return int(text)
