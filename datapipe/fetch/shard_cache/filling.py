"""Fetch the shards of a dataset into a cache, in threads.

In a full shuffle no shard is worth more than another, so as many as fit are kept, the same in every process, and none of them
is evicted for another; shards of other datasets are, those that nobody reads and that were used longest ago first. In windows it
is known when each shard is due: what is due next is fetched, and what is due last makes room for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator

from datapipe.core.printable import get_logger
from datapipe.errors import DatapipeError, IntegrityError, StorageError
from datapipe.fetch.shard_cache.cache import CachedShard, ShardCache
from datapipe.fetch.shard_cache.directory import CacheDirectory, PartialShard
from datapipe.fetch.shard_cache.schedule import Schedule
from datapipe.stores.transfers import download

_NUM_STREAMS = 4  # shards that windows fetch at once: one connection to a store gives 50 to 100 MB/s
_BUSY_S, _LONGEST_BUSY_S = 0.2, 5.0  # before asking again where other processes had the lock, or fetch what is missing
_LOOK_S = 1.0  # at what has changed, where the pass does not go on

logger = get_logger(__name__)


class Filling:
    """The fetching of what a cache lacks; its threads end once nothing refers to this object. Thread-safe."""

    def __init__(self, cache: ShardCache) -> None:
        self.cache = cache
        self._schedule: Schedule | None = None
        self._has_begun = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to fetch the missing shards, unless already begun."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            fill: Filler | WindowFiller
            if self._schedule is None:
                fill, num_threads = Filler(weakref.ref(self), self.cache), 1
            else:
                fill, num_threads = WindowFiller(weakref.ref(self), self.cache.directory, self._schedule), _NUM_STREAMS
            for _ in range(num_threads):
                threading.Thread(target=fill, name="datapipe-shard-cache", daemon=True).start()

    def follow(self, schedule: Schedule) -> None:
        """Fetch and evict by when shards are due from now on. Threads that go by another schedule end."""
        with self._lock:
            if self._schedule is None:
                self.cache.directory.shrink()
                _warn_of_large_shards(self.cache.directory, self.cache.shards.values())
            self._schedule, self._has_begun = schedule, False

    def follows(self, schedule: Schedule) -> bool:
        """Return whether this is the schedule to go by."""
        return self._schedule is schedule

    def reach(self, epoch: int, step: int) -> None:
        """Tell where the pass stands, where there is a schedule to go by."""
        if self._schedule is not None:
            self._schedule.reach(epoch, step)


class Filler:
    """Fetches shards into the cache until all are there, there is no room, or nothing refers to the filling any more."""

    def __init__(self, filling: weakref.ref[Filling], cache: ShardCache) -> None:
        self._filling = filling
        self._directory = cache.directory  # but not the cache, which would stay open
        self._missing = list(cache.shards.values())
        self._own = cache.own

    def __call__(self) -> None:
        with _reported(self._directory):
            self._directory.shrink()
            _warn_of_large_shards(self._directory, self._missing)
            pause_s = _BUSY_S
            while self._missing and self._filling() is not None:
                there = self._directory.names()
                self._missing = [shard for shard in self._missing if shard.name not in there]
                if self._fetch_one():
                    pause_s = _BUSY_S
                elif self._has_room():  # others fetch what is missing; should they be killed, it is fetched here
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_BUSY_S)
                else:
                    return

    def _fetch_one(self) -> bool:
        """Fetch the first shard that nobody else fetches; whether there was one."""
        for shard in self._missing:
            part = self._directory.reserve(shard.name, shard.nbytes, keep=self._own.__contains__)
            if part is not None:
                return fetch(shard, part, is_wanted=lambda: self._filling() is not None)
        return False

    def _has_room(self) -> bool:
        """Whether any of what is missing would fit, were all shards of others gone."""
        smallest = min((shard.nbytes for shard in self._missing), default=0)
        own = sum(nbytes for name, nbytes in self._directory.sizes() if name.removesuffix(".part") in self._own)
        return bool(self._missing) and own + smallest <= self._directory.capacity


class WindowFiller:
    """Fetches the shards that a pass needs next, several at once, and evicts those that it needs last.

    What the pass has yet to read is held open, so that no other process evicts it. Shards that are due no sooner than those
    that are there are left to ranges of requests. Several threads call it.
    """

    def __init__(self, filling: weakref.ref[Filling], directory: CacheDirectory, schedule: Schedule) -> None:
        self._filling = filling
        self._directory = directory
        self._schedule = schedule
        self._fetching: set[str] = set()  # URLs
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with _reported(self._directory):
            while (filling := self._filling()) is not None and filling.follows(self._schedule):
                cache = filling.cache
                del filling  # so that nothing but its user refers to it during a fetch
                cache.release_unless(self._schedule.is_needed)
                has_fetched = self._fetch_next(cache)
                del cache
                if not has_fetched:
                    self._schedule.wait(_LOOK_S)

    def _fetch_next(self, cache: ShardCache) -> bool:
        """Fetch what is due next and not there; whether there was room for any."""
        upcoming, there = self._schedule.upcoming(), self._directory.names()
        steps = {shard.name: upcoming[url] for url in upcoming if (shard := cache.shard_at(url)) is not None}
        for url in upcoming:
            shard = cache.shard_at(url)
            if shard is None or shard.name in there or shard.nbytes > self._directory.capacity:
                continue
            with self._lock:
                if url in self._fetching:
                    continue
                self._fetching.add(url)
            try:
                part = self._reserve(cache, shard, steps)
                if part is None and self._directory.is_fetched(shard.name):
                    continue  # by another process
                if part is None or not fetch(shard, part, is_wanted=lambda: self._filling() is not None):
                    return False  # no room, and what comes after it is due later still
                cache.hold(url)
                return True
            finally:
                with self._lock:
                    self._fetching.discard(url)
        return False

    def _reserve(self, cache: ShardCache, shard: CachedShard, steps: dict[str, int]) -> PartialShard | None:
        """Make room for a shard, if need be in place of those that are due later. `steps`: until each is due, by its name."""
        due = steps[shard.name]

        def is_due_sooner(name: str) -> bool:
            return name in steps and steps[name] <= due

        def rank(name: str) -> float:
            return -steps[name] if name in steps else float("-inf")

        return self._directory.reserve(shard.name, shard.nbytes, keep=is_due_sooner, rank=rank, release=cache.release)


def fetch(shard: CachedShard, part: PartialShard, *, is_wanted: Callable[[], bool]) -> bool:
    """Fetch a shard into its part; False where nobody wants it any more. Raises StorageError, OSError and IntegrityError."""
    try:
        download(shard.location, part.write, nbytes=shard.nbytes, etag=shard.etag, is_wanted=is_wanted)
        is_intact = part.commit(shard.sha256)
    except StorageError:
        if is_wanted():
            raise
        return False
    finally:
        part.abandon()
    if not is_intact:
        raise IntegrityError(f"{shard.location}: differs from what the manifest says (sha256)")
    return True


def _warn_of_large_shards(directory: CacheDirectory, shards: Collection[CachedShard]) -> None:
    """Say so where there is room for none of them."""
    smallest = min((shard.nbytes for shard in shards), default=0)
    if smallest > directory.capacity:
        logger.warning(
            "%s: a cache of %d bytes is too small for a shard of %d; nothing is kept: pass a larger cache_nbytes",
            directory.path,
            directory.capacity,
            smallest,
        )


@contextlib.contextmanager
def _reported(directory: CacheDirectory) -> Iterator[None]:
    """Let a failure in the block end what is taken in, with a warning, and never the training."""
    try:
        yield
    except (OSError, DatapipeError) as exc:
        text = exc if isinstance(exc, DatapipeError) else exc.strerror
        logger.warning("%s: takes nothing more (%s); what it has is still used", directory.path, text)
