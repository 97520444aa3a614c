"""Name the store of a cache, find its capacity, and open it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from datapipe.core import atomic
from datapipe.core.user_cache import IMAGES, open_private, private_directory
from datapipe.errors import StorageError
from datapipe.index.concat import AnyIndex, wholes
from datapipe.index.file_list import FileListIndex
from datapipe.index.sample_index import SampleIndex
from datapipe.kernel.cache_settings import Cache
from datapipe.kinds.images.cache.entries import FORMAT_VERSION
from datapipe.kinds.images.cache.in_memory import open_in_memory
from datapipe.kinds.images.cache.store import Store, StoreFiles

_ABOUT_NAME = "about.json"
_UNLIMITED = 1 << 60
_V1_UNLIMITED = 1 << 62  # and more, rounded to pages: version 1's value for no limit


def open_store(cache: Cache, *, about: dict[str, str]) -> Store:
    """Open the store described by `about`, JSON-safe texts by name: equal descriptions share a store. Raises StorageError."""
    directory = cache.directory(IMAGES)
    text = "\n".join(f"{name}: {about[name]}" for name in sorted(about))
    name = hashlib.sha256(f"{FORMAT_VERSION}\n{text}".encode(errors="surrogateescape")).hexdigest()[:24]
    files = open_in_memory(name) if directory is None else open_on_disk(directory / name, about)
    try:
        return Store(files, capacity=_capacity(files) if cache.nbytes is None else cache.nbytes)
    except OSError as exc:
        remedy = "a directory on a local disk" if directory is None else "another directory, on a local disk"
        raise StorageError(exc.errno, f"cache: {files.where}: cannot be used ({exc.strerror}); pass {remedy}") from exc


def open_on_disk(directory: Path, about: dict[str, str]) -> StoreFiles:
    """Open the files in `directory`, created if missing, for this user alone. `about`: written next to them, for people.

    Raises StorageError if they can be neither opened nor created, or are not this user's own.
    """
    opened: list[int] = []
    try:
        with private_directory(directory) as here:
            if not (directory / _ABOUT_NAME).exists():
                atomic.write_json(directory / _ABOUT_NAME, about, mode=0o600)
            for name in ("index", "data"):
                opened.append(open_private(name, here, where=directory))  # noqa: PERF401  # those opened are closed on an error
    except OSError as exc:
        for descriptor in opened:
            os.close(descriptor)
        raise StorageError(
            exc.errno, f"cache: {directory}: cannot be written ({exc.strerror}); pass a directory that can, or cache='ram'"
        ) from exc
    return StoreFiles(*opened, where=str(directory), in_memory=False)


def _capacity(files: StoreFiles) -> int:
    """Return half of the free memory, or four fifths of the free disk, in bytes.

    What the store holds already counts as free, so that later openings get about the same.
    """
    used = sum(os.fstat(descriptor).st_blocks * 512 for descriptor in (files.index, files.data))
    if files.in_memory:
        return (free_memory() + used) // 2
    status = os.fstatvfs(files.data)
    return (status.f_bavail * status.f_frsize + used) * 4 // 5


def free_memory(system: Path = Path("/")) -> int:
    """Return what this process could still allocate, in bytes: limited by the machine's available memory and its cgroups.

    `system`: the root of the file system to read.
    """
    available = _UNLIMITED
    for line in _lines(system / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    return max(0, min(available, *_cgroup_headroom(system), _UNLIMITED))


def _cgroup_headroom(system: Path) -> Iterator[int]:
    """Yield the free memory of this process's memory cgroup and its parents, as far as they are visible."""
    for line in _lines(system / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mount = system / "sys/fs/cgroup"
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = system / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        here = Path(path)
        for directory in (here, *here.parents):  # in a container only the outermost one is visible
            yield _headroom(mount / str(directory).lstrip("/"), *names)


def _headroom(directory: Path, limit_name: str, usage_name: str, reclaimable: str) -> int:
    try:
        limit = (directory / limit_name).read_text().strip()
        usage = int((directory / usage_name).read_text())
    except (OSError, ValueError):
        return _UNLIMITED
    if not limit.isdecimal() or int(limit) >= _V1_UNLIMITED:
        return _UNLIMITED
    for line in _lines(directory / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == reclaimable:
            usage -= int(value)  # the page cache, which can be reclaimed
    return int(limit) - usage


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def contents_of(index: AnyIndex) -> str:
    """Return a hash of the contents of a whole dataset: selections of it, and so folds, have the same.

    The contents of data that datapipe wrote are known by their hashes. For other data the path and the times of the shards
    stand for them, for loose files the stamp of each.
    """
    return " + ".join(map(_contents_of, wholes(index)))


def _contents_of(index: SampleIndex | FileListIndex) -> str:
    if isinstance(index, FileListIndex):
        return index.fingerprint
    if not index.is_foreign:
        return index.manifest.fingerprint
    times = hashlib.sha256(" ".join(str(shard.mtime_ns) for shard in index.manifest.shards).encode()).hexdigest()[:16]
    return f"{index.manifest.fingerprint} {times} {os.path.realpath(index.data_directory)}"
