"""Make the index of a place whose form lists its samples: folders, archives, lists of files, databases.

The samples are sorted on disk, so memory does not grow with their number. Values that lie in no file as they are, such as the
cells of a list, are written next to the index. What cannot be read, as far as the listing shows it, stays in the index with the
reason: it is a bad sample when it is read.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from crc32c import crc32c

from datapipe.codecs.field_values import LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec, encode_value
from datapipe.codecs.stored import PLAIN, absent, why_absent
from datapipe.containers.foreign import cached_home, progress
from datapipe.containers.form import Form, refuse_root
from datapipe.containers.forms import FORMS
from datapipe.containers.listing import told_of_loops
from datapipe.core.database import open_database
from datapipe.core.directories import status_of
from datapipe.core.printable import counted, get_logger
from datapipe.errors import DecodeError, FormatError, MissingDataError, StorageError
from datapipe.index.listed import ListedSample, ScanNotes, Source, SourceFacts, Workspace, join, missing_fields
from datapipe.index.manifest import Manifest, ShardInfo, class_numbers, write_manifest
from datapipe.index.sidecar import SIDECAR_SUFFIX, FieldExtent, SidecarRows, write_sidecar

ROWS_PER_SIDECAR = 1 << 16
_KEPT_S = 7 * 24 * 3600  # for which a job may go on that opened an index that was made again
_MAX_SHOWN = 3  # samples in a warning
_SAMPLES = "CREATE TABLE samples (place INTEGER, directory BLOB, name BLOB, label INTEGER, nbytes INTEGER, rest TEXT)"
_INSERT = "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)"
_SORTED = "SELECT directory, name, label, nbytes, rest FROM samples ORDER BY place, directory, name"
_VALUES_SUFFIX = ".values"
_LISTING_NAME = "listing.db"
_CONTAINERS = {"image-folder": "folder"}  # the name of a form in manifests, where it is another one

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ForeignPlace:
    """A place of a form that lists its samples."""

    place: Path  # absolute
    form: Form  # known
    is_recognised: bool = False  # by a look at the place, rather than named

    names = None  # its shards are parts of the listing

    @property
    def where(self) -> str:
        return str(self.place)

    def root(self, stamp: dict[str, Any]) -> Path:
        return Path(stamp["root"])

    @property
    def container(self) -> str:
        return _CONTAINERS.get(self.form.name, self.form.name)

    def homes(self) -> list[Path]:
        """Return the one in the user's cache: in the place itself, a directory would count as a class."""
        form = self.form
        how = [[str(choice) for choice in form.fields], form.class_from and form.class_from.value]
        # Paths as they were named: a link may lead elsewhere tomorrow.
        paths = [path and str(path) for path in (self.place, form.root, form.class_map)]
        return [cached_home(self.container, self.place, json.dumps([*how, *paths]))]

    def is_as_stamped(self, stamp: dict[str, Any]) -> bool:
        """Return True if the files and directories that decided about the listing are as they were."""
        files, directories = stamp.get("files"), stamp.get("directories")
        if not isinstance(files, dict) or not isinstance(directories, dict) or "root" not in stamp:
            return False
        root = str(stamp["root"])
        return all(_file_stamp(root, name) == value for name, value in files.items()) and all(
            _directory_stamp(root, name) == value for name, value in directories.items()
        )

    def make_index(self, home: Path) -> dict[str, Any]:
        _clear(home)
        own = {str(path): _file_stamp("", str(path)) for path in (self.place, self.form.class_map) if path and path.is_file()}
        top_ns = status_of(self.place).st_mtime_ns if self.place.is_dir() else None  # before anything in it was seen
        source, notes, holders = self._source(), ScanNotes(), dict[bytes, list[int]]()
        root = str(source.root)
        path = home / _LISTING_NAME
        try:
            with open_database(path, temporary=home) as connection:
                connection.execute("BEGIN")
                connection.execute(_SAMPLES)
                samples = progress(source.scan(notes, Workspace(home, None)), self.where, total=None, unit="sample")
                connection.executemany(_INSERT, (_row(sample, holders) for sample in samples))
                facts = source.facts()
                self._refuse_unlisted(notes, facts, connection)
                held = {os.fsdecode(name): list(value) for name, value in {**holders, **notes.files}.items()}
                directories: dict[str, int | None] = {os.fsdecode(name) or ".": time for name, time in notes.directories.items()}
                if top_ns is not None:
                    directories["."] = top_ns
                for name in sorted(_folders_of(root, notes.absent) - directories.keys()):
                    directories[name] = _directory_stamp(root, name)
                rows = connection.execute(_SORTED)
                manifest = self._write_parts(home, facts, rows, version=_version_of(held))
        finally:
            path.unlink(missing_ok=True)
        write_manifest(home, manifest)
        for warning in facts.warnings:
            logger.warning("%s: %s", self.where, warning)
        if notes.loops:
            logger.warning("%s: %s", self.where, told_of_loops(sorted(map(os.fsdecode, notes.loops))))
        return {"root": root, "files": {**own, **held}, "directories": directories}

    def _write_parts(self, home: Path, facts: SourceFacts, rows: Iterator[tuple[Any, ...]], *, version: int) -> Manifest:
        """Write the sidecars of the sorted samples, and the files of their values; return the manifest, which is not written.

        `version`: a number made of the files that hold several samples, in place of the time of a shard.
        """
        shards: list[ShardInfo] = []
        absent_ones: list[str] = []
        first = num_absent = 0
        while some := list(itertools.islice(rows, ROWS_PER_SIDECAR)):
            name = f"part-{len(shards):05d}"
            unnamed = home / (name + _VALUES_SUFFIX)
            with unnamed.open("wb") as file:
                part = _Part(facts, file, first)
                for row in some:
                    part.add(*row)
            part.name_values(unnamed)
            digest = write_sidecar(home / (name + SIDECAR_SUFFIX), part.rows, name)
            shards.append(ShardInfo(name, len(some), part.nbytes, first, len(some), index_sha256=digest, mtime_ns=version))
            first += len(some)
            num_absent += part.num_absent
            absent_ones += part.absent_ones
        if num_absent == first:
            remedy = f"; it was recognised as {FORMS[self.form.name].title}: if it is not, say --from what it is"
            reason = f"none of its {counted(first, 'sample')} can be read; {absent_ones[0]}"
            raise FormatError(f"{self.where}: {reason}{remedy if self.is_recognised else ''}")
        if num_absent:
            shown = "; ".join(absent_ones[:_MAX_SHOWN]) + ("; ..." if num_absent > _MAX_SHOWN else "")
            logger.warning(
                "%s: %d of %s cannot be read, which on_error= decides about: %s",
                self.where,
                num_absent,
                counted(first, "sample"),
                shown,
            )
        return Manifest(
            container=self.container,
            fields=facts.fields,
            shards=tuple(shards),
            classes=facts.classes,
            class_to_idx=class_numbers(facts.classes),
            is_listing=True,
        )

    def _source(self) -> Source:
        if not FORMS[self.form.name].takes_root:
            refuse_root(self.form)
        source: Source = importlib.import_module(FORMS[self.form.name].source).open_source(self.place, self.form)
        return source

    def _refuse_unlisted(self, notes: ScanNotes, facts: SourceFacts, connection: sqlite3.Connection) -> None:
        if notes.problems:
            problem = notes.problems[0]
            where = (
                self.where if os.fsencode(self.place.name) == problem.source else f"{self.where}: {os.fsdecode(problem.source)}"
            )
            raise (FormatError if problem.is_damaged else StorageError)(f"{where}: {problem.reason}")
        if connection.execute("SELECT 1 FROM samples LIMIT 1").fetchone() is None:
            raise MissingDataError(f"{self.where}: {facts.nothing} ({notes.num_ignored} other files); {facts.remedy}")


