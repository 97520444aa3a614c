"""Find, read, and fetch in the background the shards of one dataset in a cache directory."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from datapipe.core.errors import DatapipeError, IntegrityError, StorageError
from datapipe.core.printable import get_logger
from datapipe.fetch.shard_cache.directory import CacheDirectory
from datapipe.stores.downloads import download
from datapipe.stores.location import Location

_LOOK_S = 1.0  # between checks for shards that other processes fetched
_BUSY_S, _LONGEST_BUSY_S = 0.2, 5.0  # before trying again when other processes had the lock, or fetch what is missing

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CachedShard:
    """A shard as the manifest describes it."""

    location: Location
    sha256: str  # in hex; also its name in the cache, so that datasets share equal shards
    nbytes: int


class _OpenShard:
    """A descriptor, which keeps the shard from being evicted; closed when the last thread drops it."""

    __slots__ = ("__weakref__", "descriptor", "name")

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor, self.name = descriptor, name

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)


class ShardCache:
    """Reads shards of a dataset from a cache directory, and fetches them into it in a thread, one after the other.

    In a full shuffle no shard is worth more than another, so as many as fit are kept, the same in every
    process, and none of them is evicted for another; shards of other datasets are, those that nobody reads and that were used
    longest ago first. Thread-safe.
    """

    def __init__(self, directory: CacheDirectory, shards: Mapping[str, CachedShard], *, max_open: int = 256) -> None:
        """`shards`: by URL, in the order in which they are fetched."""
        self.directory = directory
        self._shards = dict(shards)
        self._own = frozenset(shard.sha256 for shard in self._shards.values())
        self._max_open = max_open
        self._open: OrderedDict[str, _OpenShard] = OrderedDict()
        self._there: set[str] = set()
        self._looked_s = float("-inf")
        self._damaged: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self.hits = self.misses = 0  # samples

    def start(self) -> None:
        """Begin to fetch the missing shards, unless already begun."""
        with self._lock:
            if self._thread is None:
                fill = _Filler(weakref.ref(self), self.directory, list(self._shards.values()), self._own)
                self._thread = threading.Thread(target=fill, name="datapipe-shard-cache", daemon=True)
                self._thread.start()

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

    def has(self, url: str) -> bool:
        """Return True if the cache has a shard."""
        return self._opened(url) is not None

    def reject(self, url: str) -> None:
        """Remove a shard whose bytes differ from what was written; it is not read from here again."""
        shard = self._shards.get(url)
        if shard is None:
            return
        with self._lock:
            if shard.sha256 in self._damaged:
                return
            self._damaged.add(shard.sha256)
            self._open.pop(url, None)
        logger.warning("%s: damaged in the cache %s; removed, and read from the store", url, self.directory.path)
        with contextlib.suppress(OSError):
            self.directory.remove(shard.sha256)

    def num_there(self) -> tuple[int, int]:
        """Return how many of the dataset's shards are in the cache, and how many there are."""
        return len(self._own & self.directory.names()), len(self._own)

    def missing_nbytes(self) -> int:
        """Return the bytes of the dataset's shards beyond the cache's capacity; 0 if all of them fit."""
        return max(0, sum({shard.sha256: shard.nbytes for shard in self._shards.values()}.values()) - self.directory.capacity)

    def _opened(self, url: str) -> _OpenShard | None:
        found = self._open.get(url)
        if found is not None:
            return found
        shard = self._shards.get(url)
        if shard is None or shard.sha256 in self._damaged or not self._may_be_there(shard.sha256):
            return None
        descriptor = self.directory.open_shard(shard.sha256, shard.nbytes)
        if descriptor is None:
            return None
        return self._take_in(url, _OpenShard(descriptor, shard.sha256))

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


class _Filler:
    """Fetches shards into the cache until all exist, there is no space, or the cache is no longer used."""

    def __init__(
        self, cache: weakref.ref[ShardCache], directory: CacheDirectory, shards: list[CachedShard], own: frozenset[str]
    ) -> None:
        self._cache = cache
        self._directory = directory
        self._missing = shards
        self._own = own

    def __call__(self) -> None:
        try:
            self._directory.shrink()
            self._warn_of_large_shards()
            pause_s = _BUSY_S
            while self._missing and self._cache() is not None:
                there = self._directory.names()
                self._missing = [shard for shard in self._missing if shard.sha256 not in there]
                if self._fetch_one():
                    pause_s = _BUSY_S
                elif self._has_room():  # other processes fetch them; if those are killed, this one does
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_BUSY_S)
                else:
                    return
        except (OSError, DatapipeError) as exc:
            text = exc if isinstance(exc, DatapipeError) else exc.strerror
            logger.warning("%s: takes nothing more (%s); what it has is still used", self._directory.path, text)

    def _fetch_one(self) -> bool:
        """Fetch the first shard that no other process fetches. Returns True if there was one."""
        for shard in self._missing:
            part = self._directory.reserve(shard.sha256, shard.nbytes, keep=self._own.__contains__)
            if part is None:
                continue
            try:
                download(shard.location, part.write, nbytes=shard.nbytes, is_wanted=self._is_wanted)
                is_intact = part.commit(shard.sha256)
            except StorageError:
                if self._is_wanted():
                    raise
                return False
            finally:
                part.abandon()
            if not is_intact:
                raise IntegrityError(f"{shard.location}: differs from what the manifest says (sha256)")
            return True
        return False

    def _has_room(self) -> bool:
        """Return True if any missing shard would fit if all shards of other datasets were gone."""
        smallest = min((shard.nbytes for shard in self._missing), default=0)
        own = sum(nbytes for name, nbytes in self._directory.sizes() if name.removesuffix(".part") in self._own)
        return bool(self._missing) and own + smallest <= self._directory.capacity

    def _is_wanted(self) -> bool:
        return self._cache() is not None

    def _warn_of_large_shards(self) -> None:
        smallest = min((shard.nbytes for shard in self._missing), default=0)
        if smallest > self._directory.capacity:
            logger.warning(
                "%s: a cache of %d bytes is too small for a shard of %d; nothing is kept: pass a larger cache_nbytes",
                self._directory.path,
                self._directory.capacity,
                smallest,
            )
