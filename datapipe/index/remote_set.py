"""Open a dataset in a store: its manifest, and local sidecars, those of a converted one fetched when first needed."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from datapipe.core import atomic
from datapipe.core.remembering import recall
from datapipe.core.user_cache import REMOTE_INDEXES, index_directory
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.manifest import MANIFEST_NAME, Manifest, ShardInfo, parse_document
from datapipe.index.sidecar import SIDECAR_SUFFIX
from datapipe.stores.location import Location
from datapipe.stores.objects import list_names, read_object, read_objects

_ONLY_CONVERTED = "converted datasets, tars and Parquet files are read from stores; convert or copy what is there"
_AT_ONCE = 128  # sidecars whose bytes are held in memory


@dataclass(frozen=True, slots=True)
class RemoteSet:
    """A dataset in a store, and the local place of its index. Pickles; holds no credentials."""

    location: Location  # of the shards' prefix
    copies: Path  # directory of the sidecars: those that were fetched, or were made here
    etags: dict[str, str | None] | None = None  # by shard of others, when it was indexed; None: checksums identify shards

    def shard_url(self, name: str) -> str:
        return str(self.location / name)

    def etag_of(self, name: str) -> str | None:
        """Return the etag that a shard must have; None if it is identified by its checksum."""
        return None if self.etags is None else self.etags.get(name)

    def fetch_sidecars(self, shards: Iterable[ShardInfo]) -> None:
        """Fetch the sidecars of these shards that were not fetched before, several at once; those of others were made here.

        Raises MissingDataError, StorageError, and FormatError if a sidecar differs from the manifest: the dataset was
        replaced since it was opened.
        """
        if self.etags is not None:
            return
        missing = [shard for shard in shards if not (self.copies / (shard.name + SIDECAR_SUFFIX)).exists()]
        for first in range(0, len(missing), _AT_ONCE):
            some = missing[first : first + _AT_ONCE]
            contents = read_objects([self.location / (shard.name + SIDECAR_SUFFIX) for shard in some])
            for shard, data in zip(some, contents, strict=True):
                if shard.index_sha256 and hashlib.sha256(data).hexdigest() != shard.index_sha256:
                    data = self._read_again(shard)
                self._keep(shard, data)

    def fetch_again(self, shard: ShardInfo) -> None:
        """Fetch again a sidecar whose local copy is damaged. Raises as `fetch_sidecars`, and FormatError if it was made here."""
        if self.etags is not None:
            raise FormatError(
                f"{self.location / shard.name}: its index is damaged; remove ~/.cache/datapipe/index, and it is made again"
            )
        with contextlib.suppress(FileNotFoundError):
            (self.copies / (shard.name + SIDECAR_SUFFIX)).unlink()
        self.fetch_sidecars([shard])

    def _keep(self, shard: ShardInfo, data: bytes) -> None:
        """Write a copy. It is not flushed to disk, as every opening checks it and it can be fetched again."""
        path = self.copies / (shard.name + SIDECAR_SUFFIX)
        try:
            with atomic.atomic_writer(path, mode=0o600, durable=False) as file:
                file.write(data)
        except OSError as exc:
            raise StorageError(exc.errno, f"{path}: the index cannot be kept there ({exc.strerror}); set XDG_CACHE_HOME") from exc

    def _read_again(self, shard: ShardInfo) -> bytes:
        """Read a sidecar again whose bytes differed from the manifest: damaged in transit, or replaced."""
        place = self.location / (shard.name + SIDECAR_SUFFIX)
        data = read_object(place)
        if hashlib.sha256(data).hexdigest() != shard.index_sha256:
            raise FormatError(
                f"{place}: differs from what the manifest says (sha256): replaced since the dataset was opened, or damaged; "
                "open it again, and if that does not help, convert again"
            )
        return data


def read_manifest_text(location: Location) -> bytes | None:
    """Return the manifest of a converted dataset in a store, read once within `remembered`, or None if there is none.

    Raises StorageError, and MissingDataError if there is no such bucket.
    """
    return recall(("manifest", location), lambda: _manifest_text(location))


def _manifest_text(location: Location) -> bytes | None:
    try:
        return read_object(location / MANIFEST_NAME)
    except MissingDataError as exc:
        if "no such object" not in str(exc):
            raise
        return None


def open_set(location: Location, text: bytes | None = None) -> tuple[Manifest, RemoteSet]:
    """Open a converted dataset in a store. `text`: its manifest, if that has been read.

    Raises MissingDataError if there is none, StorageError if it cannot be read, FormatError if it is damaged.
    """
    text = read_manifest_text(location) if text is None else text
    if text is None:
        raise nothing_there(location)
    place = location / MANIFEST_NAME
    manifest = parse_document(text, str(place))
    if manifest.is_listing:
        raise FormatError(f"{place}: a folder of loose files, which are not read from stores; convert them")
    name = hashlib.sha256(f"{location}\n".encode() + text).hexdigest()[:24]
    copies = index_directory(REMOTE_INDEXES, name)
    return manifest, RemoteSet(location, copies)


def nothing_there(location: Location) -> MissingDataError:
    """Return the error for a prefix that holds nothing that can be read."""
    return MissingDataError(f"{location}: no {MANIFEST_NAME}{_describe_contents(location)}")


def _describe_contents(location: Location) -> str:
    """Return what to say about a prefix without a manifest."""
    names: list[str] = []
    with contextlib.suppress(StorageError, MissingDataError):
        names = list_names(location)
    sets = [name.rstrip("/") for name in names if name.endswith("/") and _has_manifest(location / name.rstrip("/"))]
    if sets:
        return f", but the datasets {', '.join(sets)}; open one of them, e.g. {location / sets[0]}"
    if names:
        return f" (but {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}); {_ONLY_CONVERTED}"
    return "; is this the URL of a converted dataset?"


def _has_manifest(location: Location) -> bool:
    with contextlib.suppress(StorageError, MissingDataError):
        return MANIFEST_NAME in list_names(location)
    return False
