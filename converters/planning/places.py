"""Keep in columns of the listing where the fields of a sample lie: few bytes each, if a million samples share a file.

A sample that is one whole file of the same name needs only `mtime_ns`. For any other, `details` says, as JSON, in which files its
fields lie and how they are stored, and `ranges` where in them: two little-endian int64 for each field, its offset and number of
bytes. So the lines of a file, or the members of a tar, have the same details, which are parsed once. `own` is JSON of
values that lie in no file, and of the size that the image must have.
"""

from __future__ import annotations

import functools
import json
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from converters.samples.reading import PlannedSample
from datapipe.codecs.stored import PLAIN, value_nbytes
from datapipe.index.listed import ListedSample, Origin, join

COLUMNS = ("mtime_ns", "details", "ranges", "own")
COLUMNS_SQL = "mtime_ns INTEGER, details TEXT, ranges BLOB, own TEXT"
Columns = tuple[int | None, str | None, bytes | None, str | None]  # their values
_NUM_CACHED = 1024  # details: those of samples that share files recur, others do not


class Contents(NamedTuple):
    """The location and values of a sample's fields."""

    origins: dict[str, Origin]  # by field
    values: dict[str, str]  # by field
    nbytes: int  # of the values of these origins
    size: tuple[int, int] | None  # required size of its image


def columns_of(sample: ListedSample) -> Columns:
    """Return the columns of a sample; all None if there is nothing to read."""
    origins = sample.origins
    if not sample.values and sample.size is None:
        if not origins:
            return None, None, None, None
        if len(origins) == 1:
            (origin,) = origins.values()
            path, _, nbytes, _, mtime_ns, *_ = origin
            if origin == (path, 0, nbytes, nbytes, mtime_ns, PLAIN, False, "") and path == sample.source:
                return mtime_ns, None, None, None
    layout = tuple([
        (name, origin.path, origin.file_nbytes, origin.mtime_ns, origin.codec, origin.is_spooled, origin.etag)
        for name, origin in origins.items()
    ])  # fmt: skip
    numbers = [number for origin in origins.values() for number in origin[1:3]]  # offset, nbytes
    own: dict[str, Any] = {"values": sample.values} if sample.values else {}
    if sample.size is not None:
        own["size"] = sample.size
    return None, _details(layout), struct.pack(f"<{len(numbers)}q", *numbers), _dumped(own) if own else None


def contents_of(source: bytes, nbytes: int, columns: Columns, fields: int, field_order: tuple[str, ...]) -> Contents:
    """Return the contents of the sample `source` from its columns, and from its columns `nbytes` and `fields`."""
    mtime_ns, details, ranges, text = columns
    if mtime_ns is not None:
        return Contents({field_order[fields.bit_length() - 1]: Origin(source, 0, nbytes, nbytes, mtime_ns)}, {}, nbytes, None)
    if details is None:
        return Contents({}, {}, 0, None)
    parts = _parts(details)
    numbers = struct.unpack(f"<{2 * len(parts)}q", ranges or b"")
    origins = {
        name: Origin(path, offset, size, *rest)
        for (name, path, rest), offset, size in zip(parts, numbers[::2], numbers[1::2], strict=True)
    }
    own = {} if text is None else _loaded(text)
    in_files = sum([one.value_nbytes if one.codec else one.nbytes for one in origins.values()])
    size = own.get("size")
    return Contents(origins, own.get("values", {}), in_files, None if size is None else (size[0], size[1]))


def planned_samples(rows: Sequence[tuple[Any, ...]], field_order: tuple[str, ...]) -> list[PlannedSample]:
    """Return the samples of rows (slot, id, label, directory, name, problem, nbytes, fields, *columns)."""
    samples = []
    for slot, sample, label, directory, name, problem, nbytes, fields, *columns in rows:
        source = join(directory, name)
        origins, values, in_files, size = contents_of(source, nbytes, tuple(columns), fields, field_order)
        samples.append(PlannedSample(slot, sample, label, source, problem, origins, values, in_files, size))
    return samples


