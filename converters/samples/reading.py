"""Turn planned samples into stored ones: read, check and encode their bytes, or find them bad, with a reason."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from converters.samples.examine import Treatment, examine
from converters.writers import StoredField, StoredSample
from datapipe.codecs.field_values import NO_LABEL, FieldKind, FieldSpec, encode_value
from datapipe.codecs.probe import MAX_SAMPLE_NBYTES
from datapipe.codecs.stored import decode_stored
from datapipe.core.regular_files import open_descriptor, path_inside
from datapipe.errors import DecodeError, FormatError, IntegrityError, MissingDataError, StorageError
from datapipe.index.listed import ANY_SIZE, Origin, missing_fields, needed_fields
from datapipe.stores.pending import PendingBytes, RemoteObject
from datapipe.stores.places import parse_location
from datapipe.stores.random_access import RemoteBytes, pin_object
from datapipe.stores.requests import requests

_OPEN_AHEAD = 16  # samples whose files are opened in advance, so that the disk reads them meanwhile
_MOST_OPEN = 64  # their files, of which a conversation may have many
_KEPT_OPEN = 64  # files of which samples are parts
_OBJECTS = 4  # of which more than a sample's own bytes is kept
_REQUESTED_AHEAD = 256  # samples whose objects are requested in advance, to hide the latency of a store
_REQUESTED_NBYTES = 64 << 20
_PLAN = "the plan of the conversion"


class PlannedSample(NamedTuple):  # made by the million: a dataclass takes three times as long
    """One slot of a shard."""

    slot: int
    id: int
    label: int
    source: bytes  # its name: a path relative to the source's root
    problem: str | None  # why it cannot be read, if the listing shows that
    origins: Mapping[str, Origin]  # by field
    values: Mapping[str, str]  # by field: text, or JSON text
    nbytes: int  # of the values of these origins
    size: tuple[int, int] | None = None  # required (height, width) of its image


@dataclass(frozen=True, slots=True)
class Roots:
    """The places that the paths of origins are relative to."""

    source: bytes  # the absolute path of a directory, or the URL of a prefix
    spool: bytes

    @property
    def is_remote(self) -> bool:
        return not os.path.isabs(self.source)

    def root_of(self, origin: Origin) -> bytes:
        return self.spool if origin.is_spooled else self.source


@dataclass(frozen=True, slots=True)
class LeftOutSample:
    """A sample that is left out."""

    planned: PlannedSample
    reason: str
    contents: dict[str, bytes]  # by field, what could be read of it
    is_unwanted: bool = False  # it is good, and the options leave it out


class UnwantedError(Exception):
    """A sample that the options leave out; the text says why."""


class _OpenFile:
    """A descriptor, closed when the last sample that needs it, and the files kept open, have dropped it."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone at the interpreter's end
        close(self.descriptor)


_Files = OrderedDict[tuple[bool, bytes], _OpenFile]  # by whether it is spooled, and path; the first opened first


@dataclass(slots=True)
class _WaitingSample:
    """A sample waiting for its turn: its open files and requested objects, or why there are none."""

    planned: PlannedSample
    held: dict[str, _OpenFile | PendingBytes] = field(default_factory=dict)  # by field
    nbytes: int = 0  # of what was requested
    problem: str | None = None

    def close(self) -> None:
        self.held.clear()


def read_samples(
    roots: Roots,
    planned: Iterable[PlannedSample],
    fields: tuple[FieldSpec, ...],
    treatment: Treatment,
    *,
    check: Callable[[StoredSample], None],
) -> Iterator[tuple[PlannedSample, StoredSample | LeftOutSample]]:
    """Yield the samples of a shard, in order, each with its plan.

    `fields`: those that every sample must have. `check` raises DecodeError for a sample that could not be written.
    Raises IntegrityError if a file has changed since it was planned.
    """
    is_complete = has_fields(fields)
    for sample, contents, problem in read_each(roots, planned):
        if problem is None and not is_complete(sample):
            problem = missing_fields(fields, frozenset((*sample.origins, *sample.values)), sample.label)
        if problem is not None:
            yield sample, LeftOutSample(sample, problem, contents)
            continue
        try:
            examined = examine({**contents, **own_values(sample, fields)}, fields, treatment, size=sample.size)
            stored = StoredSample(sample.id, sample.source, sample.label, examined.size, examined.fields)
            check(stored)
        except DecodeError as exc:
            yield sample, LeftOutSample(sample, str(exc), contents)
        else:
            yield sample, stored


