"""Objects written whole or not at all, and never over another one unless that is asked for."""

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

MAX_OBJECT_NBYTES = 5 << 30  # S3's limit for an object that is written at once
WRITABLE = ("s3", "gs", "az")


def refuse_unwritable(location: Location) -> None:
    """Raise OptionError for places that nothing is written to."""
    if location.scheme not in WRITABLE:
        names = ", ".join(f"{scheme}://" for scheme in WRITABLE)
        raise OptionError(f"{location}: cannot be written; choose a place in one of {names}")


def upload(path: Path, location: Location, *, overwrite: bool, timeout_s: float = TIMEOUT_S) -> bool:
    """Write a file as one object, in one request; return whether it was written: False where its bytes are there already.

    The object appears whole or not at all. Without `overwrite` another object of the name is left alone: StorageError. What it
    holds is compared by its bytes. Raises StorageError, and OptionError for a file that is too large.
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
                if failure.kind in (Cause.EXISTS, Cause.CHANGED) and not overwrite:  # perhaps ours, whose answer was lost
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
    """Whether the object has exactly these bytes; reads it if it has as many. Raises StorageError."""
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
    """The size of an object in bytes; None where there is none. Raises StorageError."""
    requests().check_process()
    try:
        return int(retried(lambda: open_store(location).head(location.key)["size"], location))
    except MissingDataError as exc:
        if "no such object" not in str(exc):
            raise
        return None


def delete(location: Location) -> None:
    """Delete an object; nothing happens where there is none. Raises StorageError."""
    requests().check_process()
    with contextlib.suppress(MissingDataError):
        retried(lambda: open_store(location).delete(location.key), location)
