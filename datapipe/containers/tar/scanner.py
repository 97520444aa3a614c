"""Scan WebDataset shards: tar files in which consecutive members with one key make a sample.

Reads what `webdataset.ShardWriter`, GNU tar and Python's tarfile write (USTAR, GNU long names, PAX
paths and sizes). A tar is scanned, never extracted: only regular files count, and names are keys, not
paths. As in webdataset, the base name is split at its *first* dot: `dir/a.b.jpg` has key `dir/a` and
field `b.jpg`; suffixes are lower-cased; hidden files (`._x.jpg`, `.DS_Store`) are not samples.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.containers.columns import FieldExtents, further_fields, rows_of_extents
from datapipe.containers.field_names import AUDIO_FIELD, HEAD_NBYTES, IMAGE, LABEL
from datapipe.containers.listing import is_audio_name, is_video_name
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.containers.tar.layout import BLOCK_NBYTES as BLOCK
from datapipe.containers.tar.layout import IMAGE_SUFFIXES, LABEL_SUFFIX, LABEL_SUFFIXES, field_of_suffix, label_number, label_text
from datapipe.core.printable import get_logger
from datapipe.errors import FormatError
from datapipe.index.sidecar import SidecarRows

_MAX_SUFFIXES = 1000  # limit of different ones
_LOOKED_AT = 32  # members that tell what a tar holds
_MAX_NAME = 1 << 20  # bytes accepted in a long name or PAX header
_MAX_LABEL_NBYTES = 256  # of its text, blanks included
_WITHOUT_DATA = b"123456"  # links, devices, directories, pipes: no data follows their header, whatever its size says

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file in a tar."""

    name: bytes
    offset: int  # of its data, bytes
    nbytes: int


def scan_members(data: ByteSource, where: str, *, needs_end: bool = False) -> Iterator[Member]:
    """Yield the regular files of a tar, in order.

    `where` names the tar in errors. Raises FormatError if a header does not parse or a member
    reaches beyond the end. A tar without an end-of-archive marker is logged, or with `needs_end` a FormatError: if it was cut
    between two members it would look complete.
    """
    position, size = 0, len(data)
    long_name: bytes | None = None
    pax: dict[bytes, bytes] = {}
    while True:
        header = data[position : position + BLOCK]
        if len(header) < BLOCK:
            if header.strip(b"\0"):
                raise FormatError(f"{where}: cut within a header at byte {position}; get the file again")
            if needs_end:
                raise FormatError(f"{where}: no end-of-archive marker, so it was probably cut; get the file again")
            logger.warning("%s: no end-of-archive marker; if it was cut, the samples after the cut are missing", where)
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


def begins_with(tar: str, is_wanted: Callable[[bytes], bool], *, others: Callable[[bytes], bool]) -> bool:
    """Return True if among the names of the first members of a tar, by path or URL, some are wanted, and none of the others.

    What comes before damage counts. Raises MissingDataError or StorageError.
    """
    is_found = False
    try:
        with byte_source(tar, "a tar") as data:
            for member in itertools.islice(scan_members(data, tar), _LOOKED_AT):
                if others(member.name):
                    return False
                is_found = is_found or is_wanted(member.name)
    except FormatError:
        return is_found
    return is_found


def split_name(name: bytes) -> tuple[bytes, str] | None:
    """Return (key, field suffix) of a member, or None for a hidden file or one without a suffix."""
    directory, slash, base = name.rpartition(b"/")
    stem, dot, suffix = base.partition(b".")
    if not stem or not dot or not suffix:
        return None
    return directory + slash + stem, suffix.decode(errors="replace").lower()


