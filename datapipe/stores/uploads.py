"""Write objects completely or not at all, and replace existing ones only on request."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import time
from pathlib import Path
from typing import Any

from datapipe.core.errors import DatapipeError, MissingDataError, OptionError, StorageError
from datapipe.core.regular_files import open_file
from datapipe.stores.downloads import download
from datapipe.stores.failures import Cause, examine
from datapipe.stores.location import Location
from datapipe.stores.opening import open_store
from datapipe.stores.requests import requests
from datapipe.stores.retries import TIMEOUT_S, pause_s, retried

MAX_OBJECT_NBYTES = 5 << 30  # S3's limit for an object written by one request
WRITABLE = ("s3", "gs", "az")


def refuse_unwritable(location: Location) -> None:
    """Raise OptionError for locations that cannot be written."""
    if location.scheme not in WRITABLE:
        names = ", ".join(f"{scheme}://" for scheme in WRITABLE)
        raise OptionError(f"{location}: cannot be written; choose a place in one of {names}")


def upload(path: Path, location: Location, *, overwrite: bool, timeout_s: float = TIMEOUT_S) -> bool:
    """Write a file as one object, by one request; return whether it was written: False if the object has these bytes already.

    The object appears completely or not at all. Without `overwrite`, an existing object with other bytes is kept: StorageError.
    Existing objects are compared by their bytes. Raises StorageError, and OptionError for a file that is too large.
    """
    requests().check_process()
    with open_file(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > MAX_OBJECT_NBYTES:
            raise OptionError(f"{path}: {nbytes} bytes exceed the {MAX_OBJECT_NBYTES} of one object; pass a smaller --shard-size")
        contents: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if nbytes else b""
        begun_s, attempts = time.monotonic(), 0
        while True:
            try:
                _put(location, contents, overwrite=overwrite)
            except DatapipeError:
                raise
            except Exception as exc:
                failure, elapsed_s = examine(exc, location), time.monotonic() - begun_s
                if failure.kind in (Cause.EXISTS, Cause.CHANGED) and not overwrite:  # perhaps ours, whose response was lost
                    if holds(location, contents):
                        return attempts > 0
                    raise StorageError(
                        None,
                        f"{location}: holds something else, of another conversion; choose another place, or pass --overwrite",
                    ) from None
                if not failure.may_pass or elapsed_s > timeout_s:
                    raise failure.error(location) from None
                time.sleep(pause_s(attempts))
                attempts += 1
            else:
                return True


def _put(location: Location, contents: Any, *, overwrite: bool) -> None:
    store = open_store(location, for_uploads=True)
    store.put(location.key, contents, mode="overwrite" if overwrite else "create", use_multipart=False)


def holds(location: Location, contents: Any) -> bool:
    """Return whether the object has exactly these bytes; reads it if the size matches. Raises StorageError."""
    digest = hashlib.sha256()
    try:
        download(location, lambda piece, offset: digest.update(piece), nbytes=len(contents))
    except MissingDataError:
        return False
    except StorageError:
        if size_of(location) != len(contents):
            return False
        raise
    return digest.digest() == hashlib.sha256(contents).digest()


def size_of(location: Location) -> int | None:
    """Return the size of an object in bytes, None if it does not exist. Raises StorageError."""
    requests().check_process()
    try:
        return int(retried(lambda: open_store(location).head(location.key)["size"], location))
    except MissingDataError as exc:
        if "no such object" not in str(exc):
            raise
        return None


def delete(location: Location) -> None:
    """Delete an object; does nothing if it does not exist. Raises StorageError."""
    requests().check_process()
    with contextlib.suppress(MissingDataError):
        retried(lambda: open_store(location).delete(location.key), location)
