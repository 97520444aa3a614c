"""SQLite files of listings and plans: built once, then read. Large ones sort on disk, so memory stays constant."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from datapipe.core import regular_files
from datapipe.errors import IntegrityError, StorageError

_CACHE_KIB = 8192  # cache per database; also the size of a sorted run


@contextlib.contextmanager
def open_database(path: Path, *, temporary: Path | None = None) -> Iterator[sqlite3.Connection]:
    """Open a database for building: no journal, since an unfinished one is discarded.

    `temporary`: directory that sorting spills to. Translates sqlite's errors into StorageError.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    directory = None if temporary is None else os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {pragma}")
        if directory is not None:  # deprecated by sqlite, but the only way that works after its initialisation
            connection.execute(f"PRAGMA temp_store_directory = '/proc/self/fd/{directory}'")  # its name may not be UTF-8
        yield connection
    except sqlite3.OperationalError as exc:
        raise StorageError(f"{path.parent}: samples cannot be listed there ({exc}); free space or check permissions") from exc
    finally:
        if directory is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA temp_store_directory = ''")
            os.close(directory)
        connection.close()


@contextlib.contextmanager
def open_scratch(scratch: Path, name: str) -> Iterator[sqlite3.Connection]:
    """Open a database in the directory `scratch`, within one transaction, and delete it at the end."""
    path = scratch / f"{name}.{os.getpid()}.db"
    path.unlink(missing_ok=True)
    try:
        with open_database(path) as connection:
            connection.execute("BEGIN")
            yield connection
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def attached(connection: sqlite3.Connection, scratch: Path, name: str) -> Iterator[None]:
    """Attach a second database as `name` to `connection`, with one transaction over both, and delete it at the end."""
    path = scratch / f"{name}.{os.getpid()}.db"
    path.unlink(missing_ok=True)
    connection.execute(f"ATTACH ? AS {name}", (os.fsencode(path),))
    try:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {name}.{pragma}")
        connection.execute("BEGIN")
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute(f"DETACH {name}")
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a finished plan. It never changes, so several machines may share it."""
    regular_files.refuse_irregular(path)
    quoted = urllib.parse.quote(os.fsencode(path.absolute()))
    connection = sqlite3.connect(f"file://{quoted}?mode=ro&immutable=1", uri=True, isolation_level=None)
    try:
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB // 4}")
        yield connection
    except sqlite3.DatabaseError as exc:
        raise IntegrityError(f"{path}: the plan is damaged ({exc}); delete {path.parent} and convert again") from exc
    finally:
        connection.close()
