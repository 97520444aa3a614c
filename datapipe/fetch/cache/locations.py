"""Choose a store's location and name, and open it."""

from __future__ import annotations

import hashlib
import operator
import os
from dataclasses import dataclass
from pathlib import Path

from datapipe.core.checks import path_name
from datapipe.core.errors import OptionError, StorageError
from datapipe.core.user_cache import IMAGES, user_cache
from datapipe.fetch.cache.capacity import share_of_disk, share_of_memory
from datapipe.fetch.cache.entries import FORMAT_VERSION
from datapipe.fetch.cache.files import StoreFiles, open_on_disk
from datapipe.fetch.cache.in_memory import open_in_memory
from datapipe.fetch.cache.store import Store
from datapipe.index.concat import AnyIndex, wholes
from datapipe.index.file_list import FileListIndex
from datapipe.index.sample_index import SampleIndex


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """The cache that a user requests. Raises OptionError for an invalid location or size."""

    directory: Path | None  # None: in memory
    nbytes: int | None  # None: a share of the free space

    def __post_init__(self) -> None:
        if self.nbytes is not None and self.nbytes < 1:
            raise OptionError(f"cache_nbytes is {self.nbytes}; it must be at least 1, or None for a share of what is free")

    @classmethod
    def of(cls, cache: str | os.PathLike[str] | None, nbytes: int | None) -> CacheOptions | None:
        """Return the options from the arguments of a loader."""
        if cache is None:
            if nbytes is not None:
                raise OptionError(f"cache_nbytes={nbytes} without a cache; pass cache='ram', 'disk' or a directory too")
            return None
        if not isinstance(cache, (str, os.PathLike)):
            raise OptionError(f"cache is {cache!r}; choose 'ram', 'disk' or a directory")
        try:
            nbytes = None if nbytes is None else operator.index(nbytes)
        except TypeError as exc:
            raise OptionError(f"cache_nbytes is {nbytes!r}; it must be a whole number of bytes") from exc
        if cache == "ram":
            return cls(None, nbytes)
        if cache == "disk":
            return cls(user_cache(IMAGES), nbytes)
        if isinstance(cache, str) and os.sep not in cache and not os.path.isdir(cache):
            raise OptionError(f"cache is {cache!r}; choose 'ram' or 'disk', or write a new directory as {'./' + cache!r}")
        return cls(Path(path_name(cache, "cache")), nbytes)


def open_store(options: CacheOptions, *, about: dict[str, str]) -> Store:
    """Open the store described by `about`, JSON-safe texts by name: equal descriptions share a store. Raises StorageError."""
    text = "\n".join(f"{name}: {about[name]}" for name in sorted(about))
    name = hashlib.sha256(f"{FORMAT_VERSION}\n{text}".encode(errors="surrogateescape")).hexdigest()[:24]
    if options.directory is None:
        files = open_in_memory(name)
    else:
        files = open_on_disk(options.directory / name, about)
    try:
        return Store(files, capacity=_capacity(files) if options.nbytes is None else options.nbytes)
    except OSError as exc:
        remedy = "a directory on a local disk" if options.directory is None else "another directory, on a local disk"
        raise StorageError(exc.errno, f"cache: {files.where}: cannot be used ({exc.strerror}); pass {remedy}") from exc


def _capacity(files: StoreFiles) -> int:
    """Return the capacity, with what the store holds already, so that later openings get about the same."""
    used = sum(os.fstat(descriptor).st_blocks * 512 for descriptor in (files.index, files.data))
    return share_of_memory(used) if files.in_memory else share_of_disk(files.data, used)


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
