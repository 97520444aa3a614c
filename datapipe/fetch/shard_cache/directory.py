"""Manage the directory of a shard cache, shared by independent processes: bounded, and safe against SIGKILL.

A complete, verified shard lies in it under its name; `NAME.part` is one that is being fetched. One lock file is
held to count, evict and allocate, or to give a part its name; a process that fetches a part holds a lock on the part, and one
that reads a shard a shared lock on the shard. The kernel releases the locks of a process that ends, however it ends:
a part whose lock is free is dead, a shard whose lock is free may be evicted. Readers never wait for a lock: a reader that does
not get one reads from the store. Only a process that has fetched a part waits until no other process counts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from datapipe.core import atomic
from datapipe.core.regular_files import read_bytes
from datapipe.core.user_cache import REMOTE_SHARDS, open_private, private_directory, user_cache
from datapipe.errors import StorageError

PART_SUFFIX = ".part"
_LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True)
class Held:
    """The contents of a cache directory."""

    num_shards: int
    nbytes: int  # of shards and of parts, which have their full size from the start


class PartialShard:
    """A shard that is being fetched into the cache. Its space is allocated, and its lock held until `commit` or `abandon`."""

    def __init__(self, directory: Path, name: str, descriptor: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._place, self._descriptor = directory / name, descriptor
        self._digest = hashlib.sha256()
        self._done = 0

    def write(self, piece: bytes | memoryview, offset: int) -> None:
        """Write the next bytes. Raises OSError, and ValueError for bytes that are not the next."""
        if offset != self._done or offset + len(piece) > self.nbytes:
            raise ValueError(f"bytes {offset}..{offset + len(piece)} after {self._done} of {self.nbytes}")
        self._digest.update(piece)
        atomic.write_at(self._descriptor, piece, offset)
        self._done += len(piece)

    def commit(self, sha256: str | None) -> bool:
        """Give the shard its name and release it. Returns False, and leaves no shard, if its bytes differ.

        `sha256`: of its bytes, in hex; None if that is not known, and their number decides.
        """
        if self._done != self.nbytes or sha256 not in (None, self._digest.hexdigest()):
            self.abandon()
            return False
        os.fdatasync(self._descriptor)
        lock = _open_lock(self._place.parent)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # otherwise a concurrent count might find neither name
            os.rename(_part_of(self._place), self._place)
        finally:
            os.close(lock)
        os.close(self._descriptor)
        self._descriptor = -1
        return True

    def abandon(self) -> None:
        """Remove it, unless it was committed."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.unlink(_part_of(self._place))
            os.close(self._descriptor)
            self._descriptor = -1