def made_samples(
    roots: Roots,
    planned: Iterable[PlannedSample],
    fields: tuple[FieldSpec, ...],
    treatment: Treatment,
    *,
    check: Callable[[StoredSample], None],
    is_made: Callable[[FieldSpec], bool],
    make: Callable[[HeldField, Mapping[str, str]], StoredField],
) -> Iterator[tuple[PlannedSample, StoredSample | LeftOutSample]]:
    """Yield the samples of a shard as `read_samples` does; `make` makes some of their fields, which may be large, as videos are.

    It gets a field, and the sample's own values, and raises DecodeError for a bad one, UnwantedError for one that is to be
    left out.
    """
    others = tuple(field for field in fields if not is_made(field))
    is_complete = has_fields(fields)
    for sample, held, problem in open_each(roots, planned):
        if problem is None and not is_complete(sample):
            problem = missing_fields(fields, frozenset((*sample.origins, *sample.values)), sample.label)
        if problem is not None:
            yield sample, LeftOutSample(sample, problem, {})
            continue
        try:
            made = {field.name: make(held[field.name], sample.values) for field in fields if is_made(field)}
            values = {name: one.value() for name, one in held.items() if name not in made}
            examined = examine({**values, **own_values(sample, others)}, others, treatment, size=sample.size)
            stored = StoredSample(sample.id, sample.source, sample.label, examined.size, {**made, **examined.fields})
            check(stored)
        except UnwantedError as exc:
            yield sample, LeftOutSample(sample, str(exc), {}, is_unwanted=True)
        except DecodeError as exc:
            yield sample, LeftOutSample(sample, str(exc), _whole(held))
        except StorageError:  # what the store does is no sample's fault
            raise
        except OSError as exc:
            yield sample, LeftOutSample(sample, f"cannot be read: {exc.strerror}", {})
        else:
            yield sample, stored


def has_fields(fields: tuple[FieldSpec, ...]) -> Callable[[PlannedSample], bool]:
    """Return a function that tells whether a sample has all of these fields, as nearly all have. See also `missing_fields`."""
    needed = frozenset(needed_fields(fields))
    has_labels = any(field.kind is FieldKind.LABEL for field in fields)

    def is_complete(sample: PlannedSample) -> bool:
        return needed.issubset((*sample.origins, *sample.values)) and not (has_labels and sample.label == NO_LABEL)

    return is_complete


def _whole(held: Mapping[str, HeldField]) -> dict[str, bytes]:
    """Return the bytes of the files that are samples by themselves, to be put aside."""
    return {name: one.value() for name, one in held.items() if one.origin.is_whole and one.origin.nbytes <= MAX_SAMPLE_NBYTES}


def own_values(sample: PlannedSample, fields: tuple[FieldSpec, ...]) -> dict[str, bytes]:
    """Return the bytes of the fields whose values lie in no file. Raises DecodeError."""
    if not sample.values:
        return {}
    kinds = {field.name: field.kind for field in fields}
    return {name: encode_value(kinds[name], text) for name, text in sample.values.items() if name in kinds}


def read_each(roots: Roots, planned: Iterable[PlannedSample]) -> Iterator[tuple[PlannedSample, dict[str, bytes], str | None]]:
    """Yield each sample with what could be read of it, and why some is missing. Raises IntegrityError if a file changed."""
    for opened in _open_ahead(roots, planned):
        contents: dict[str, bytes] = {}
        try:
            problem = _read(roots, opened, contents)
        finally:
            opened.close()
        yield opened.planned, contents, problem


