"""Unpack, once, shards that lie compressed as a whole in a folder, so that each of their samples can be read by itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from datapipe.containers.foreign import cached_home, progress
from datapipe.containers.shard_lists import ListedShard, ShardList
from datapipe.core import atomic, regular_files
from datapipe.core.user_cache import UNPACKED, index_directory, one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.peers.litdata.framed import unframed
from datapipe.sources.spool import unpacked_chunks

_STREAMS = {"gz": "gzip", "bz2": "bz2", "zstd": "zstd", "br": "brotli"}
_MAX_RATIO = 200  # of what is unpacked in one piece


def unpacked_shards(found: ShardList, form: str) -> Path:
    """Return the directory in the user's cache where the shards of a folder lie unpacked: now, or since an earlier run.

    Those that are not compressed are copied. Each is unpacked again when its file has changed. Raises MissingDataError for one
    that is not there, FormatError for a damaged one and for one of another size than its list says, StorageError if there is no
    room.
    """
    assert isinstance(found.folder, Path)
    assert isinstance(found.place, Path)
    folder, shards = found.folder.absolute(), found.shards
    home = index_directory(UNPACKED, cached_home("shards", folder, form).name)
    with one_at_a_time(home / ".lock"):
        _copy_list(found.place, home)
        waiting = [shard for shard in shards if not _is_there(folder, shard, home)]
        if waiting:
            reason = f"compressed shards are unpacked once, into {home}, for as long as they do not change"
            with reported_wait(f"the shards of {folder}", reason):
                for shard in progress(waiting, str(folder), total=len(waiting), unit="shard"):
                    _unpack(folder, shard, home)
    return home


def _copy_list(source: Path, home: Path) -> None:
    """Lay the list of shards beside them, where it says more of them than their names."""
    text = regular_files.read_bytes(source)
    with contextlib.suppress(FileNotFoundError):
        if regular_files.read_bytes(home / source.name) == text:
            return
    with atomic.atomic_writer(home / source.name, mode=0o600) as sink:
        sink.write(text)


def _is_there(folder: Path, shard: ListedShard, home: Path) -> bool:
    """Return True if a shard lies unpacked, with the time of the file that it was made from."""
    source, target = folder / shard.file_in(folder), home / shard.name
    try:
        found, wanted = target.stat(), source.stat()
    except OSError:
        return False
    return found.st_mtime_ns == wanted.st_mtime_ns and shard.nbytes in (None, found.st_size)


def _unpack(folder: Path, shard: ListedShard, home: Path) -> None:
    source, target = folder / shard.file_in(folder), home / shard.name
    try:
        status = os.stat(source)
        with atomic.atomic_writer(target, mode=0o600) as sink:
            nbytes = 0
            for chunk in _chunks(source, shard):
                nbytes += len(chunk)
                if shard.nbytes is not None and nbytes > shard.nbytes:
                    break
                sink.write(chunk)
            if shard.nbytes is not None and nbytes != shard.nbytes:
                what = "more than" if nbytes > shard.nbytes else f"{nbytes:,} of"
                raise FormatError(
                    f"{source}: unpacks to {what} the {shard.nbytes:,} bytes that its list says; get the file again"
                )
            sink.flush()
            os.utime(sink.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{source}: is in the list of its shards, but not there; get it") from exc
    except (FormatError, StorageError):
        raise
    except OSError as exc:
        what = f"cannot be unpacked into {home} ({exc.strerror}); free space there, or set XDG_CACHE_HOME"
        raise StorageError(exc.errno, f"{source}: {what}") from exc


def _chunks(source: Path, shard: ListedShard) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file. Raises FormatError for damage, a bomb, or a compression that is not known; OSError."""
    if source.name == shard.name:
        with regular_files.open_file(source) as plain:
            while chunk := plain.read(1 << 20):
                yield chunk
    elif shard.compression in _STREAMS:
        yield from unpacked_chunks(source, _STREAMS[shard.compression])
    elif shard.compression == "litdata":
        yield from unframed(source)
    elif shard.compression == "snappy":
        yield _unsnapped(source, shard)
    else:
        known = ", ".join((*_STREAMS, "snappy"))
        raise FormatError(
            f"{source}: compressed by {shard.compression!r:.20}, which is not known ({known} are); unpack the shards"
        )


def _unsnapped(source: Path, shard: ListedShard) -> bytes:
    """Return the unpacked bytes of a block of Snappy's, which has no frames."""
    data = regular_files.read_bytes(source)
    assert shard.nbytes is not None, "a list of shards that Snappy packed says their sizes"
    if shard.nbytes > max(1 << 26, _MAX_RATIO * len(data)):
        raise FormatError(f"{source}: would unpack to {shard.nbytes:,} bytes, {_MAX_RATIO} times its size: a bomb? Not read")
    try:
        unpacked: bytes = pa.decompress(data, shard.nbytes, codec="snappy", asbytes=True)
    except (pa.ArrowException, OSError) as exc:
        raise FormatError(f"{source}: not snappy, cut off or damaged ({exc}); get the file again") from exc
    return unpacked
