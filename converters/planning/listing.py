"""The source's listing in a database, sorted on disk, so memory does not grow with the number of samples.

SQLite (standard library) sorts in runs that spill to temporary files. Tables: `directories(directory, path)`, numbered in
the order of their paths, and `listing`, one row per sample, numbered in listing order from 0. The bits of `fields` say which
fields the sample has (bit k is field k of the table `fields`). Where their bytes lie say the columns of `places`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from converters.planning import places
from datapipe.codecs.field_values import NO_LABEL, FieldKind
from datapipe.core.database import attached, open_read_only
from datapipe.errors import OptionError
from datapipe.index.listed import (
    ListedSample,
    ScanNotes,
    Source,
    SourceFacts,
    Workspace,
    field_of_origin,
    join,
    missing_fields,
    needed_fields,
)

_ROWS_AT_ONCE = 16  # whose values are held in memory
_ROWS_BETWEEN_REPORTS = 256 * _ROWS_AT_ONCE
_MAX_REMEMBERED = 4096  # directories; a source that returns to older ones lists them again
_COLUMNS = ("name", "label", "nbytes", "problem", "fields", *places.COLUMNS)
_COLUMNS_SQL = f"name BLOB, label INTEGER, nbytes INTEGER, problem TEXT, fields INTEGER, {places.COLUMNS_SQL}"
_MAX_FIELDS = 62  # bits of an integer in SQLite
_NUM_NAMED = 3  # unreadable samples to name


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Samples known to be bad from the listing alone."""

    num: int
    first: tuple[tuple[str, str], ...]  # (source, reason)


@dataclass(frozen=True, slots=True)
class ListingSummary:
    """The result of a scan."""

    num_samples: int
    nbytes: int
    notes: ScanNotes
    facts: SourceFacts
    field_order: tuple[str, ...]  # by bit of `fields`
    field_nbytes: dict[str, int]  # by field
    unreadable: Unreadable
    digest: str  # over every sample's name, size, label, fields and etags, in listing order; without times and places


def write_listing(
    connection: sqlite3.Connection, source: Source, *, space: Workspace, on_samples: Callable[[int], None]
) -> ListingSummary:
    """Scan `source` into the tables `directories` and `listing` of `connection`.

    `on_samples` gets the number of samples listed so far.
    """
    notes = ScanNotes()
    with attached(connection, space.scratch, "scan"):
        connection.execute("CREATE TABLE scan.directories (id INTEGER PRIMARY KEY, path BLOB)")
        connection.execute(f"CREATE TABLE scan.samples (place INTEGER, directory INTEGER, {_COLUMNS_SQL})")
        inserting = _Inserting(connection)
        insert = f"INSERT INTO scan.samples VALUES (?, ?, {', '.join('?' * len(_COLUMNS))})"
        for samples in _counted(source.scan(notes, space), on_samples):
            connection.executemany(insert, inserting.rows(samples))
        facts = source.facts()
        _sort(connection, facts.labels)
    num_samples, nbytes = connection.execute("SELECT count(*), coalesce(sum(nbytes), 0) FROM listing").fetchone()
    order = tuple(inserting.bits)
    unreadable = _find_unreadable(connection, facts, order)
    return ListingSummary(num_samples, nbytes, notes, facts, order, inserting.nbytes, unreadable, _digest(connection, order))


def _counted(samples: Iterator[ListedSample], on_samples: Callable[[int], None]) -> Iterator[list[ListedSample]]:
    num = 0
    while some := [*itertools.islice(samples, _ROWS_AT_ONCE)]:
        if num % _ROWS_BETWEEN_REPORTS == 0:
            on_samples(num)
        num += len(some)
        yield some
    on_samples(num)


class _Inserting:
    """Makes rows of samples as they arrive."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.bits: dict[str, int] = {}  # by field
        self.nbytes: dict[str, int] = {}  # by field, over all samples
        self._connection = connection
        self._directories: dict[bytes, int] = {}
        self._num_directories = 0

    def rows(self, samples: list[ListedSample]) -> list[tuple[object, ...]]:
        """Return the rows of these samples."""
        columns = [places.columns_of(sample) for sample in samples]
        return [(*self._row(sample), *own) for sample, own in zip(samples, columns, strict=True)]

    def _row(self, sample: ListedSample) -> tuple[object, ...]:
        fields = nbytes = 0
        sizes = {name: origin.value_nbytes if origin.codec else origin.nbytes for name, origin in sample.origins.items()}
        if sample.values:
            sizes |= {name: len(text) for name, text in sample.values.items()}
        for origin, size in sizes.items():
            name = field_of_origin(origin)
            bit = self.bits.get(name)
            if bit is None:
                if len(self.bits) == _MAX_FIELDS:
                    raise OptionError(f"more than {_MAX_FIELDS} fields, such as {name!r}; leave some out with --field NAME=none")
                bit = self.bits[name] = len(self.bits)
                self.nbytes[name] = 0
            fields |= 1 << bit
            self.nbytes[name] += size
            nbytes += size
        directory = self._directories.get(sample.directory) or self._number(sample.directory)
        return sample.place, directory, sample.name, sample.label, nbytes, sample.problem, fields

    def _number(self, directory: bytes) -> int:
        """Return the number of a directory that is new, from 1 on."""
        if len(self._directories) >= _MAX_REMEMBERED:
            self._directories.clear()
        self._num_directories += 1
        number = self._directories[directory] = self._num_directories
        self._connection.execute("INSERT INTO scan.directories VALUES (?, ?)", (number, directory))
        return number


def _sort(connection: sqlite3.Connection, labels: Mapping[int, int] | None) -> None:
    """Sort the scan into the listing's order: blobs compare byte by byte."""
    connection.execute("CREATE TABLE directories (directory INTEGER PRIMARY KEY, path BLOB)")
    connection.execute(f"CREATE TABLE listing (ordinal INTEGER PRIMARY KEY, directory INTEGER, {_COLUMNS_SQL})")
    connection.execute("CREATE TABLE scan.ranks (id INTEGER PRIMARY KEY, directory INTEGER)")
    connection.execute("INSERT INTO scan.ranks SELECT id, dense_rank() OVER (ORDER BY path) - 1 FROM scan.directories")
    connection.execute("INSERT INTO directories SELECT DISTINCT directory, path FROM scan.ranks JOIN scan.directories USING (id)")
    label, join_labels = "samples.label", ""
    if labels is not None:
        connection.execute("CREATE TABLE scan.labels (listed INTEGER PRIMARY KEY, label INTEGER)")
        connection.executemany("INSERT INTO scan.labels VALUES (?, ?)", labels.items())
        label, join_labels = "coalesce(labels.label, samples.label)", " LEFT JOIN scan.labels ON labels.listed = samples.label"
    connection.execute(
        "INSERT INTO listing SELECT row_number() OVER (ORDER BY place, ranks.directory, name) - 1,"
        f" ranks.directory, name, {label}, {', '.join(_COLUMNS[2:])}"
        f" FROM scan.samples JOIN scan.ranks ON ranks.id = samples.directory{join_labels}"
    )


