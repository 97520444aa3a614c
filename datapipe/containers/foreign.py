"""Make and keep the index of data that datapipe did not write, on first use.

The index of shards is kept in `.datapipe-index/` next to them, so that every rank and node finds it; that of listings
(`opening/listed`), where another directory could count as a class, and that of read-only places, in the user's cache directory.
It is made under a lock, and made again when the data has changed, which sizes and modification times show.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from datapipe.codecs.field_values import FieldSpec
from datapipe.containers.columns import CommonFields
from datapipe.containers.formats import scanner_of
from datapipe.containers.forms import FORMS
from datapipe.containers.labels import SetLabels, webdataset_number
from datapipe.core import atomic, regular_files
from datapipe.core.printable import printable
from datapipe.core.regular_files import leads_out
from datapipe.core.user_cache import INDEXES, one_at_a_time, private_directory, user_cache
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, MissingDataError, OptionError, StorageError
from datapipe.index.listed import time_of_etag
from datapipe.index.manifest import Manifest, ShardInfo, class_numbers, read_manifest, write_manifest
from datapipe.index.sample_index import SampleIndex
from datapipe.index.sidecar import SIDECAR_SUFFIX, SidecarRows, relabel_sidecar, write_sidecar
from datapipe.stores.location import is_url
from datapipe.stores.pending import RemoteObject
from datapipe.stores.random_access import pinned_object

INDEX_DIRECTORY_NAME = ".datapipe-index"
_T = TypeVar("_T")
_STAMP_NAME = "source.json"  # the state of the data when the index was made
_INDEX_VERSION = 7  # of the contents of an index: one of another version is made again


UNREAD = (-1, 0)  # the stamp of a file that could not be read: it is tried again


def stamp_of(path: str) -> tuple[int, int]:
    """Return the size and the time, in ns, of a file, or of an object, whose etag stands for a time; UNREAD if there is none."""
    try:
        if is_url(path):
            return object_stamp(pinned_object(path))
        status = os.stat(path)
    except StorageError:
        raise
    except (OSError, MissingDataError):
        return UNREAD
    return status.st_size, status.st_mtime_ns


def object_stamp(target: RemoteObject) -> tuple[int, int]:
    """Return the size of an object, and what stands for its time."""
    return target.nbytes, time_of_etag(target.etag or "")


class Foreign(Protocol):
    """Data to be indexed."""

    @property
    def where(self) -> str:
        """The name of the data in messages."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of its shards; None for a listing, whose shards are parts of it."""

    @property
    def container(self) -> str:
        """Its form, in the manifest of the index."""

    def homes(self) -> list[Path]:
        """Return the places where its index may be kept, best first."""

    def is_as_stamped(self, stamp: dict[str, Any]) -> bool:
        """Return True if the data still looks as when its index was made."""

    def root(self, stamp: dict[str, Any]) -> Path:
        """Return the directory that paths in its index are relative to, given the stamp of the index."""

    def make_index(self, home: Path) -> dict[str, Any]:
        """Write the index into `home`; return the stamp by which changes of the data are seen."""


def open_foreign(data: Foreign) -> SampleIndex:
    """Return the index of `data`: the kept one if it is still valid, else one made now."""
    kept = kept_index(data)
    if kept is None:
        home = _first_writable(data.homes())
        with one_at_a_time(home / ".lock"):
            stamp = _valid_stamp(home, data)
            if stamp is None:
                with _progress_told(data):
                    stamp = _make_index(data, home)
        kept = home, stamp
    return open_kept(data, *kept)


def kept_index(data: Foreign) -> tuple[Path, dict[str, Any]] | None:
    """Return the place of the index of `data`, and its stamp; None if it has to be made."""
    stamps = ((home, _valid_stamp(home, data)) for home in data.homes())
    return next(((home, stamp) for home, stamp in stamps if stamp is not None), None)


def open_kept(data: Foreign, home: Path, stamp: dict[str, Any]) -> SampleIndex:
    """Open an index that `kept_index` found. Raises FormatError if it is not of this data."""
    manifest = read_manifest(home)
    names = None if manifest.is_listing else tuple(shard.name for shard in manifest.shards)
    if manifest.container != data.container or data.names != names:
        raise FormatError(f"{home}: an index of other data than {data.where}; remove it, and it is made again")
    root = data.root(stamp)
    place = "" if data.names is not None or data.where == str(root) else data.where
    return SampleIndex(manifest, data_directory=root, sidecar_directory=home, place=place)


def _valid_stamp(home: Path, data: Foreign) -> dict[str, Any] | None:
    stamp = index_stamp(home)
    if not stamp:
        return None
    with reported_wait(f"the index of {data.where}", "it is compared with the data"):
        return stamp if data.is_as_stamped(stamp) else None


def _make_index(data: Foreign, home: Path) -> dict[str, Any]:
    """Write sidecars, then the manifest, then the stamp that makes them valid, which is returned."""
    with contextlib.suppress(FileNotFoundError):
        (home / _STAMP_NAME).unlink()
    stamp = data.make_index(home)
    write_stamp(home, stamp)
    return stamp