def _row(sample: ListedSample, holders: dict[bytes, list[int]]) -> tuple[object, ...]:
    """Return a sample as a row of the listing; `holders` gets the files that hold several samples, with their sizes and times.

    `rest` is the name of the field for a sample that is a whole file of its own name, as most are, and JSON for any other.
    """
    directory, name, place, label, origins, values, size, problem = sample
    if len(origins) == 1 and not values and size is None and problem is None:
        ((field, origin),) = origins.items()
        if origin.is_whole and origin.path == join(directory, name):
            return place, directory, name, label, origin.nbytes, field
    for origin in origins.values():
        if not origin.is_whole and origin.path not in holders:
            holders[origin.path] = [origin.file_nbytes, origin.mtime_ns]
    where = {field: (os.fsdecode(one.path), one.offset, one.nbytes, one.codec, one.is_whole) for field, one in origins.items()}
    return place, directory, name, label, 0, json.dumps([where, dict(values), size, problem])


def _clear(home: Path) -> None:
    """Delete what an interrupted run, or a larger listing, left; values that another process may still read stay for a while."""
    for path in (*home.glob("part-*"), *home.glob("*.db")):
        if path.suffix != _VALUES_SUFFIX or path.stat().st_mtime < time.time() - _KEPT_S:
            path.unlink(missing_ok=True)


def _folders_of(root: str, absent_files: Iterable[bytes]) -> set[str]:
    """Return the nearest folders, relative to the root, in which files that are not there would show."""
    folders: set[str] = set()
    for directory in {os.path.dirname(name) for name in absent_files}:
        while directory and not os.path.isdir(os.path.join(os.fsencode(root), directory)):
            directory = os.path.dirname(directory)
        folders.add(os.fsdecode(directory) or ".")
    return folders


def _version_of(held: Mapping[str, list[int]]) -> int:
    """Return a number that changes with the files that hold samples; 0 if there are none."""
    return int.from_bytes(hashlib.sha256(json.dumps(sorted(held.items())).encode()).digest()[:7]) if held else 0