@dataclass(frozen=True, slots=True)
class HeldField:
    """A field of a sample whose bytes are read as they are needed."""

    origin: Origin
    _held: _OpenFile | PendingBytes
    _roots: Roots

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the file or object that holds the field, fewer at its end.

        Raises IntegrityError if it has changed since it was listed, StorageError if a store fails.
        """
        if isinstance(self._held, _OpenFile):
            _refuse_changed(self._held.descriptor, self.origin, self._roots)
            return os.pread(self._held.descriptor, nbytes, offset)
        begin, end = offset - self.origin.offset, min(offset + nbytes, self.origin.file_nbytes) - self.origin.offset
        if begin >= 0 and end <= self.origin.nbytes:
            return _received(self._held)[begin : max(begin, end)]
        with _as_listed(self._held):
            opened = _opened_object(str(self._held.object.location), self.origin.etag or None, self.origin.file_nbytes)
            return opened[offset : offset + nbytes]

    def open_whole(self) -> int:
        """Return a descriptor of the local file that holds the field, valid for as long as this. Raises as `read`."""
        assert isinstance(self._held, _OpenFile)
        _refuse_changed(self._held.descriptor, self.origin, self._roots)
        return self._held.descriptor

    def value(self) -> bytes:
        """Return the bytes of the field. Raises as `read`, and DecodeError."""
        return decode_stored(_bytes_of(self._held, self.origin, self._roots), self.origin.codec)


def open_each(roots: Roots, planned: Iterable[PlannedSample]) -> Iterator[tuple[PlannedSample, dict[str, HeldField], str | None]]:
    """Yield each sample with its fields, to be read until the next one is asked for, or why it cannot be read."""
    for opened in _open_ahead(roots, planned):
        try:
            origins = opened.planned.origins
            held = {name: HeldField(origins[name], one, roots) for name, one in opened.held.items()}
            yield opened.planned, held, opened.problem
        finally:
            opened.close()


def _open_ahead(roots: Roots, planned: Iterable[PlannedSample]) -> Iterator[_WaitingSample]:
    """Yield each sample with its open files. The receiver closes them."""
    waiting: deque[_WaitingSample] = deque()
    kept: _Files = OrderedDict()  # those of which samples are parts
    is_remote = roots.is_remote
    most = _REQUESTED_AHEAD if is_remote else _OPEN_AHEAD
    nbytes = num_open = 0
    try:
        for sample in planned:
            opened = _WaitingSample(sample, problem=sample.problem)
            waiting.append(opened)
            if opened.problem is None:
                _open(roots, opened, kept, is_remote=is_remote)
            nbytes += opened.nbytes
            num_open += 0 if is_remote else len(opened.held)
            while len(waiting) > most or ((nbytes > _REQUESTED_NBYTES or num_open > _MOST_OPEN) and waiting):
                nbytes -= waiting[0].nbytes
                num_open -= 0 if is_remote else len(waiting[0].held)
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for opened in waiting:
            opened.close()


def _open(roots: Roots, opened: _WaitingSample, kept: _Files, *, is_remote: bool) -> None:
    """Open the files of a sample, or record why one cannot be opened. `kept`: files that stay open for others."""
    origins, nbytes = opened.planned.origins, opened.planned.nbytes
    if nbytes > MAX_SAMPLE_NBYTES:
        opened.problem = f"{nbytes} bytes exceed the limit of {MAX_SAMPLE_NBYTES} for one sample"
        return
    for name, origin in origins.items():
        if is_remote and not origin.is_spooled:
            opened.held[name] = _requested(roots.source, origin)
            opened.nbytes += origin.nbytes
            continue
        place = (origin.is_spooled, origin.path)
        file = kept.get(place)
        if file is None:
            path = path_inside(
                os.fsdecode(roots.root_of(origin)), os.fsdecode(origin.path), named_in=_PLAN, follows=True
            )  # as listed
            try:
                descriptor, _ = open_descriptor(path)
            except FileNotFoundError as exc:
                raise IntegrityError(f"{path}: was removed after the source was listed; {_CHANGED}") from exc
            except FormatError as exc:
                raise IntegrityError(f"{path}: changed since the source was listed; {_CHANGED}") from exc
            except OSError as exc:
                opened.problem = f"{_name(opened.planned, origin)}cannot be opened: {exc.strerror}"
                return
            file = _OpenFile(descriptor)
            if origin.codec or origin.nbytes != origin.file_nbytes:  # as others may be parts of it, too
                kept[place] = file
                if len(kept) > _KEPT_OPEN:
                    kept.popitem(last=False)
        opened.held[name] = file
        os.posix_fadvise(file.descriptor, origin.offset, origin.nbytes, os.POSIX_FADV_WILLNEED)


def _requested(root: bytes, origin: Origin) -> PendingBytes:
    """Ask for the range of an object, which must have the etag and the size that it was listed with."""
    location = parse_location(os.fsdecode(root)) / os.fsdecode(origin.path)
    target = RemoteObject(location, origin.etag, origin.file_nbytes) if origin.etag else RemoteObject(location)
    wanted = PendingBytes(target, origin.offset, origin.offset + origin.nbytes)
    if wanted.nbytes:
        requests().submit([wanted])
    else:
        wanted.finish(b"")
    return wanted


def _received(pending: PendingBytes) -> bytes:
    """Return what was asked for. Raises IntegrityError if the object has changed, StorageError if the store fails."""
    with _as_listed(pending):
        return pending.wait()


@functools.lru_cache(maxsize=_OBJECTS)  # its table of contents is read for each part of a video
def _opened_object(url: str, etag: str | None, nbytes: int) -> RemoteBytes:
    """Return the bytes of an object that must have this etag and size."""
    pin_object(url, etag=etag, nbytes=nbytes)
    return RemoteBytes(url)


@contextlib.contextmanager
def _as_listed(pending: PendingBytes) -> Iterator[None]:
    """Let an object that is gone, or another one by now, be an IntegrityError."""
    try:
        yield
    except MissingDataError as exc:
        raise IntegrityError(f"{pending.object.location}: was removed after the source was listed; {_CHANGED}") from exc
    except StorageError as exc:
        if exc.errno != errno.ESTALE:
            raise
        raise IntegrityError(f"{pending.object.location}: changed since the source was listed; {_CHANGED}") from exc


_CHANGED = "restore it, or delete the destination's .building folder and convert again"


def _read(roots: Roots, opened: _WaitingSample, contents: dict[str, bytes]) -> str | None:
    """Put the readable contents of a sample's files into `contents`; return why some are missing. Raises IntegrityError."""
    if opened.problem is not None:
        return opened.problem
    for name, origin in opened.planned.origins.items():
        try:
            data = _bytes_of(opened.held[name], origin, roots)
            contents[name] = decode_stored(data, origin.codec) if origin.codec else data
        except DecodeError as exc:
            return f"field {name!r}: {exc}"
        except StorageError:  # what the store does is no sample's fault
            raise
        except OSError as exc:
            return f"{_name(opened.planned, origin)}cannot be read: {exc.strerror}"
    return None


