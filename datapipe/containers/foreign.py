"""Make and keep the index of data that datapipe did not write, on first use.

The index of shards is kept in `.datapipe-index/` next to them, so that every rank and node finds it; that of image
folders, where another directory would count as a class, and that of read-only places, in the
user's cache directory. It is made under a lock, and made again when the data has changed: changes are detected by size and
modification time of shards, and by the times of directories.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from datapipe.codecs.field_values import FieldSpec
from datapipe.containers import folder
from datapipe.containers.columns import CommonFields
from datapipe.containers.formats import scanner_of
from datapipe.containers.listing import ScanNotes, told_of_loops
from datapipe.core import atomic, regular_files
from datapipe.core.printable import get_logger, printable
from datapipe.core.regular_files import leads_out
from datapipe.core.user_cache import INDEXES, one_at_a_time, private_directory, user_cache
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.manifest import Manifest, ShardInfo, read_manifest, write_manifest
from datapipe.index.sample_index import SampleIndex
from datapipe.index.sidecar import SIDECAR_SUFFIX, SidecarRows, write_sidecar

INDEX_DIRECTORY_NAME = ".datapipe-index"
_T = TypeVar("_T")
_STAMP_NAME = "source.json"  # the state of the data when the index was made
_INDEX_VERSION = 3  # of the contents of an index: one of another version is made again

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ForeignSet:
    """Data to be indexed: shards of one directory, or an image folder."""

    container: str  # "tar", "tfrecord", "hdf5", "parquet", "arrow" or "folder"
    directory: Path
    names: tuple[str, ...] = ()  # of the shards, in order; () for a folder

    @property
    def where(self) -> str:
        return str(self.directory) if len(self.names) != 1 else str(self.directory / self.names[0])


def open_foreign(data: ForeignSet) -> SampleIndex:
    """Return the index of `data`: the kept one if it is still valid, else one made now."""
    homes = _index_homes(data)
    with reported_wait(f"the index of {data.where}", "it is compared with the data"):
        found = next((home for home in homes if _is_true(index_stamp(home), data)), None)
    if found is not None:
        return _opened(data, found)
    home = _first_writable(homes)
    with one_at_a_time(home / ".lock"):
        if not _is_true(index_stamp(home), data):
            with _progress_told(data):
                _make_index(data, home)
    return _opened(data, home)


def _opened(data: ForeignSet, home: Path) -> SampleIndex:
    """Open a kept index. Raises FormatError if it is not of this data."""
    manifest = read_manifest(home)
    of_shards = data.container != "folder"
    if manifest.container != data.container or (of_shards and tuple(shard.name for shard in manifest.shards) != data.names):
        raise FormatError(f"{home}: an index of other data than {data.where}; remove it, and it is made again")
    return SampleIndex(manifest, data_directory=data.directory, sidecar_directory=home)


def _index_homes(data: ForeignSet) -> list[Path]:
    """Return the places where the index of `data` may be kept, best first."""
    parts = (data.container, os.path.realpath(data.directory), *data.names)
    name = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()
    cached = user_cache(INDEXES) / name[:24]
    if data.container == "folder":
        return [cached]
    names_digest = hashlib.sha256("\0".join(data.names).encode(errors="surrogateescape")).hexdigest()
    home = data.directory / INDEX_DIRECTORY_NAME / names_digest[:8]
    if any(os.path.islink(path) and leads_out(data.directory, path) for path in map(data.directory.joinpath, data.names)):
        return [cached]  # do not trust an index next to links about the files to which they lead
    if leads_out(data.directory, home):
        return [cached]  # never write to where a link in the data leads
    return [home, cached]


def _first_writable(homes: list[Path]) -> Path:
    """Create and return the first of `homes` that can be written. Raises StorageError if none can."""
    for home in homes:
        with contextlib.suppress(OSError):
            if home.is_relative_to(user_cache(INDEXES)):
                with private_directory(home):
                    pass
            home.mkdir(parents=True, exist_ok=True)
            if os.access(home, os.W_OK):
                return home
    raise StorageError(f"{homes[-1]}: the index cannot be kept there; set XDG_CACHE_HOME to a place that can be written")


def _is_true(stamp: dict[str, Any], data: ForeignSet) -> bool:
    """Return True if the data still looks as when its index was made, by a version that would make the same index."""
    if data.container == "folder":
        directories = stamp.get("directories")
        return isinstance(directories, dict) and folder.is_unchanged(data.directory, directories)
    return bool(stamp.get("shards") == _shard_stats(data))


def _shard_stats(data: ForeignSet) -> dict[str, list[int]]:
    """Return size (bytes) and modification time (ns) of every shard."""
    stats = {}
    for name in data.names:
        try:
            status = os.stat(data.directory / name)
        except FileNotFoundError as exc:
            raise MissingDataError(f"{data.directory / name}: no such shard") from exc
        stats[name] = [status.st_size, status.st_mtime_ns]
    return stats


def index_stamp(home: Path) -> dict[str, Any]:
    """Return the state of the data when an index was made; empty if there is none, of this version, or it does not parse."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        text = regular_files.read_bytes(home / _STAMP_NAME)
        with contextlib.suppress(ValueError, RecursionError):
            stamp = json.loads(text)
            if isinstance(stamp, dict) and stamp.get("version") == _INDEX_VERSION:
                return stamp
    return {}