def _file_stamp(root: str, name: str) -> list[int] | None:
    try:
        status = os.stat(os.path.join(root, name))
    except (OSError, ValueError):  # a name that no file can have
        return None
    return [status.st_size, status.st_mtime_ns]


def _directory_stamp(root: str, name: str) -> int | None:
    try:
        return os.stat(os.path.join(root, name)).st_mtime_ns
    except (OSError, ValueError):
        return None


class _Sample(NamedTuple):
    """A sample of the listing that is not just a file of its own name."""

    key: bytes
    where: Mapping[str, tuple[str, int, int, str, bool]]  # by field: path, offset, bytes, codec, and whether it is a whole file
    values: Mapping[str, str]
    size: tuple[int, int]
    problem: str | None


class _Part:
    """The sidecar of some of the samples, and the file of their values, while they are written."""

    def __init__(self, facts: SourceFacts, file: IO[bytes], first: int) -> None:
        self.nbytes = 0  # of all fields
        self.num_absent = 0  # samples some field of which cannot be read
        self.absent_ones: list[str] = []  # the first of them, with the reason
        self._facts = facts
        self._file, self._position, self._digest = file, 0, hashlib.sha256()
        self._with_values: set[str] = set()  # fields
        self._first = first
        self._kinds = {spec.name: spec.kind for spec in facts.fields if spec != LABEL_FIELD}
        self._only = next(iter(self._kinds)) if len(self._kinds) == 1 else None  # field
        self._has_label = LABEL_FIELD in facts.fields
        self.rows = SidecarRows(tuple(self._kinds), classes=facts.classes)

    def add(self, directory: bytes, name: bytes, label: int, nbytes: int, rest: str) -> None:
        """Add the next sample, given its row of the listing."""
        key, number = join(directory, name), self._first + len(self.rows)
        label = label if self._facts.labels is None else self._facts.labels.get(label, NO_LABEL)
        if self._only == rest and (label != NO_LABEL or not self._has_label):
            self.nbytes += nbytes
            extents = {rest: FieldExtent("", 0, nbytes, None)}
            self.rows.append(id=number, key=key, source=key, label=label, size=(0, 0), extents=extents)
            return
        if not rest.startswith("["):
            sample = _Sample(key, {rest: (os.fsdecode(key), 0, nbytes, PLAIN, True)}, {}, (0, 0), None)
        else:
            where, values, size, problem = json.loads(rest)
            sample = _Sample(key, where, values, tuple(size or (0, 0)), problem)
        problem = sample.problem
        if problem is None and self._has_label and label == NO_LABEL:
            problem = missing_fields((LABEL_FIELD,), frozenset((*sample.where, *sample.values)), label)
        extents = {name: self._extent(name, kind, sample, problem) for name, kind in self._kinds.items()}
        self.nbytes += sum(extent.nbytes for extent in extents.values())
        reason = next((why for extent in extents.values() if (why := why_absent(extent.codec)) is not None), None)
        if reason is not None:
            self.num_absent += 1
            self.absent_ones += [] if len(self.absent_ones) > _MAX_SHOWN else [f"{os.fsdecode(key)} ({reason})"]
        self.rows.append(id=number, key=key, source=key, label=label, size=sample.size, extents=extents)

    def name_values(self, path: Path) -> None:
        """Give the file of the values the name that they make, so that another listing leaves them to whoever reads them now."""
        if not self._with_values:
            path.unlink()
            return
        named = path.with_name(f"{path.stem}.{self._digest.hexdigest()[:16]}{_VALUES_SUFFIX}")
        path.replace(named)
        self.rows.values_file |= dict.fromkeys(self._with_values, named.name)

    def _extent(self, name: str, kind: FieldKind, sample: _Sample, problem: str | None) -> FieldExtent:
        """Return where a field of a sample lies; a value of its own is written now."""
        if problem is None and name in sample.values:
            return self._written(name, kind, sample.values[name])
        if problem is None and name not in sample.where:
            spec = FieldSpec(name, kind)
            problem = missing_fields((spec,), frozenset((*sample.where, *sample.values)), NO_LABEL)
        if problem is not None:
            return FieldExtent("", 0, 0, None, codec=absent(problem))
        path, offset, nbytes, codec, is_whole = sample.where[name]
        if not is_whole:
            self.rows.ranges.add(name)
        held = os.fsencode(path)
        return FieldExtent("", offset, nbytes, None, path=b"" if held == sample.key else held, codec=codec)

    def _written(self, name: str, kind: FieldKind, text: str) -> FieldExtent:
        self._with_values.add(name)
        try:
            data = encode_value(kind, text)
        except DecodeError as exc:
            return FieldExtent("", 0, 0, None, codec=absent(str(exc)))
        self._file.write(data)
        self._digest.update(data)
        self._position += len(data)
        return FieldExtent("", self._position - len(data), len(data), crc32c(data))
