"""Objects looked at here and there: headers, footers and small columns, without the bytes between them."""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, overload

from datapipe.core.remembering import current_scope, recall
from datapipe.errors import MissingDataError, StorageError
from datapipe.stores.objects import ListedObject, object_facts
from datapipe.stores.pending import PendingBytes, RemoteObject
from datapipe.stores.places import parse_location
from datapipe.stores.requests import requests

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FIRST_NBYTES, _MOST_NBYTES = 64 << 10, 8 << 20  # of a request: what is read in sequence is read in ever larger pieces
_NEAR_NBYTES = 1 << 20  # passed over rather than asked for apart: what a connection gives in one latency, or two
_KEPT_NBYTES = 16 << 20
_LOOKED_UP_AT_ONCE = 16

_pinned: dict[str, tuple[RemoteObject, int]] = {}  # with the moment, by `time.monotonic_ns`
_lock = threading.Lock()


def pin_object(url: str, *, etag: str | None, nbytes: int) -> None:
    """Let later `RemoteBytes` of this URL be of the object of this etag and size, or else raise."""
    with _lock:
        _pinned[url] = RemoteObject(parse_location(url), etag, nbytes), time.monotonic_ns()


def pin_each(urls: Iterable[str]) -> None:
    """Look up the objects of these URLs that are not pinned, several at once, and pin them; but those that are not there."""
    unknown = [url for url in urls if _pin_of(url) is None]
    if not unknown:
        return
    with ThreadPoolExecutor(_LOOKED_UP_AT_ONCE) as pool:
        for url, facts in zip(unknown, pool.map(_facts_of, unknown), strict=True):
            if facts is not None:
                pin_object(url, etag=facts.etag, nbytes=facts.nbytes)


def pinned_object(url: str) -> RemoteObject:
    """Return the object of a URL, which is looked up if it is not pinned. Raises MissingDataError and StorageError.

    Within `remembered`, what was pinned before is looked up again, once: who opens a place once more wants it as it is now.
    """
    target = _pin_of(url)
    return recall(("object", url), lambda: _looked_up(url)) if target is None else target


def _pin_of(url: str) -> RemoteObject | None:
    with _lock:
        target, pinned_at = _pinned.get(url, (None, 0))
    scope = current_scope()
    return target if scope is None or pinned_at >= scope.began else None


class RemoteBytes:
    """The bytes of an object as a sequence, as `mmap.mmap` is one. Not thread-safe.

    Reading raises MissingDataError and StorageError, also where the object is not the one that was pinned.
    """

    def __init__(self, url: str) -> None:
        self.object = pinned_object(url)
        self._blocks: OrderedDict[int, bytes] = OrderedDict()  # by offset, the one used last at the end
        self._held = 0
        self._next, self._ahead = -1, _FIRST_NBYTES

    def __len__(self) -> int:
        return self.object.nbytes

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> bytes: ...
    def __getitem__(self, place: int | slice) -> int | bytes:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            assert step == 1
            return self._read(start, stop) if start < stop else b""
        number = range(len(self))[place]
        return self._read(number, number + 1)[0]

    def fetch(self, ranges: list[tuple[int, int]]) -> None:
        """Read these ranges (start, end) at once, and keep them until `forget`: later slices of them ask nobody."""
        size = len(self)
        wanted = [
            PendingBytes(self.object, start, min(end, size), is_urgent=True) for start, end in ranges if 0 <= start < end <= size
        ]
        requests().submit(wanted)
        for pending in wanted:
            self._blocks[pending.start] = pending.wait()
        self._held = sum(map(len, self._blocks.values()))

    def forget(self) -> None:
        """Keep nothing."""
        self._blocks.clear()
        self._held = 0

    def _read(self, start: int, stop: int) -> bytes:
        for offset, block in reversed(self._blocks.items()):
            if offset <= start and stop <= offset + len(block):
                self._blocks.move_to_end(offset)
                return block[start - offset : stop - offset]
        is_near = 0 <= start - self._next <= _NEAR_NBYTES
        self._ahead = min(2 * self._ahead, _MOST_NBYTES) if is_near else _FIRST_NBYTES
        end = min(len(self), max(stop, start + self._ahead))
        wanted = PendingBytes(self.object, start, end, is_urgent=True)
        requests().submit([wanted])
        block = wanted.wait()
        self._next = end
        self._keep(start, block)
        return block[: stop - start]

    def _keep(self, start: int, block: bytes) -> None:
        replaced = self._blocks.pop(start, b"")
        self._blocks[start] = block
        self._held += len(block) - len(replaced)
        while self._held > _KEPT_NBYTES and len(self._blocks) > 1:
            self._held -= len(self._blocks.popitem(last=False)[1])


class RemoteFile(io.RawIOBase):
    """The bytes of an object, or a range of them, as a file, for libraries that take one."""

    def __init__(self, data: RemoteBytes, start: int = 0, end: int | None = None) -> None:
        self._data, self._start, self._place = data, start, 0
        self._nbytes = min(len(data), len(data) if end is None else end) - start
        self._failure: MissingDataError | StorageError | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, and return it."""
        self._place = offset + (0, self._place, self._nbytes)[whence]
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes. Raises MissingDataError and StorageError."""
        end = self._nbytes if size < 0 else min(self._nbytes, self._place + size)
        found = self._data[self._start + self._place : self._start + max(self._place, end)]
        self._place += len(found)
        return found

    def readinto(self, target: Buffer) -> int:
        """Write the next bytes into `target`; return their number, 0 also if the store fails, which `raise_failure` tells.

        For libraries in C, through which no exception passes.
        """
        view = memoryview(target).cast("B")
        try:
            found = self.read(len(view))
        except (MissingDataError, StorageError) as exc:
            self._failure = self._failure or exc
            return 0
        view[: len(found)] = found
        return len(found)

    def raise_failure(self) -> None:
        """Raise the first error of the store that `readinto` met, if there was one."""
        if self._failure is not None:
            raise self._failure


def _facts_of(url: str) -> ListedObject | None:
    try:
        return object_facts(parse_location(url))
    except MissingDataError:
        return None


def _looked_up(url: str) -> RemoteObject:
    location = parse_location(url)
    facts = object_facts(location)
    return RemoteObject(location, facts.etag, facts.nbytes)