@dataclass(frozen=True, slots=True)
class ForeignShards:
    """Shards of one form in one directory."""

    container: str  # a form of FORMS
    directory: Path
    names: tuple[str, ...]  # in order

    @property
    def where(self) -> str:
        is_file = len(self.names) == 1 and "/" not in self.names[0]
        return str(self.directory / self.names[0]) if is_file else str(self.directory)

    def root(self, stamp: dict[str, Any]) -> Path:
        return self.directory

    def homes(self) -> list[Path]:
        cached = cached_home(self.container, self.directory, *self.names)
        names_digest = hashlib.sha256("\0".join(self.names).encode(errors="surrogateescape")).hexdigest()
        home = self.directory / INDEX_DIRECTORY_NAME / names_digest[:8]
        paths = [(self.directory / name, "/" in name) for name in self.names]
        if any((is_below or os.path.islink(path)) and leads_out(self.directory, path) for path, is_below in paths):
            return [cached]  # do not trust an index next to links about the files to which they lead
        if leads_out(self.directory, home):
            return [cached]  # never write to where a link in the data leads
        return [home, cached]

    def is_as_stamped(self, stamp: dict[str, Any]) -> bool:
        return bool(stamp.get("shards") == self._stats())

    def make_index(self, home: Path) -> dict[str, Any]:
        stats, index_shard = self._stats(), scanner_of(self.container)
        paths = ((name, self.directory / name) for name in progress(self.names, self.where, total=len(self.names), unit="shard"))
        scanned = (ScannedShard(name, str(path), *index_shard(path), *stats[name]) for name, path in paths)
        write_index(home, self.container, scanned, where=self.where)
        return {"shards": stats}

    def _stats(self) -> dict[str, list[int]]:
        """Return size (bytes) and modification time (ns) of every shard."""
        stats = {}
        for name in self.names:
            try:
                status = os.stat(self.directory / name)
            except FileNotFoundError as exc:
                raise MissingDataError(f"{self.directory / name}: no such shard") from exc
            stats[name] = [status.st_size, status.st_mtime_ns]
        return stats


def cached_home(*parts: str | Path) -> Path:
    """Return the place in the user's cache of the index of data that these parts name; the second one is a path."""
    kind, path, *rest = map(str, parts)
    place = path if is_url(path) else os.path.realpath(path)
    name = hashlib.sha256("\0".join((kind, place, *rest)).encode(errors="surrogateescape")).hexdigest()
    return user_cache(INDEXES) / name[:24]


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
    has_row_groups = False
    classes: tuple[str, ...] | None = None
    said = SetLabels(webdataset_number)
    saying: list[int] = []  # shards whose labels are texts
    first = 0
    for one in scanned:
        num = len(one.rows)
        fields.add(one.rows, one.fields, one.path)
        if shards and one.rows.classes != classes:
            raise FormatError(f"{one.path}: names other classes than the shards before it; open them separately")
        classes = one.rows.classes
        has_row_groups = has_row_groups or bool(one.rows.row_groups)
        digest = write_sidecar(home / (one.name + SIDECAR_SUFFIX), one.rows, one.name)
        if one.rows.said is not None:
            saying.append(len(shards))
            said.add(one.rows.said)
        shards.append(ShardInfo(one.name, num, one.nbytes, first, num, index_sha256=digest, mtime_ns=one.mtime_ns))
        first += num
    fields.say_what_is_left_out(where)
    if saying:
        try:
            classes = said.classes()
        except OptionError as exc:
            raise FormatError(f"{where}: {exc}") from exc
        for number, changes in zip(saying, said.changes(), strict=True):
            if changes:
                digest = relabel_sidecar(home / (shards[number].name + SIDECAR_SUFFIX), changes)
                shards[number] = replace(shards[number], index_sha256=digest)
    manifest = Manifest(
        container=container,
        fields=fields.fields(),
        shards=tuple(shards),
        classes=classes,
        class_to_idx=class_numbers(classes),
        has_row_groups=has_row_groups,
        takes_rows=FORMS[container].takes_rows,
    )
    write_manifest(home, manifest)


def _progress_told(data: Foreign) -> contextlib.AbstractContextManager[object]:
    """Return what reports the making of an index where there is no terminal for a bar."""
    if sys.stderr is not None and sys.stderr.isatty():
        return contextlib.nullcontext()
    return reported_wait(f"the index of {data.where}", "it is made once, for as long as the data does not change")


def progress(steps: Iterable[_T], where: str, *, total: int | None, unit: str) -> Iterator[_T]:
    """Show a bar on a terminal, after a second; nothing elsewhere."""
    from tqdm import tqdm  # late: it takes a tenth of the time in which a process of a conversion starts

    yield from tqdm(steps, total=total, desc=f"indexing {printable(where)}", unit=unit, disable=None, delay=1, leave=False)