class CacheDirectory:
    """A cache directory of at most `nbytes`; None: of what it holds and 80 % of the disk that is free. Thread-safe.

    Raises StorageError if the directory cannot be created, belongs to another user, or is on a file system without locks.
    """

    def __init__(self, path: Path, nbytes: int | None) -> None:
        self.path = path
        try:
            with private_directory(path) as opened:
                lock = open_private(_LOCK_NAME, opened, where=path)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # another process has it, so there are locks
            finally:
                os.close(lock)
        except OSError as exc:
            raise StorageError(
                exc.errno, f"{path}: cannot be a cache of shards ({exc.strerror}); choose a directory of your own on a local disk"
            ) from exc
        self.capacity = self.held().nbytes + _free_nbytes(path) * 8 // 10 if nbytes is None else nbytes

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield shards and parts with the bytes that they take, or will take."""
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # evicted meanwhile
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode) and entry.name != _LOCK_NAME:
                            yield entry.name, max(status.st_size, status.st_blocks * 512)
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.EACCES):
                raise

    def held(self) -> Held:
        """Return how many shards there are, and how many bytes they and parts take."""
        files = dict(self.sizes())
        parts = {name for name in files if name.endswith(PART_SUFFIX)}
        for part in parts & {name + PART_SUFFIX for name in files}:  # renamed during the count
            del files[part]
        return Held(len(files.keys() - parts), sum(files.values()))

    def names(self) -> set[str]:
        """Return the shards that exist now."""
        return {name for name, _ in self.sizes() if not name.endswith(PART_SUFFIX)}

    def open_shard(self, name: str, nbytes: int) -> int | None:
        """Return a descriptor of a shard, owned by the caller, which keeps it from being evicted; None if it does not exist."""
        try:
            descriptor = self._open(name)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_nlink and status.st_size == nbytes:
                return descriptor
        except OSError:  # it is being evicted
            pass
        os.close(descriptor)
        return None

    def reserve(
        self,
        name: str,
        nbytes: int,
        *,
        keep: Callable[[str], bool],
        rank: Callable[[str], float] = lambda name: 0.0,
        release: Callable[[str], None] = lambda name: None,
    ) -> PartialShard | None:
        """Allocate space for a shard, for the caller to fetch.

        Returns None if it exists, another process fetches it, there is no space even without the shards that may go, or
        another process counts at this moment. `keep`: returns whether a shard must stay, whoever reads it. `rank`: those of
        the lowest go first; of equals the one that was used longest ago. `release`: called before one goes, so that the caller
        lets go of it. Raises OSError if the disk is full.
        """
        with self._alone() as has_lock:
            if not has_lock or (self.path / name).exists():
                return None
            self._remove_dead_parts()
            if _part_of(self.path / name).exists() or not self._make_room(nbytes, keep, rank, release):
                return None
            return self._allocate(name, nbytes)

    def is_fetched(self, name: str) -> bool:
        """Whether a shard is there, or on its way."""
        return (self.path / name).exists() or _part_of(self.path / name).exists()

    def remove(self, name: str) -> None:
        """Remove a damaged shard; its present readers still have it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path / name)

    def shrink(self) -> None:
        """Evict unused shards until the capacity is met: an earlier run may have had a larger one."""
        with self._alone() as has_lock:
            if has_lock:
                self._remove_dead_parts()
                self._make_room(0, lambda name: False, lambda name: 0.0, lambda name: None)

    def clear(self) -> int:
        """Remove everything that is not in use. Returns the bytes freed."""
        before = self.held().nbytes
        with self._alone() as has_lock:
            if has_lock:
                self._remove_dead_parts()
                for name in sorted(self.names()):
                    self._evict(name)
        return before - self.held().nbytes

    # -- under the lock ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the cache's lock if it is free. Yields whether it is held."""
        descriptor = _open_lock(self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(descriptor)

    def _remove_dead_parts(self) -> None:
        for name, _ in list(self.sizes()):
            if name.endswith(PART_SUFFIX):
                self._evict(name)

    def _make_room(
        self, nbytes: int, keep: Callable[[str], bool], rank: Callable[[str], float], release: Callable[[str], None]
    ) -> bool:
        """Evict what may go, in this order, until there is room; whether there is."""
        files = dict(self.sizes())
        used = sum(files.values())
        candidates = [name for name in files if not name.endswith(PART_SUFFIX) and not keep(name)]
        if nbytes > self.capacity or used - sum(files[name] for name in candidates) + nbytes > self.capacity:
            return False
        for name in sorted(self._by_last_use(candidates), key=rank):
            if used + nbytes <= self.capacity:
                break
            release(name)
            if self._evict(name):
                used -= files[name]
        return used + nbytes <= self.capacity

    def _by_last_use(self, names: Iterable[str]) -> list[str]:
        times = {}
        for name in names:
            with contextlib.suppress(OSError):
                status = os.stat(self.path / name, follow_symlinks=False)
                times[name] = max(status.st_atime_ns, status.st_mtime_ns)
        return sorted(times, key=times.__getitem__)

    def _open(self, name: str) -> int:
        return os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    def _evict(self, name: str) -> bool:
        """Remove a file whose lock is free. Returns whether it was."""
        try:
            descriptor = self._open(name)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(self.path / name)
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _allocate(self, name: str, nbytes: int) -> PartialShard:
        path = _part_of(self.path / name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        part = PartialShard(self.path, name, descriptor, nbytes)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if nbytes:
                os.posix_fallocate(descriptor, 0, nbytes)
        except BaseException:
            part.abandon()
            raise
        return part


def _open_lock(directory: Path) -> int:
    return os.open(directory / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + PART_SUFFIX)


def _free_nbytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def open_cache_directory(path: Path, nbytes: int | None) -> CacheDirectory:
    """Open a cache directory, and record its path. Raises StorageError if it cannot be used."""
    opened = CacheDirectory(path.absolute(), nbytes)
    place = os.path.realpath(path)
    note = user_cache(REMOTE_SHARDS) / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError):  # the record is for people
        if not note.exists():
            with private_directory(note.parent):
                atomic.write_json(note, {"directory": place}, mode=0o600)
    return opened


def known_cache_directories() -> list[CacheDirectory]:
    """Return the cache directories of this user that still exist."""
    found = []
    for note in sorted(user_cache(REMOTE_SHARDS).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, StorageError):
            place = Path(json.loads(read_bytes(note))["directory"])
            if place.is_dir():
                found.append(CacheDirectory(place, None))
    return found
