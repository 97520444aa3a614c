"""The source's listing in a database: sorted on disk, so memory does not grow with the number of files.

SQLite (standard library) sorts in runs that spill into temporary files. Tables:
`directories(directory, label, path)`, numbered in listing order, and
`listing(ordinal, directory, name, nbytes, mtime_ns, problem)`, numbered likewise from 0.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from converters.sources.image_folder import ClassTable
from datapipe.containers.listing import ScanNotes, scan_class
from datapipe.errors import IntegrityError, StorageError

_CACHE_KIB = 32768  # per database; also the size of a sorted run
_ROWS_AT_ONCE = 4096
_FILE_COLUMNS = "name BLOB, nbytes INTEGER, mtime_ns INTEGER, problem TEXT"


@dataclass(frozen=True, slots=True)
class ListingSummary:
    """What a scan found."""

    num_files: int
    nbytes: int
    notes: ScanNotes
    empty_classes: tuple[str, ...]


@contextlib.contextmanager
def open_database(path: Path, *, temporary: Path | None = None) -> Iterator[sqlite3.Connection]:
    """Open a database for building: no journal, since an unfinished one is thrown away.

    `temporary`: where sorting spills to. Translates sqlite's errors into StorageError.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {pragma}")
        if temporary is not None:  # deprecated by sqlite, yet the only way that works after its initialisation
            connection.execute("PRAGMA temp_store_directory = '{}'".format(str(temporary).replace("'", "''")))
        yield connection
    except sqlite3.OperationalError as exc:
        raise StorageError(f"{path.parent}: the plan cannot be written ({exc}); free space or check permissions") from exc
    finally:
        if temporary is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA temp_store_directory = ''")
        connection.close()


@contextlib.contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a finished plan. It never changes, so several machines may share it."""
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    connection = sqlite3.connect(f"file:{quoted}?mode=ro&immutable=1", uri=True, isolation_level=None)
    try:
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB // 4}")
        yield connection
    except sqlite3.DatabaseError as exc:
        raise IntegrityError(f"{path}: the plan is damaged ({exc}); delete {path.parent} and convert again") from exc
    finally:
        connection.close()


def write_listing(
    connection: sqlite3.Connection, source: Path, classes: ClassTable, *, scratch: Path, on_files: Callable[[int], None]
) -> ListingSummary:
    """Scan `source` into the tables `directories` and `listing` of `connection`.

    `scratch`: a directory for files that are gone when this returns. `on_files` hears how many files
    were seen so far.
    """
    notes = ScanNotes()
    unsorted = scratch / f"scan.{os.getpid()}.db"
    unsorted.unlink(missing_ok=True)
    connection.execute("ATTACH ? AS scan", (os.fspath(unsorted),))
    try:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"):
            connection.execute(f"PRAGMA scan.{pragma}")
        connection.execute("CREATE TABLE scan.directories (id INTEGER PRIMARY KEY, place INTEGER, label INTEGER, path BLOB)")
        connection.execute(f"CREATE TABLE scan.files (directory INTEGER, {_FILE_COLUMNS})")
        connection.execute("BEGIN")
        populated = _insert_scan(connection, source, classes, notes, on_files)
        _sort(connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("DETACH scan")
        unsorted.unlink(missing_ok=True)
    num_files, nbytes = connection.execute("SELECT count(*), coalesce(sum(nbytes), 0) FROM listing").fetchone()
    empty = tuple(os.fsdecode(folder) for place, folder in enumerate(classes.folders) if place not in populated)
    return ListingSummary(num_files, nbytes, notes, empty)


def _insert_scan(
    connection: sqlite3.Connection, source: Path, classes: ClassTable, notes: ScanNotes, on_files: Callable[[int], None]
) -> set[int]:
    populated: set[int] = set()
    num_directories = num_files = 0
    rows: list[tuple[int, bytes, int, int, str | None]] = []
    insert = "INSERT INTO scan.files VALUES (?, ?, ?, ?, ?)"
    for place, (folder, label) in enumerate(zip(classes.folders, classes.labels, strict=True)):
        directory: bytes | None = None
        for file in scan_class(source, folder, notes):
            if file.directory != directory:  # the walk reads one directory after the other
                directory = file.directory
                num_directories += 1
                connection.execute("INSERT INTO scan.directories VALUES (?, ?, ?, ?)", (num_directories, place, label, directory))
                populated.add(place)
            rows.append((num_directories, file.name, file.nbytes, file.mtime_ns, file.problem))
            if len(rows) == _ROWS_AT_ONCE:
                connection.executemany(insert, rows)
                num_files += len(rows)
                rows.clear()
                on_files(num_files)
    connection.executemany(insert, rows)
    on_files(num_files + len(rows))
    return populated


def _sort(connection: sqlite3.Connection) -> None:
    """Blobs compare byte by byte, which is the listing's order."""
    connection.execute("CREATE TABLE directories (directory INTEGER PRIMARY KEY, label INTEGER, path BLOB)")
    connection.execute(f"CREATE TABLE listing (ordinal INTEGER PRIMARY KEY, directory INTEGER, {_FILE_COLUMNS})")
    connection.execute("CREATE TABLE scan.ranks (id INTEGER PRIMARY KEY, directory INTEGER)")
    connection.execute("INSERT INTO scan.ranks SELECT id, row_number() OVER (ORDER BY place, path) - 1 FROM scan.directories")
    connection.execute("INSERT INTO directories SELECT directory, label, path FROM scan.ranks JOIN scan.directories USING (id)")
    connection.execute(
        "INSERT INTO listing SELECT row_number() OVER (ORDER BY ranks.directory, files.name) - 1,"
        " ranks.directory, files.name, files.nbytes, files.mtime_ns, files.problem"
        " FROM scan.files AS files JOIN scan.ranks AS ranks ON ranks.id = files.directory"
    )


_IN_ORDER = (
    "SELECT path, name, nbytes, mtime_ns, problem, label FROM listing CROSS JOIN directories USING (directory) ORDER BY ordinal"
)
_Row = tuple[bytes, bytes, int, int, str | None, int]


def first_difference(planned: Path, fresh: Path) -> str | None:
    """How the listing in the database `fresh` first differs from that in `planned`; None if it does not.

    Names one file and what became of it.
    """
    with open_read_only(planned) as before, open_read_only(fresh) as now:
        for old, new in itertools.zip_longest(before.execute(_IN_ORDER), now.execute(_IN_ORDER)):
            if old != new:
                return _explain(old, new)
    return None


def _explain(old: _Row | None, new: _Row | None) -> str:
    if old is None or (new is not None and (new[5], new[:2]) < (old[5], old[:2])):
        return f"{_path(new)} is new"
    if new is None or old[:2] != new[:2]:
        return f"{_path(old)} is gone"
    if old[2] != new[2]:
        return f"{_path(old)} had {old[2]} bytes and has {new[2]}"
    if old[3] != new[3]:
        return f"{_path(old)} was modified"
    return f"{_path(old)} changed its kind or its label"


def _path(row: _Row | None) -> str:
    return "" if row is None else os.fsdecode(row[0] + b"/" + row[1])
