"""Objects looked at here and there: headers, footers and small columns, without the bytes between them."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from typing import overload

from datapipe.stores.location import parse_location
from datapipe.stores.objects import object_facts
from datapipe.stores.pending import PendingBytes, RemoteObject
from datapipe.stores.requests import requests

_FIRST_NBYTES, _MOST_NBYTES = 64 << 10, 8 << 20  # of a request: what is read in sequence is read in ever larger pieces
_NEAR_NBYTES = 1 << 20  # passed over rather than asked for apart: what a connection gives in one latency, or two
_KEPT_NBYTES = 16 << 20

_pinned: dict[str, RemoteObject] = {}
_lock = threading.Lock()


def pin_object(url: str, *, etag: str | None, nbytes: int) -> None:
    """Let later `RemoteBytes` of this URL be of the object of this etag and size, or else raise."""
    with _lock:
        _pinned[url] = RemoteObject(parse_location(url), etag, nbytes)


class RemoteBytes:
    """The bytes of an object as a sequence, as `mmap.mmap` is one. Not thread-safe.

    Reading raises MissingDataError and StorageError, also where the object is not the one that was pinned.
    """

    def __init__(self, url: str) -> None:
        with _lock:
            target = _pinned.get(url)
        self.object = _looked_up(url) if target is None else target
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
    """The bytes of an object as a file, for libraries that take one."""

    def __init__(self, data: RemoteBytes) -> None:
        self._data, self._place = data, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, and return it."""
        self._place = offset + (0, self._place, len(self._data))[whence]
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        end = len(self._data) if size < 0 else self._place + size
        found = self._data[self._place : end]
        self._place += len(found)
        return found


def _looked_up(url: str) -> RemoteObject:
    location = parse_location(url)
    facts = object_facts(location)
    return RemoteObject(location, facts.etag, facts.nbytes)