def _bytes_of(held: _OpenFile | PendingBytes, origin: Origin, roots: Roots) -> bytes:
    return _read_stretch(held.descriptor, origin, roots) if isinstance(held, _OpenFile) else _received(held)


def _read_stretch(descriptor: int, origin: Origin, roots: Roots) -> bytes:
    """Return the bytes of a field. Raises IntegrityError if its file is not as planned."""
    nbytes = origin.nbytes
    _refuse_changed(descriptor, origin, roots)
    data = os.pread(descriptor, nbytes, origin.offset)
    while len(data) < nbytes:  # network file systems may return less at a time
        more = os.pread(descriptor, nbytes - len(data), origin.offset + len(data))
        if not more:
            raise IntegrityError(f"{_path(roots, origin)}: became shorter during the read; {_CHANGED}")
        data += more
    return data


def _refuse_changed(descriptor: int, origin: Origin, roots: Roots) -> None:
    status = os.fstat(descriptor)
    if origin.file_nbytes not in (status.st_size, ANY_SIZE) or status.st_mtime_ns != origin.mtime_ns:
        raise IntegrityError(f"{_path(roots, origin)}: changed since the source was listed; {_CHANGED}")


def _path(roots: Roots, origin: Origin) -> str:
    return os.fsdecode(roots.root_of(origin) + b"/" + origin.path)


def _name(sample: PlannedSample, origin: Origin) -> str:
    """Return the file's name, unless the sample has the same name."""
    return "" if origin.path == sample.source else f"{os.fsdecode(origin.path)}: "
