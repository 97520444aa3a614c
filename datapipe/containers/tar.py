"""WebDataset shards: tar files in which consecutive members with one key make a sample.

Reads what `webdataset.ShardWriter`, GNU tar and Python's tarfile write (USTAR, GNU long names, PAX
paths and sizes). A tar is scanned, never extracted: only regular files count, and names are keys, not
paths. As in webdataset, the base name is split at its *first* dot: `dir/a.b.jpg` has key `dir/a` and
field `b.jpg`; suffixes are lower-cased; hidden files (`._x.jpg`, `.DS_Store`) are no samples.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from datapipe.containers.tar_format import BLOCK_NBYTES as BLOCK
from datapipe.containers.tar_format import LABEL_SUFFIX
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.manifest import FieldSpec, Kind
from datapipe.sidecar import FieldExtent, SidecarRows

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "gif", "npy")
_MAX_NAME = 1 << 20  # bytes of a long name or PAX header that are believed
_MAX_LABEL = (1 << 63) - 1
_WITHOUT_DATA = b"123456"  # links, devices, directories, pipes: nothing follows their header, whatever its size says

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file in a tar."""

    name: bytes
    offset: int  # of its data, bytes
    nbytes: int


def scan_members(data: mmap.mmap | bytes, where: str) -> Iterator[Member]:
    """The regular files of a tar, in order.

    `where` names the tar in errors. Raises FormatError where a header does not parse or a member
    reaches beyond the end. A tar without an end-of-archive marker is reported in the log: cut between
    two members it would look whole.
    """
    position, size = 0, len(data)
    long_name: bytes | None = None
    pax: dict[bytes, bytes] = {}
    while True:
        header = data[position : position + BLOCK]
        if len(header) < BLOCK:
            if header.strip(b"\0"):
                raise FormatError(f"{where}: cut within a header at byte {position}; get the file again")
            logger.warning("%s: no end-of-archive marker; if it was cut, the samples behind the cut are missing", where)
            return
        if header[0] == 0:
            if header.strip(b"\0"):
                raise FormatError(f"{where}: member without a name at byte {position}; not a tar, or damaged")
            return
        _check_header(header, where, position)
        kind, nbytes, start = header[156:157], _number(header[124:136], where, position), position + BLOCK
        if kind in b"0\x007" and b"size" in pax:
            nbytes = _pax_size(pax[b"size"], where, position)
        elif kind in _WITHOUT_DATA:
            nbytes = 0
        if nbytes < 0 or start + nbytes > size:
            raise FormatError(
                f"{where}: member at byte {position} reaches to {start + nbytes}, the file ends at {size}: it was cut"
            )
        position = start + -(-nbytes // BLOCK) * BLOCK
        if kind == b"L":
            long_name = _small(data, start, nbytes, where).rstrip(b"\0")
        elif kind == b"x":
            pax = _parse_pax(_small(data, start, nbytes, where), where, start)
        elif kind in (b"g", b"K"):
            continue
        else:
            if kind in b"0\x007":
                yield Member(pax.get(b"path") or long_name or _ustar_name(header), start, nbytes)
            long_name, pax = None, {}


def split_name(name: bytes) -> tuple[bytes, str] | None:
    """(key, field suffix) of a member, or None for a hidden file or one without a suffix."""
    directory, slash, base = name.rpartition(b"/")
    stem, dot, suffix = base.partition(b".")
    if not stem or not dot or not suffix:
        return None
    return directory + slash + stem, suffix.decode(errors="replace").lower()


def index_shard(path: Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Scan one shard; ids are row numbers.

    Every sample needs an image; either every sample has a `cls` member (a decimal class number) or
    none. Raises MissingDataError, StorageError or FormatError, naming shard and sample.
    """
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise FormatError(f"{path}: empty file, not a tar; get the file again or remove it")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                data.madvise(mmap.MADV_RANDOM)  # headers alone are read: don't drag the images in
                return _index_members(data, str(path))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such shard") from exc
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be read ({exc.strerror})") from exc


def _index_members(data: mmap.mmap, where: str) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    samples = _group(scan_members(data, where), where)
    first = next(samples, None)
    if first is None:
        raise FormatError(f"{where}: no samples (no regular file with a name like KEY.jpg)")
    labelled = LABEL_SUFFIX in first[1]
    rows = SidecarRows(("image", "label") if labelled else ("image",))
    for number, (key, members) in enumerate(_chain(first, samples)):
        image = next((suffix for suffix in IMAGE_SUFFIXES if suffix in members), None)
        name, has = key.decode(errors="replace"), ", ".join(members)
        if image is None:
            raise FormatError(f"{where}: sample {name!r} has no image (has: {has}; looked for {', '.join(IMAGE_SUFFIXES)})")
        if (LABEL_SUFFIX in members) != labelled:
            raise FormatError(f"{where}: some samples have a field {LABEL_SUFFIX!r} and some do not, e.g. {name!r} (has: {has})")
        extents = {"image": FieldExtent("", members[image].offset, members[image].nbytes, None)}
        label = -1
        if labelled:
            member = members[LABEL_SUFFIX]
            label = _parse_label(_small(data, member.offset, member.nbytes, where), where, name)
            extents["label"] = FieldExtent("cls", member.offset, member.nbytes, None)
        rows.append(id=number, key=key, source=b"", label=label, size=(0, 0), extents=extents)
    fields = (FieldSpec("image", Kind.IMAGE), FieldSpec("label", Kind.LABEL))
    return rows, fields if labelled else fields[:1]


def _group(members: Iterator[Member], where: str) -> Iterator[tuple[bytes, dict[str, Member]]]:
    """Consecutive members with one key."""
    done: set[bytes] = set()
    current: bytes | None = None
    fields: dict[str, Member] = {}
    for member in members:
        split = split_name(member.name)
        if split is None:
            continue
        key, suffix = split
        if key != current:
            if current is not None:
                done.add(current)
                yield current, fields
            if key in done:
                raise FormatError(
                    f"{where}: the members of sample {key.decode(errors='replace')!r} are not consecutive; "
                    "readers would take it for two samples: sort the members by name, or convert again"
                )
            current, fields = key, {}
        if suffix in fields:
            raise FormatError(f"{where}: sample {key.decode(errors='replace')!r} has two fields {suffix!r}; convert again")
        fields[suffix] = member
    if current is not None:
        yield current, fields


def _chain(
    first: tuple[bytes, dict[str, Member]], rest: Iterator[tuple[bytes, dict[str, Member]]]
) -> Iterator[tuple[bytes, dict[str, Member]]]:
    yield first
    yield from rest


def _parse_label(text: bytes, where: str, name: str) -> int:
    digits = text.strip()
    if not digits.isdigit() or len(digits) > 19 or int(digits) > _MAX_LABEL:
        raise FormatError(f"{where}: label of sample {name!r} is {text[:40]!r}, expected a decimal class number")
    return int(digits)


def _check_header(header: bytes, where: str, position: int) -> None:
    stored = _number(header[148:156], where, position)
    if sum(header) - sum(header[148:156]) + 8 * 0x20 != stored:
        raise FormatError(f"{where}: header checksum at byte {position} is wrong: not a tar, or damaged")


def _number(field: bytes, where: str, position: int) -> int:
    """Octal text, or base-256 where the top bit is set (GNU, for sizes above 8 GiB)."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError as exc:
        raise FormatError(f"{where}: header at byte {position} has no number in {field!r}: not a tar, or damaged") from exc


def _ustar_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0":  # GNU's magic is "ustar ", and it keeps times where the prefix would be
        prefix = header[345:500].split(b"\0", 1)[0]
        return prefix + b"/" + name if prefix else name
    return name


def _small(data: mmap.mmap | bytes, start: int, nbytes: int, where: str) -> bytes:
    if nbytes > _MAX_NAME:
        raise FormatError(f"{where}: header or label of {nbytes} bytes at byte {start}; not believed above {_MAX_NAME}")
    return bytes(data[start : start + nbytes])


def _parse_pax(text: bytes, where: str, position: int) -> dict[bytes, bytes]:
    """`LENGTH KEY=VALUE\\n`, repeated; LENGTH counts itself (POSIX.1-2001, pax)."""
    values: dict[bytes, bytes] = {}
    while text:
        length, _, _ = text.partition(b" ")
        if not length.isdigit() or len(length) > 7 or not len(length) + 2 <= int(length) <= len(text):
            raise FormatError(f"{where}: PAX header at byte {position} does not parse: not a tar, or damaged")
        entry, text = text[len(length) + 1 : int(length)], text[int(length) :]
        key, _, value = entry.rstrip(b"\n").partition(b"=")
        values[key] = value
    return values


def _pax_size(text: bytes, where: str, position: int) -> int:
    if not text.isdigit() or len(text) > 18:
        raise FormatError(f"{where}: PAX size {text[:20]!r} at byte {position} is not a number: damaged")
    return int(text)