def _find_unreadable(connection: sqlite3.Connection, facts: SourceFacts, order: tuple[str, ...]) -> Unreadable:
    """Count, in one pass, the samples that have a problem or lack a field."""
    required = sum(1 << order.index(name) for name in needed_fields(facts.fields) if name in order)
    has_labels = any(field.kind is FieldKind.LABEL for field in facts.fields)
    where = f"problem IS NOT NULL OR fields & {required} != {required}" + (f" OR label = {NO_LABEL}" if has_labels else "")
    num = connection.execute(f"SELECT count(*) FROM listing WHERE {where}").fetchone()[0]
    rows = connection.execute(
        f"SELECT path, name, problem, fields, label FROM listing CROSS JOIN directories USING (directory) WHERE {where}"
        f" ORDER BY ordinal LIMIT {_NUM_NAMED}"
    )
    first = []
    for path, name, problem, fields, label in rows:
        has = frozenset(field for bit, field in enumerate(order) if fields >> bit & 1)
        first.append((os.fsdecode(join(path, name)), problem or missing_fields(facts.fields, has, label) or ""))
    return Unreadable(num, tuple(first))


def _digest(connection: sqlite3.Connection, order: tuple[str, ...]) -> str:
    """Return the SHA-256 of the listing in hex, the same wherever and whenever its files are listed."""
    digest = hashlib.sha256()
    names: dict[int, str] = {}  # by the bits of `fields`, which are in the order of first occurrence
    for path, name, nbytes, problem, label, fields, *columns in connection.execute(_IN_ORDER):
        if fields not in names:
            names[fields] = repr(sorted(field for bit, field in enumerate(order) if fields >> bit & 1))
        row = f"({path!r}, {name!r}, {nbytes}, {problem is None}, {label}, {names[fields]}, {places.digested(tuple(columns))})"
        digest.update(row.encode())
    return digest.hexdigest()


# -- two listings ----------------------------------------------------------------------------------

_IN_ORDER = (
    f"SELECT path, name, nbytes, problem, label, fields, {', '.join(places.COLUMNS)}"
    " FROM listing CROSS JOIN directories USING (directory) ORDER BY ordinal"
)
_Row = tuple[bytes, bytes, int, str | None, int, int, int | None, str | None, bytes | None, str | None]


def first_difference(planned: Path, fresh: Path) -> str | None:
    """Return how the listing in the database `fresh` first differs from that in `planned`; None if it does not.

    The text names one sample and its change.
    """
    with open_read_only(planned) as before, open_read_only(fresh) as now:
        for old, new in itertools.zip_longest(before.execute(_IN_ORDER), now.execute(_IN_ORDER)):
            if old != new:
                return _explain(old, new, before, now)
    return None


def _explain(old: _Row | None, new: _Row | None, before: sqlite3.Connection, now: sqlite3.Connection) -> str:
    if old is None or (new is not None and old[:2] != new[:2] and not _holds(before, new)):
        return f"{_path(new)} is new"
    if new is None or old[:2] != new[:2]:
        return f"{_path(old)} is {'at another place' if _holds(now, old) else 'gone'}"
    if old[2] != new[2]:
        return f"{_path(old)} had {old[2]} bytes and has {new[2]}"
    if old[4] != new[4]:
        return f"{_path(old)} has another label"
    if old[3] != new[3] or old[5] != new[5]:
        return f"{_path(old)} changed its kind or its fields"
    return f"{_path(old)} was modified"


def _holds(connection: sqlite3.Connection, row: _Row) -> bool:
    """Return True if a listing has a sample of that name."""
    found = connection.execute(
        "SELECT 1 FROM listing JOIN directories USING (directory) WHERE name = ? AND path = ? LIMIT 1", (row[1], row[0])
    )
    return found.fetchone() is not None


def _path(row: _Row | None) -> str:
    return "" if row is None else os.fsdecode(join(row[0], row[1]))
