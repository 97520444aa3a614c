"""Open the reader of samples' bytes, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from datapipe.fetch.local import LocalFiles
from datapipe.fetch.remote import RemoteFiles
from datapipe.fetch.row_groups import RowGroups
from datapipe.fetch.shard_cache.cache import CachedShard, ShardCache
from datapipe.fetch.shard_cache.directory import open_cache_directory
from datapipe.index.concat import AnyIndex, wholes
from datapipe.index.manifest import ShardInfo
from datapipe.index.remote_set import RemoteSet
from datapipe.index.sample_index import SampleIndex
from datapipe.stores.random_access import pin_object, pinned_object
from datapipe.stores.settings import Remote

Files = LocalFiles | RemoteFiles  # a thread-safe reader of extents


def open_files(index: AnyIndex | None, *, row_groups: RowGroups | None = None, remote: Remote | None = None) -> Files:
    """Return the reader for the samples of an index; None: of local files that have none.

    `remote`: the settings for samples in object stores.
    """
    row_groups = RowGroups() if row_groups is None else row_groups
    local = LocalFiles(row_groups=row_groups)
    if index is None or not index.is_remote:
        return local
    settings = Remote() if remote is None else remote
    pinned = {
        remote.shard_url(shard.name): (remote.etag_of(shard.name), shard.nbytes)
        for remote, shard in _remote_shards(index)
        if not shard.sha256
    }
    for url, (etag, nbytes) in pinned.items():  # for row groups, which have readers of their own
        pin_object(url, etag=etag, nbytes=nbytes)
    cache = _open_cache(index, settings)
    if cache is not None:
        row_groups.read_from(cache)
    return RemoteFiles(local, settings, cache, pinned=pinned)


def open_object_files(urls: Iterable[str], *, remote: Remote) -> Files:
    """Return the reader for files, and for objects of these URLs, which are looked up if that was not done.

    Raises MissingDataError and StorageError.
    """
    objects = {url: pinned_object(url) for url in dict.fromkeys(urls)}
    if not objects:
        return LocalFiles()
    cache = None
    if remote.cache_path is not None:
        etags = {url: one.etag for url, one in objects.items() if one.etag is not None}
        shards = {url: CachedShard.foreign(objects[url].location, etag, objects[url].nbytes) for url, etag in etags.items()}
        cache = ShardCache(open_cache_directory(remote.cache_path, remote.cache_nbytes), shards)
    return RemoteFiles(LocalFiles(), remote, cache, pinned={url: (one.etag, one.nbytes) for url, one in objects.items()})


def can_keep_shards(index: AnyIndex) -> bool:
    """Return whether the shards of an index could be kept in a cache: by a checksum, or by the etag that the store gives."""
    return all(_cached(remote, shard) is not None for remote, shard in _remote_shards(index))


def _remote_shards(index: AnyIndex) -> Iterator[tuple[RemoteSet, ShardInfo]]:
    for part in wholes(index):
        if isinstance(part, SampleIndex) and part.remote is not None:
            yield from ((part.remote, shard) for shard in part.manifest.shards)


def _open_cache(index: AnyIndex, settings: Remote) -> ShardCache | None:
    if settings.cache_path is None:
        return None
    known = ((remote.shard_url(shard.name), _cached(remote, shard)) for remote, shard in _remote_shards(index))
    shards = {url: shard for url, shard in known if shard is not None}
    return ShardCache(open_cache_directory(settings.cache_path, settings.cache_nbytes), shards)


def _cached(remote: RemoteSet, shard: ShardInfo) -> CachedShard | None:
    location, etag = remote.location / shard.name, remote.etag_of(shard.name)
    if shard.sha256:
        return CachedShard.converted(location, shard.sha256, shard.nbytes)
    return None if etag is None else CachedShard.foreign(location, etag, shard.nbytes)
