"""Read bytes of samples in object stores: ranges of shards, requested ahead of use and checked when read."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import crc32c

from datapipe.codecs.probe import MAX_SAMPLE_NBYTES
from datapipe.codecs.stored import decode_stored
from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.local import LocalFiles
from datapipe.fetch.shard_cache.cache import ShardCache
from datapipe.fetch.shard_cache.filling import Filling
from datapipe.fetch.shard_cache.schedule import Schedule
from datapipe.index.entries import Codec, Extents, is_bytes
from datapipe.stores.location import is_url
from datapipe.stores.pending import PendingBytes, RemoteObject, take_waited_ns
from datapipe.stores.places import parse_location
from datapipe.stores.random_access import pinned_object
from datapipe.stores.requests import Requests, apply_settings, requests
from datapipe.stores.settings import Remote

_Key = tuple[str, int, int]  # url, offset, number of bytes


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Figures of reading from stores."""

    rate: float  # requests per second, recently
    p95_s: float  # latency
    limit: int  # largest number of requests in flight
    num_under_way: int
    nbytes_under_way: int
    cached: tuple[int, int, int, int] | None  # shards kept, of how many; samples read from there, and from the store
    cache_place: str
    missing_nbytes: int  # of shards for which the cache has no space


class RemoteFiles:
    """Reads extents of objects by ranges, others as `local` does. Thread-safe; do not use it in a forked child.

    A failure of the infrastructure is a StorageError, never a bad sample. Bytes whose checksum differs are fetched again; if it
    still differs the sample is bad, as on a disk.
    """

    def __init__(
        self,
        local: LocalFiles,
        settings: Remote,
        cache: ShardCache | None = None,
        *,
        pinned: Mapping[str, tuple[str | None, int]] | None = None,
    ) -> None:
        """`pinned`: etag and size that objects must have, by URL; others are those that the first answer finds."""
        self.cache = cache
        self._filling = None if cache is None else Filling(cache)
        self._pinned = pinned or {}
        self._local = local
        self._settings = settings
        self._objects: dict[str, RemoteObject] = {}
        self._pending: weakref.WeakValueDictionary[_Key, PendingBytes] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def read(self, extents: Extents, row: int) -> bytes:
        """Return the bytes of one extent. Raises StorageError, and what LocalFiles raises."""
        if not _is_remote(extents, row):
            return self._local.read(extents, row)
        (found,) = self.read_each(extents, [row])
        if not isinstance(found, bytes):
            raise found
        return found

    def read_each(self, extents: Extents, rows: Sequence[int]) -> list[bytes | DecodeError | IntegrityError]:
        """Return the bytes of several extents, or errors in their place, as `LocalFiles.read_each`."""
        found: dict[int, bytes | DecodeError | IntegrityError] = {}
        here = [row for row in rows if not _is_remote(extents, row)]
        if here:
            found.update(zip(here, self._local.read_each(extents, here), strict=True))
        there = [row for row in rows if _is_remote(extents, row)]
        keys = self._keys(extents, there)
        checks = zip(extents.crc32c[there].tolist(), extents.has_crc[there].tolist(), strict=True)
        wanted = {row: (key, crc if has_crc else None) for row, key, (crc, has_crc) in zip(there, keys, checks, strict=True)}
        if self.cache is not None:
            for row, (key, checksum) in wanted.items():
                kept = self._kept(key, checksum)
                if kept is not None:
                    found[row] = kept
        missing = {row: one for row, one in wanted.items() if row not in found}
        pendings = self._ask([(key, crc is not None) for key, crc in missing.values()], is_urgent=True)
        for (row, (key, checksum)), pending in zip(missing.items(), pendings, strict=True):
            found[row] = self._checked(key, pending, checksum)
        if extents.codecs is not None:
            for row in there:
                if isinstance(data := found[row], bytes):
                    found[row] = _decoded(data, extents.codecs[row])
        return [found[row] for row in rows]

    def reader(self, path: str, start: int) -> Callable[[int, int], bytes]:
        """Return what reads a file or an object: (offset from `start`, bytes) -> bytes, fewer at its end.

        It raises MissingDataError or StorageError.
        """
        if not is_url(path):
            return self._local.reader(path, start)
        size = pinned_object(path).nbytes

        def read(offset: int, nbytes: int) -> bytes:
            key = path, start + offset, max(0, min(nbytes, size - start - offset))
            kept = None if self.cache is None else self._kept(key, None)
            if kept is not None:
                return kept
            (pending,) = self._ask([(key, False)], is_urgent=True)
            found = self._checked(key, pending, None)
            if not isinstance(found, bytes):
                raise found
            return found

        return read

    def will_need(self, extents: Extents) -> object:
        """Begin to fetch these extents. Dropping the returned object gives them up."""
        there = [row for row in range(len(extents)) if _is_remote(extents, row)]
        here = [row for row in range(len(extents)) if not is_url(extents.paths[row])]
        if here:
            self._local.will_need(extents.take(here))
        keys = list(zip(self._keys(extents, there), extents.has_crc[there].tolist(), strict=True))
        if self.cache is not None and self._filling is not None:
            self._filling.start()
            keys = [(key, has_crc) for key, has_crc in keys if not self.cache.has(key[0])]
        return self._ask(keys, is_urgent=False)

    def follow(self, schedule: Schedule) -> None:
        """Let the cache of shards, where there is one, go by when they are due."""
        if self._filling is not None:
            self._filling.follow(schedule)

    def reach(self, epoch: int, step: int) -> None:
        """Tell the cache of shards where the pass stands."""
        if self._filling is not None:
            self._filling.reach(epoch, step)

    def take_network_ns(self) -> int:
        """Return how long the calling thread has waited for the network since its last call, in nanoseconds."""
        return take_waited_ns()

    def facts(self) -> StoreFacts:
        """Return the present figures. Raises LifecycleError in a forked child."""
        shared, cache = self._requests(), self.cache
        return StoreFacts(
            rate=shared.window.rate,
            p95_s=shared.window.p95_s,
            limit=shared.window.limit,
            num_under_way=shared.num_under_way,
            nbytes_under_way=shared.nbytes_under_way,
            cached=None if cache is None else (*cache.num_there(), cache.hits, cache.misses),
            cache_place="" if cache is None else str(cache.directory.path),
            missing_nbytes=0 if cache is None else cache.missing_nbytes(),
        )

    def close(self) -> None:
        self._local.close()

    def _kept(self, key: _Key, checksum: int | None) -> bytes | None:
        """Return the bytes if the cache of shards has them and they are intact."""
        assert self.cache is not None
        url, offset, nbytes = key
        data = self.cache.read(url, offset, nbytes) if nbytes <= MAX_SAMPLE_NBYTES else None
        if data is not None and checksum is not None and crc32c.crc32c(data) != checksum:
            self.cache.reject(url)
            return None
        return data

    def _checked(self, key: _Key, pending: PendingBytes | None, checksum: int | None) -> bytes | DecodeError | IntegrityError:
        """Return the requested bytes, or the error in them."""
        if pending is None:
            return DecodeError(f"{key[2]} bytes exceed the limit of {MAX_SAMPLE_NBYTES} for one sample")
        data = pending.wait()
        if checksum is None or crc32c.crc32c(data) == checksum:
            return data
        again = PendingBytes(self._object(key[0]), key[1], key[1] + key[2], is_urgent=True)
        self._requests().submit([again])
        data = again.wait()
        if (differs := crc32c.crc32c(data)) == checksum:
            return data
        url, offset, nbytes = key
        return IntegrityError(
            f"{url}: bytes {offset}..{offset + nbytes} have crc32c {differs:08x}, written as {checksum:08x}, fetched twice: "
            "damaged; `datapipe verify` lists all damage"
        )

    def _keys(self, extents: Extents, rows: Sequence[int]) -> list[_Key]:
        offsets, sizes = extents.offset[rows].tolist(), extents.nbytes[rows].tolist()
        return [(extents.paths[row], offset, nbytes) for row, offset, nbytes in zip(rows, offsets, sizes, strict=True)]

    def _ask(self, keys: Iterable[tuple[_Key, bool]], *, is_urgent: bool) -> list[PendingBytes | None]:
        """Return pending reads of bytes, with whether they have a checksum, requested before or now.

        None for more bytes than a sample may have.
        """
        asked: list[PendingBytes | None] = []
        new: list[PendingBytes] = []
        with self._lock:
            for key, has_crc in keys:
                url, offset, nbytes = key
                pending = self._pending.get(key)
                if (pending is None or pending.has_failed) and nbytes <= MAX_SAMPLE_NBYTES:
                    pending = self._pending[key] = PendingBytes(
                        self._object(url), offset, offset + nbytes, is_urgent=is_urgent, has_checksum=has_crc
                    )
                    if nbytes:
                        new.append(pending)
                    else:
                        pending.finish(b"")
                asked.append(pending)
        if asked:
            requests = self._requests()
            requests.submit(new)
            if is_urgent:
                for pending in asked:
                    if pending is not None and not pending.is_done:
                        requests.hasten(pending)
        return asked

    def _object(self, url: str) -> RemoteObject:
        known = self._objects.get(url)
        if known is not None:
            return known
        etag, nbytes = self._pinned.get(url, (None, -1))
        return self._objects.setdefault(url, RemoteObject(parse_location(url), etag, nbytes))

    def _requests(self) -> Requests:
        apply_settings(self._settings)
        return requests()


def _is_remote(extents: Extents, row: int) -> bool:
    """Whether a value is a range of an object; row groups are read by whoever reads those, wherever they lie."""
    return is_url(extents.paths[row]) and (extents.codecs is None or is_bytes(extents.codecs[row]))


def _decoded(data: bytes, codec: Codec) -> bytes | DecodeError:
    """Return a value, or the error that says that it is bad."""
    try:
        return decode_stored(data, codec) if isinstance(codec, str) else data
    except DecodeError as exc:
        return exc
