"""The threads that fetch shards into a cache: as many as fit, in a full shuffle; in windows those that are due next."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from datapipe.core.errors import DatapipeError, IntegrityError, StorageError
from datapipe.core.printable import get_logger
from datapipe.fetch.shard_cache.directory import CacheDirectory, PartialShard
from datapipe.fetch.shard_cache.schedule import Schedule
from datapipe.stores.transfers import download

if TYPE_CHECKING:
    from datapipe.fetch.shard_cache.cache import CachedShard, ShardCache

NUM_STREAMS = 4  # shards that windows fetch at once: one connection to a store gives 50 to 100 MB/s
_BUSY_S, _LONGEST_BUSY_S = 0.2, 5.0  # before asking again where other processes had the lock, or fetch what is missing
_LOOK_S = 1.0  # at what has changed, where the pass does not go on

logger = get_logger(__name__)


class Filler:
    """Fetches shards into the cache until all are there, there is no room, or nobody has the cache any more."""

    def __init__(
        self, cache: weakref.ref[ShardCache], directory: CacheDirectory, shards: list[CachedShard], own: frozenset[str]
    ) -> None:
        self._cache = cache
        self._directory = directory
        self._missing = shards
        self._own = own

    def __call__(self) -> None:
        with _Reported(self._directory):
            self._directory.shrink()
            warn_of_large_shards(self._directory, self._missing)
            pause_s = _BUSY_S
            while self._missing and self._cache() is not None:
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
                return fetch(shard, part, is_wanted=lambda: self._cache() is not None)
        return False

    def _has_room(self) -> bool:
        """Whether any of what is missing would fit, were all shards of others gone."""
        smallest = min((shard.nbytes for shard in self._missing), default=0)
        own = sum(nbytes for name, nbytes in self._directory.sizes() if name.removesuffix(".part") in self._own)
        return bool(self._missing) and own + smallest <= self._directory.capacity


class WindowFiller:
    """Fetches the shards that a pass needs next, several at once, and evicts those that it needs last.

    What the pass has yet to read is held open, so that no other process evicts it. Shards that are due no sooner than those
    that are there are left to ranges of requests. To be called by NUM_STREAMS threads.
    """

    def __init__(self, cache: weakref.ref[ShardCache], directory: CacheDirectory, schedule: Schedule) -> None:
        self._cache = cache
        self._directory = directory
        self._schedule = schedule
        self._fetching: set[str] = set()  # URLs
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with _Reported(self._directory):
            while (cache := self._cache()) is not None and cache.follows(self._schedule):
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
                if part is None or not fetch(shard, part, is_wanted=lambda: self._cache() is not None):
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


def warn_of_large_shards(directory: CacheDirectory, shards: list[CachedShard]) -> None:
    """Say so where there is room for none of them."""
    smallest = min((shard.nbytes for shard in shards), default=0)
    if smallest > directory.capacity:
        logger.warning(
            "%s: a cache of %d bytes is too small for a shard of %d; nothing is kept: pass a larger cache_nbytes",
            directory.path,
            directory.capacity,
            smallest,
        )


class _Reported:
    """A block whose failure ends what is taken in, with a warning, and never the training."""

    def __init__(self, directory: CacheDirectory) -> None:
        self._directory = directory

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: object) -> bool:
        if not isinstance(exc, (OSError, DatapipeError)):
            return False
        text = exc if isinstance(exc, DatapipeError) else exc.strerror
        logger.warning("%s: takes nothing more (%s); what it has is still used", self._directory.path, text)
        return True