def write_stamp(home: Path, stamp: dict[str, Any]) -> None:
    """Make an index that has been written count, for as long as the data looks like this."""
    atomic.write_json(home / _STAMP_NAME, {"version": _INDEX_VERSION, **stamp})


def _make_index(data: ForeignSet, home: Path) -> None:
    """Write sidecars, then the manifest, then the stamp that makes them valid."""
    with contextlib.suppress(FileNotFoundError):
        (home / _STAMP_NAME).unlink()
    if data.container == "folder":
        folder.refuse_several_sets(data.directory)
        notes = ScanNotes()
        parts = enumerate(_progress(folder.index_folder(data.directory, notes), data, total=None))
        scanned = (
            ScannedShard(f"part-{number:05d}", data.where, rows, folder.FIELDS, sum(one.nbytes for one in rows.extents["image"]))
            for number, rows in parts
        )
        write_index(home, "folder", scanned, where=data.where)
        if notes.loops:
            logger.warning("%s: %s", data.where, told_of_loops(sorted(map(os.fsdecode, notes.loops))))
        write_stamp(home, {"directories": folder.directory_times(data.directory, notes)})
        return
    stats, index_shard = _shard_stats(data), scanner_of(data.container)
    paths = ((name, data.directory / name) for name in _progress(data.names, data, total=len(data.names)))
    scanned = (ScannedShard(name, str(path), *index_shard(path), *stats[name]) for name, path in paths)
    write_index(home, data.container, scanned, where=data.where)
    write_stamp(home, {"shards": stats})


@dataclass(frozen=True, slots=True)
class ScannedShard:
    """A shard that was indexed."""

    name: str
    path: str  # or its URL
    rows: SidecarRows
    fields: tuple[FieldSpec, ...]
    nbytes: int
    mtime_ns: int = 0


def write_index(home: Path, container: str, scanned: Iterable[ScannedShard], *, where: str) -> None:
    """Write the sidecar of every shard, in order, and the manifest."""
    shards: list[ShardInfo] = []
    fields = CommonFields()
    classes: tuple[str, ...] | None = None
    first = 0
    for one in scanned:
        num = len(one.rows)
        fields.add(one.rows, one.fields, one.path)
        if shards and one.rows.classes != classes:
            raise FormatError(f"{one.path}: names other classes than the shards before it; open them separately")
        classes = one.rows.classes
        digest = write_sidecar(home / (one.name + SIDECAR_SUFFIX), one.rows, one.name)
        shards.append(ShardInfo(one.name, num, one.nbytes, first, num, index_sha256=digest, mtime_ns=one.mtime_ns))
        first += num
    fields.say_what_is_left_out(where)
    manifest = Manifest(
        container=container,
        fields=fields.fields(),
        shards=tuple(shards),
        classes=classes,
        class_to_idx=None if classes is None else {name: number for number, name in enumerate(classes)},
    )
    write_manifest(home, manifest)


def _progress_told(data: ForeignSet) -> contextlib.AbstractContextManager[object]:
    """Return what reports the making of an index where there is no terminal for a bar."""
    if sys.stderr is not None and sys.stderr.isatty():
        return contextlib.nullcontext()
    return reported_wait(f"the index of {data.where}", "it is made once, for as long as the data does not change")


def _progress(steps: Iterable[_T], data: ForeignSet, *, total: int | None) -> Iterator[_T]:
    """Show a bar on a terminal, after a second; nothing elsewhere."""
    from tqdm import tqdm  # late: it takes a tenth of the time in which a process of a conversion starts

    yield from tqdm(
        steps, total=total, desc=f"indexing {printable(data.where)}", unit="shard", disable=None, delay=1, leave=False
    )
