"""Write objects completely or not at all, and replace existing ones only on request."""

from __future__ import annotations

import contextlib
import errno
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
from datapipe.stores.objects import ListedObject
from datapipe.stores.opening import open_store
from datapipe.stores.requests import requests
from datapipe.stores.retries import TIMEOUT_S, pause_s, retried

ONE_REQUEST_NBYTES = 1 << 30  # larger objects are written in parts, each of which can be repeated by itself
MAX_OBJECT_NBYTES = 5 << 40  # S3's limit
_PART_NBYTES = 64 << 20
_MAX_PARTS = 10_000  # S3's limit
_PARTS_AT_ONCE = 4
WRITABLE = ("s3", "gs", "az")


def refuse_unwritable(location: Location) -> None:
    """Raise OptionError for locations that cannot be written."""
    if location.scheme not in WRITABLE:
        names = ", ".join(f"{scheme}://" for scheme in WRITABLE)
        raise OptionError(f"{location}: cannot be written; choose a place in one of {names}")


def upload(path: Path, location: Location, *, overwrite: bool, timeout_s: float = TIMEOUT_S) -> bool:
    """Write a file as one object; return whether it was written: False if the object has these bytes already.

    The object appears completely or not at all. Without `overwrite`, an existing object with other bytes is kept: StorageError.
    Existing objects are compared by their bytes. Up to 1 GiB is written by one request; larger files in parts, where the store
    cannot refuse to replace an object that appears meanwhile. Raises StorageError, and OptionError for a file that is too large.
    """
    with open_file(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > MAX_OBJECT_NBYTES:
            raise OptionError(f"{path}: {nbytes} bytes exceed the {MAX_OBJECT_NBYTES} of one object; pass a smaller --shard-size")
        contents: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if nbytes else b""
        return write(contents, location, overwrite=overwrite, timeout_s=timeout_s)


def write(contents: Any, location: Location, *, overwrite: bool, timeout_s: float = TIMEOUT_S) -> bool:
    """Write bytes, or what has a buffer, as one object; otherwise like `upload`."""
    requests().check_process()
    begun_s, attempts = time.monotonic(), 0
    while True:
        try:
            if len(contents) <= ONE_REQUEST_NBYTES:
                _put(location, contents, overwrite=overwrite)
            elif overwrite or found_object(location) is None:
                _put_in_parts(location, contents)
            elif not holds(location, contents):
                raise _other_bytes(location)
            else:
                return attempts > 0
        except DatapipeError:
            raise
        except Exception as exc:
            failure, elapsed_s = examine(exc, location), time.monotonic() - begun_s
            if failure.kind in (Cause.EXISTS, Cause.CHANGED) and not overwrite:  # perhaps ours, whose response was lost
                if holds(location, contents):
                    return attempts > 0
                raise _other_bytes(location) from None
            if not failure.may_pass or elapsed_s > timeout_s:
                raise failure.error(location) from None
            time.sleep(pause_s(attempts))
            attempts += 1
        else:
            return True


def _other_bytes(location: Location) -> StorageError:
    what = "holds something else, of another conversion; choose another place, or pass --overwrite"
    return StorageError(errno.EEXIST, f"{location}: {what}")


def _put(location: Location, contents: Any, *, overwrite: bool) -> None:
    store = open_store(location, for_uploads=True)
    store.put(location.key, contents, mode="overwrite" if overwrite else "create", use_multipart=False)


def _put_in_parts(location: Location, contents: Any) -> None:
    """Write an object of several parts, which appears with the last one; a failed part is written again by the library."""
    nbytes = max(_PART_NBYTES, -(-len(contents) // _MAX_PARTS))
    pieces = (memoryview(contents)[start : start + nbytes] for start in range(0, len(contents), nbytes))
    store = open_store(location, for_uploads=True, retries=True)
    store.put(location.key, pieces, use_multipart=True, chunk_size=nbytes, max_concurrency=_PARTS_AT_ONCE)


def holds(location: Location, contents: Any) -> bool:
    """Return whether the object has exactly these bytes; reads it if the size matches. Raises StorageError."""
    digest = hashlib.sha256()
    try:
        download(location, lambda piece, offset: digest.update(piece), nbytes=len(contents))
    except MissingDataError:
        return False
    except StorageError:
        found = found_object(location)
        if found is None or found.nbytes != len(contents):
            return False
        raise
    return digest.digest() == hashlib.sha256(contents).digest()


def found_object(location: Location) -> ListedObject | None:
    """Return the size and etag of an object, None if it does not exist. Raises StorageError."""
    requests().check_process()
    try:
        meta = retried(lambda: open_store(location).head(location.key), location)
    except MissingDataError as exc:
        if "no such object" not in str(exc):
            raise
        return None
    return ListedObject(location.name, int(meta["size"]), meta["e_tag"])


def delete(location: Location) -> None:
    """Delete an object; does nothing if it does not exist. Raises StorageError."""
    requests().check_process()
    with contextlib.suppress(MissingDataError):
        retried(lambda: open_store(location).delete(location.key), location)
