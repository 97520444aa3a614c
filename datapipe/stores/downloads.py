"""Download large objects as one stream into a file; an interrupted stream continues where it stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from datapipe.core.errors import DatapipeError, StorageError
from datapipe.stores.failures import Cause, ChangedError, ShortBodyError, WholeObjectError, examine
from datapipe.stores.location import Location
from datapipe.stores.opening import open_store
from datapipe.stores.requests import requests
from datapipe.stores.retries import TIMEOUT_S, pause_s

if TYPE_CHECKING:
    from obstore import GetOptions

_CHUNK_NBYTES = 4 << 20


def download(
    location: Location,
    write: Callable[[bytes | memoryview, int], None],
    *,
    nbytes: int | None = None,
    etag: str | None = None,
    timeout_s: float = TIMEOUT_S,
    is_wanted: Callable[[], bool] = lambda: True,
) -> int:
    """Read all of an object in the calling thread; return its size.

    `write`: gets each piece and its offset, in order; its exceptions are passed on. `nbytes`, `etag`: that the object must have.
    `timeout_s`: time without a byte after which it fails. `is_wanted`: called between pieces; False ends it with StorageError.
    Raises MissingDataError and StorageError, also if the object has another size or is replaced meanwhile.
    """
    requests().check_process()
    done, size = 0, nbytes
    attempts, last_s = 0, time.monotonic()
    while True:
        try:
            for piece, meta in _pieces(location, done, etag):
                if (etag is not None and meta["e_tag"] != etag) or size not in (None, meta["size"]):
                    raise ChangedError
                etag, size = meta["e_tag"], meta["size"]
                if len(piece):
                    try:
                        write(piece, done)
                    except Exception as exc:  # not the store's, and not to be retried
                        raise _WriteError(exc) from exc
                    done, attempts, last_s = done + len(piece), 0, time.monotonic()
                if not is_wanted():
                    raise StorageError(None, f"{location}: given up")
            if done == size:
                return done
            raise ShortBodyError(f"{done} of {size} bytes")
        except DatapipeError:
            raise
        except _WriteError as exc:
            raise exc.args[0] from None
        except Exception as exc:
            failure = examine(exc, location)
            elapsed_s = time.monotonic() - last_s
            if failure.kind is Cause.CHANGED:
                raise StorageError(
                    None, f"{location}: is not of the size or etag that it had (expected {size} bytes); open the dataset again"
                ) from None
            if not failure.may_pass or elapsed_s >= timeout_s:
                raise failure.error(location) from None
            time.sleep(pause_s(attempts))
            attempts += 1


class _WriteError(Exception):
    """Wraps an exception of `write`, so that it is not mistaken for one of the store's."""


def _pieces(location: Location, offset: int, etag: str | None) -> Iterator[tuple[Any, Any]]:
    """Yield the object from `offset` on, piece by piece, each with the object's metadata."""
    options: GetOptions = {}
    if offset:
        options["range"] = {"offset": offset}
    if etag is not None and not etag.startswith("W/"):
        options["if_match"] = etag
    result = open_store(location).get(location.key, options=options)
    if result.range[0] != offset:
        raise WholeObjectError
    yield b"", result.meta
    for piece in result.stream(min_chunk_size=_CHUNK_NBYTES):
        yield memoryview(piece), result.meta


def download_to(path: os.PathLike[str], location: Location) -> int:
    """Download an object to a new file; return its size. Raises OSError, and what `download` raises."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        return download(location, lambda piece, offset: _write_all(descriptor, piece, offset))
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, piece: bytes | memoryview, offset: int) -> None:
    view = memoryview(piece)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