def digested(columns: Columns) -> str:
    """Return the `repr` of the text of a sample's columns that a digest covers: without the times of files, with etags."""
    _, details, ranges, text = columns
    if details is None:
        return "None"
    template = _digested(details)
    found = struct.unpack(f"<{len(template.numbers)}q", ranges or b"")
    numbers = tuple([found[place] + added for place, added in template.numbers])
    if text is None:
        return template.closed % numbers
    return repr(f"{template.open % numbers}, {_SORTED.encode(_loaded(text))[1:]}")


# -- details, each text of which is parsed once ----------------------------------------------------


class _Part(NamedTuple):
    """A field, without its range."""

    name: str
    path: bytes
    rest: tuple[int, int, str, bool, str]  # of its origin, after the range


@functools.lru_cache(maxsize=_NUM_CACHED)
def _details(layout: tuple[tuple[str, bytes, int, int, str, bool, str], ...]) -> str:
    """Return the JSON of the origins of a sample, without their ranges."""
    files: dict[tuple[bytes, bool], tuple[int, list[Any]]] = {}  # [path, size, time, is spooled, etag], the last two if needed
    fields: dict[str, list[int | str]] = {}
    for name, path, file_nbytes, mtime_ns, codec, is_spooled, etag in layout:
        place = (path, is_spooled)
        if place not in files:
            file: list[Any] = [os.fsdecode(path), file_nbytes, mtime_ns]
            if is_spooled or etag:
                file += [is_spooled, *([etag] if etag else ())]
            files[place] = len(files), file
        fields[name] = [files[place][0], *([codec] if codec else ())]
    return _dumped({"files": [file for _, file in files.values()], "fields": fields})


@functools.lru_cache(maxsize=_NUM_CACHED)
def _parts(details: str) -> tuple[_Part, ...]:
    """Return the fields of details, in the order of their ranges."""
    value = _loaded(details)
    files = [(os.fsencode(path), *rest) for path, *rest in value["files"]]
    parts = []
    for name, (number, *codec) in value["fields"].items():
        path, file_nbytes, mtime_ns, *rest = files[number]
        is_spooled, etag = bool(rest and rest[0]), rest[1] if len(rest) > 1 else ""
        parts.append(_Part(name, path, (file_nbytes, mtime_ns, codec[0] if codec else PLAIN, is_spooled, etag)))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class _Template:
    """The digested text of details, for `%` with numbers of the ranges."""

    open: str  # without the closing brace
    closed: str  # the `repr` of the whole
    numbers: tuple[tuple[int, int], ...]  # the place of each in the ranges, and what is added to it


@functools.lru_cache(maxsize=_NUM_CACHED)
def _digested(details: str) -> _Template:
    """Return the template of a digested text.

    A range is shown as digests have always had it: the bytes of the field first, and those stored within `deflate`.
    """
    value = _loaded(details)
    files = _constant([file[:2] + file[4:] for file in value["files"]])
    shown: list[str] = []
    numbers: list[tuple[int, int]] = []
    places = {name: place for place, name in enumerate(value["fields"])}
    for name, (file, *codecs) in sorted(value["fields"].items()):
        codec = codecs[0] if codecs else PLAIN
        is_packed = "deflate:" in codec
        added = 0 if is_packed else value_nbytes(0, codec)
        numbers += [(2 * places[name], 0), (2 * places[name] + 1, added)]
        parts = [f"{file}", "%d", _constant(value_nbytes(0, codec)) if is_packed else "%d"]
        if codec:
            parts.append(re.sub(r"deflate:\d+", "deflate:%d", _constant(codec)))
        shown.append(f"{_constant(name)}: [{', '.join(parts)}]")
    text = f'{{"fields": {{{", ".join(shown)}}}, "files": {files}'
    return _Template(text, repr(text + "}"), tuple(numbers))


_SORTED = json.JSONEncoder(sort_keys=True)


def _constant(value: Any) -> str:
    """Return JSON as a part of a template."""
    return _SORTED.encode(value).replace("%", "%%")


def _dumped(value: dict[str, Any]) -> str:
    """Return compact ASCII JSON."""
    try:
        return msgspec.json.encode(value).decode("ascii")  # in a fifth of the time
    except UnicodeError:
        return json.dumps(value, separators=(",", ":"))


def _loaded(text: str) -> dict[str, Any]:
    """Return what `_dumped` was given."""
    try:
        value: dict[str, Any] = msgspec.json.decode(text)
    except msgspec.DecodeError:  # names that are not UTF-8
        value = json.loads(text)
    return value
