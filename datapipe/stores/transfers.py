"""Move large objects: download one as a stream that continues where it was interrupted; write one completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.core.atomic import write_at
from datapipe.core.regular_files import open_file
from datapipe.errors import DatapipeError, MissingDataError, OptionError, StorageError
from datapipe.stores.attempts import Attempts, answered
from datapipe.stores.failures import TIMEOUT_S, Cause, ChangedError, ShortBodyError, WholeObjectError, examine
from datapipe.stores.location import BUCKET_SCHEMES, Location
from datapipe.stores.objects import ListedObject, next_of, object_facts
from datapipe.stores.opening import open_store, reach
from datapipe.stores.requests import requests

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult

_CHUNK_NBYTES = 1 << 20


def download(
    location: Location,
    sink: Callable[[bytes | memoryview, int], None],
    *,
    nbytes: int | None = None,
    etag: str | None = None,
    timeout_s: float | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> int:
    """Read all of an object in the calling thread; return its size.

    `sink`: gets each piece and its offset, in order; its exceptions are passed on. `nbytes`, `etag`: that the object must have.
    `timeout_s`: time without a further MiB, or the rest, after which it fails; None: the process's. `is_wanted`: called between
    pieces; False ends it with StorageError.
    Raises MissingDataError and StorageError, also if the object has another size or is replaced meanwhile.
    """
    done, size = 0, nbytes
    etag = etag if location.has_etags else None
    attempts = Attempts(location, timeout_s=requests().timeout_s if timeout_s is None else timeout_s)
    while True:
        try:
            for piece, meta in _pieces(location, done, etag, attempts):
                if (etag is not None and meta["e_tag"] != etag) or size not in (None, meta["size"]):
                    raise ChangedError
                etag, size = meta["e_tag"] if location.has_etags else None, meta["size"]
                if len(piece):
                    try:
                        sink(piece, done)
                    except Exception as exc:  # not the store's, and not to be retried
                        raise _SinkError(exc) from exc
                    done += len(piece)
                    attempts.succeeded()
                if not is_wanted():
                    raise StorageError(None, f"{location}: given up")
            if done == size:
                return done
            raise ShortBodyError(f"{done} of {size} bytes")
        except DatapipeError:
            raise
        except _SinkError as exc:
            raise exc.args[0] from None
        except Exception as exc:
            failure = examine(exc, location)
            if failure.kind is Cause.CHANGED:
                raise StorageError(
                    None, f"{location}: is not of the size or etag that it had (expected {size} bytes); open the dataset again"
                ) from None
            attempts.failed(failure)


class _SinkError(Exception):
    """Wraps an exception of `sink`, so that it is not mistaken for one of the store's."""


def _pieces(location: Location, offset: int, etag: str | None, attempts: Attempts) -> Iterator[tuple[Any, Any]]:
    """Yield the object from `offset` on, piece by piece, each with the object's metadata."""
    options: GetOptions = {}
    if offset:
        options["range"] = {"offset": offset}
    if etag is not None and not etag.startswith("W/"):
        options["if_match"] = etag
    shared = requests()

    async def begun() -> GetResult:
        store, key = await reach(location)
        return await store.get_async(key, options=options)

    result = shared.call(begun, attempts.left_s)
    if result.range[0] != offset:
        raise WholeObjectError
    yield b"", result.meta
    pieces = result.stream(min_chunk_size=_CHUNK_NBYTES)
    while (piece := shared.call(lambda: next_of(pieces), attempts.left_s)) is not None:
        yield memoryview(piece), result.meta


def download_to(path: os.PathLike[str], location: Location) -> int:
    """Download an object to a new file; return its size. Raises OSError, and what `download` raises."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        return download(location, lambda piece, offset: write_at(descriptor, piece, offset))
    finally:
        os.close(descriptor)


ONE_REQUEST_NBYTES = 1 << 30  # larger objects are written in parts, each of which can be repeated by itself
MAX_OBJECT_NBYTES = 5 << 40  # S3's limit
_PART_NBYTES = 64 << 20
_MAX_PARTS = 10_000  # S3's limit
_PARTS_AT_ONCE = 4


def refuse_unwritable(location: Location) -> None:
    """Raise OptionError for locations that cannot be written."""
    if location.scheme not in BUCKET_SCHEMES:
        names = ", ".join(f"{scheme}://" for scheme in BUCKET_SCHEMES)
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
    attempts = Attempts(location, timeout_s=timeout_s)
    while True:
        try:
            if len(contents) <= ONE_REQUEST_NBYTES:
                _put(location, contents, overwrite=overwrite)
            elif overwrite or found_object(location) is None:
                _put_in_parts(location, contents)
            elif not holds(location, contents):
                raise _other_bytes(location)
            else:
                return attempts.num_failed > 0
        except DatapipeError:
            raise
        except Exception as exc:
            failure = examine(exc, location)
            if failure.kind in (Cause.EXISTS, Cause.CHANGED) and not overwrite:  # perhaps ours, whose response was lost
                if holds(location, contents):
                    return attempts.num_failed > 0
                raise _other_bytes(location) from None
            attempts.failed(failure)
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
    try:
        return object_facts(location, timeout_s=TIMEOUT_S)
    except MissingDataError as exc:
        if "no such object" not in str(exc):
            raise
        return None


def delete(location: Location) -> None:
    """Delete an object; does nothing if it does not exist. Raises StorageError."""
    requests().check_process()
    with contextlib.suppress(MissingDataError):
        answered(lambda store, key: store.delete_async(key), location)
