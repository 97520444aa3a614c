"""Find and read the shards of one dataset in a cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from datapipe.core.printable import get_logger
from datapipe.fetch.shard_cache.directory import CacheDirectory
from datapipe.stores.location import Location

_LOOK_S = 1.0  # between checks for shards that other processes fetched

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CachedShard:
    """A shard of a converted dataset, as its manifest describes it, or one that others wrote, as it was indexed."""

    location: Location
    name: str  # in the cache: the SHA-256 in hex, so that datasets share equal shards, or that of URL, etag and size
    nbytes: int
    sha256: str | None  # of its bytes, in hex; None if nobody has recorded it
    etag: str | None = None  # that the object must have; None if the checksum decides

    @classmethod
    def converted(cls, location: Location, sha256: str, nbytes: int) -> CachedShard:
        """Return a shard whose checksum is known."""
        return cls(location, sha256, nbytes, sha256)

    @classmethod
    def foreign(cls, location: Location, etag: str, nbytes: int) -> CachedShard:
        """Return a shard that is known by its etag and size alone."""
        name = hashlib.sha256(f"{location}\n{etag}\n{nbytes}".encode()).hexdigest()
        return cls(location, name, nbytes, None, etag)


class _OpenShard:
    """A descriptor, which keeps the shard from being evicted; closed when the last thread drops it."""

    __slots__ = ("__weakref__", "descriptor", "name")

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor, self.name = descriptor, name

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)


class ShardCache:
    """The shards of a dataset in a cache directory, as far as they are there. Thread-safe.

    `shards`: by URL, in the order in which they are to be fetched; `filling` fetches them.
    """

    def __init__(self, directory: CacheDirectory, shards: Mapping[str, CachedShard], *, max_open: int = 256) -> None:
        self.directory = directory
        self.shards = dict(shards)
        self.own = frozenset(shard.name for shard in self.shards.values())  # names
        self._max_open = max_open
        self._open: OrderedDict[str, _OpenShard] = OrderedDict()
        self._there: set[str] = set()
        self._looked_s = float("-inf")
        self._damaged: set[str] = set()
        self._lock = threading.Lock()
        self.hits = self.misses = 0  # samples

    def shard_at(self, url: str) -> CachedShard | None:
        """The shard of a URL, unless it is not to be read from here."""
        shard = self.shards.get(url)
        return None if shard is None or shard.name in self._damaged else shard

    def hold(self, url: str) -> None:
        """Keep a shard that has just been fetched from being evicted, until it is released."""
        self._there.add(self.shards[url].name)
        self._opened(url)

    def release(self, name: str) -> None:
        """Let a shard be evicted, once no thread reads it."""
        with self._lock:
            for url in [url for url, shard in self._open.items() if shard.name == name]:
                del self._open[url]

    def release_unless(self, is_needed: Callable[[str], bool]) -> None:
        """Let those shards be evicted that are not needed any more."""
        for url in list(self._open):
            if not is_needed(url):
                with self._lock:
                    self._open.pop(url, None)

    def read(self, url: str, offset: int, nbytes: int) -> bytes | None:
        """Return bytes of a shard, not yet checked; None if the cache does not have them."""
        shard = self._opened(url)
        data = b""
        if shard is not None:
            with contextlib.suppress(OSError):
                data = os.pread(shard.descriptor, nbytes, offset)
        found = shard is not None and len(data) == nbytes
        self.hits += found
        self.misses += not found
        return data if found else None

    def file_of(self, url: str, num_samples: int) -> str | None:
        """Return the path of a shard, for libraries that open files; None if the cache does not have it.

        `num_samples`: to be read there, for the counts. The file may be gone by the time that it is opened.
        """
        shard = self._opened(url)
        self.hits += num_samples if shard is not None else 0
        self.misses += num_samples if shard is None else 0
        return None if shard is None else str(self.directory.path / shard.name)

    def has(self, url: str) -> bool:
        """Return True if the cache has a shard."""
        return self._opened(url) is not None

    def reject(self, url: str) -> None:
        """Remove a shard whose bytes differ from what was written; it is not read from here again."""
        shard = self.shards.get(url)
        if shard is None:
            return
        with self._lock:
            if shard.name in self._damaged:
                return
            self._damaged.add(shard.name)
            self._open.pop(url, None)
        logger.warning("%s: damaged in the cache %s; removed, and read from the store", url, self.directory.path)
        with contextlib.suppress(OSError):
            self.directory.remove(shard.name)

    def num_there(self) -> tuple[int, int]:
        """Return how many of the dataset's shards are in the cache, and how many there are."""
        return len(self.own & self.directory.names()), len(self.own)

    def missing_nbytes(self) -> int:
        """Return the bytes of the dataset's shards beyond the cache's capacity; 0 if all of them fit."""
        return max(0, sum({shard.name: shard.nbytes for shard in self.shards.values()}.values()) - self.directory.capacity)

    def _opened(self, url: str) -> _OpenShard | None:
        found = self._open.get(url)
        if found is not None:
            return found
        shard = self.shards.get(url)
        if shard is None or shard.name in self._damaged or not self._may_be_there(shard.name):
            return None
        descriptor = self.directory.open_shard(shard.name, shard.nbytes)
        if descriptor is None:
            return None
        return self._take_in(url, _OpenShard(descriptor, shard.name))

    def _take_in(self, url: str, found: _OpenShard) -> _OpenShard:
        with self._lock:
            while len(self._open) >= self._max_open:
                self._open.popitem(last=False)
            return self._open.setdefault(url, found)

    def _may_be_there(self, name: str) -> bool:
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_S:
            self._there = self.directory.names()  # before the time, as other threads rely on it once that is set
            self._looked_s = now_s
        return name in self._there