def index_shard(path: str | Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Scan one shard; ids are row numbers. Fields: the image, the label, and others that all samples have.

    Every sample needs an image, unless none has one and there are videos or sound; either every sample has a `cls` member (a
    decimal class number) or none. Without these, members `label` are labels if all samples have such a number. A further field
    that only some have is left out, and counted in `lacking` of the rows. Raises MissingDataError, StorageError or FormatError,
    naming shard and sample.
    """
    with byte_source(path, "a tar") as data:
        return _index_members(data, str(path))


def _index_members(data: ByteSource, where: str) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    keys: list[bytes] = []
    columns: dict[str, FieldExtents] = {}  # by suffix
    texts: dict[str, list[bytes]] = {}  # of labels, by suffix; read as they are met, so that a tar in a store is passed over once
    num_strange = 0
    for row, (key, members) in enumerate(_group(scan_members(data, where), where)):
        keys.append(key)
        for suffix, member in members.items():
            column = columns.get(suffix)
            if column is None:
                if len(columns) == _MAX_SUFFIXES:
                    num_strange += 1
                    continue
                head = bytes(data[member.offset : member.offset + min(member.nbytes, HEAD_NBYTES)])
                column = columns[suffix] = FieldExtents(field_of_suffix(suffix, head))
            column.add(row, member.offset, member.nbytes)
            if suffix in LABEL_SUFFIXES:
                found = bytes(data[member.offset : member.offset + min(member.nbytes, _MAX_LABEL_NBYTES)])
                texts.setdefault(suffix, []).append(found)
    if not keys:
        raise FormatError(f"{where}: no samples (no regular file with a name like KEY.jpg)")
    names = [f".{suffix}".encode() for suffix in columns]
    has_others = any(is_video_name(name) or is_audio_name(name) for name in names)
    has_images = not has_others or any(column.spec == IMAGE_FIELD for column in columns.values())
    images = {IMAGE: _images(columns, keys, where)} if has_images else {}
    if not has_images:  # sound is one field, whatever its formats
        for suffix, column in columns.items():
            if "." not in suffix and is_audio_name(f".{suffix}".encode()):
                column.spec = AUDIO_FIELD
    suffix, numbers = _labels(texts, keys, columns, where)
    labels = {LABEL: columns.pop(suffix)} if suffix else {}
    for column in labels.values():
        column.spec = LABEL_FIELD
    further, lacking = further_fields(columns, len(keys))
    rows, specs = rows_of_extents(images | labels | further, keys, numbers, label_encoding=LABEL_SUFFIX)
    rows.lacking = lacking
    if num_strange:
        rows.unread["..."] = f"{num_strange} members of more than {_MAX_SUFFIXES} suffixes: do the keys have dots?"
    return rows, specs


def _images(columns: dict[str, FieldExtents], keys: list[bytes], where: str) -> FieldExtents:
    """Return the image of every sample, removed from `columns`: the best one of several with nothing but a suffix as name."""
    suffixes = [suffix for suffix, column in columns.items() if column.spec == IMAGE_FIELD]
    image = FieldExtents(IMAGE_FIELD)
    others: dict[str, FieldExtents] = {}
    taken = np.zeros(len(keys), bool)
    for suffix in sorted(suffixes, key=lambda suffix: IMAGE_SUFFIXES.index(suffix.rpartition(".")[2])):
        column = columns.pop(suffix)
        mine, rest = column.parted(~taken[column.rows])
        taken[mine.rows] = True
        image = image.joined(mine) if len(image) else mine
        if len(rest):
            rest.spec = FieldSpec(suffix.replace(".", "_"), FieldKind.IMAGE)
            others[suffix] = rest
    if not taken.all():
        row = int(np.argmin(taken))
        has = ", ".join(suffix for suffix, column in columns.items() if row in column.rows)
        name = keys[row].decode(errors="replace")
        raise FormatError(f"{where}: sample {name!r} has no image (has: {has}; looked for {', '.join(IMAGE_SUFFIXES)})")
    columns.update(others)
    return image


def _labels(
    texts: dict[str, list[bytes]], keys: list[bytes], columns: dict[str, FieldExtents], where: str
) -> tuple[str, list[int]]:
    """Return the suffix of the labels, "" if there are none, and the label of each sample. `texts`: by suffix, in order."""
    suffix = next((name for name in LABEL_SUFFIXES if name in texts), "")
    if not suffix:
        return "", [NO_LABEL] * len(keys)
    parsed = [*map(_label_number, texts[suffix])]
    numbers = [number for number in parsed if number is not None]
    if len(numbers) == len(keys):
        return suffix, numbers
    is_whole = len(parsed) == len(keys)
    row = parsed.index(None) if is_whole else int(np.setdiff1d(np.arange(len(keys)), columns[suffix].rows)[0])
    name = keys[row].decode(errors="replace")
    what = f"label of sample {name!r} is {texts[suffix][row][:40]!r}, expected a decimal class number" if is_whole else ""
    if suffix == LABEL_SUFFIX:
        problem = what or f"some samples have a field {LABEL_SUFFIX!r} and some do not, e.g. {name!r}"
        raise FormatError(f"{where}: {problem}{'; datapipe convert numbers names of classes' if what else ''}")
    logger.warning(
        "%s: %r holds no class numbers of all samples (%s); the set is read without labels", where, suffix, what or name
    )
    return "", [NO_LABEL] * len(keys)


def _label_number(text: bytes) -> int | None:
    try:
        return label_number(label_text(text))
    except UnicodeDecodeError:
        return None


def _group(members: Iterator[Member], where: str) -> Iterator[tuple[bytes, dict[str, Member]]]:
    """Yield the key of each sample, and its members by suffix: consecutive members with one key."""
    done: set[bytes] = set()
    named = ((*split, member) for member in members if (split := split_name(member.name)) is not None)
    for key, group in itertools.groupby(named, key=operator.itemgetter(0)):
        if key in done:
            raise FormatError(
                f"{where}: the members of sample {key.decode(errors='replace')!r} are not consecutive; "
                "readers would take it for two samples: sort the members by name, or convert again"
            )
        done.add(key)
        fields: dict[str, Member] = {}
        for _, suffix, member in group:
            if suffix in fields:
                raise FormatError(f"{where}: sample {key.decode(errors='replace')!r} has two fields {suffix!r}; convert again")
            fields[suffix] = member
        yield key, fields


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
        raise FormatError(f"{where}: header or label of {nbytes} bytes at byte {start}, more than the limit of {_MAX_NAME}")
    return bytes(data[start : start + nbytes])


def _parse_pax(text: bytes, where: str, position: int) -> dict[bytes, bytes]:
    """Parse repeated lines `LENGTH KEY=VALUE`; LENGTH counts itself and the line end (POSIX.1-2001, pax)."""
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
