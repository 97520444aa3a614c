"""The sources of conversions: one module per form of source, chosen by `--from`.

A module provides `open_source(options) -> Source`. A source lists its samples as a stream and then reports their fields and
classes. The listing includes the location of each field's bytes, so everything else about a conversion (sorting, plan,
resuming, reading, checks) is the same for all forms.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from converters.options import ConvertOptions, Place
from converters.sources.packing import PLAIN
from converters.writers import NO_LABEL
from datapipe.codecs.field_values import FieldSpec
from datapipe.containers.listing import ScanNotes

ANY_SIZE = -1
NO_FOLDER = "pass a folder, or say with --from what it is"  # the remedy if a folder is expected
_MODULES = {
    **dict.fromkeys(("image-folder", "npy"), "converters.sources.class_folders"),
    "manifest": "converters.sources.manifest",
    "pairs": "converters.sources.pairs",
    "coco": "converters.sources.coco",
    "tar": "converters.sources.tar",
    "lmdb": "converters.sources.lmdb",
    "archive": "converters.sources.archive",
    **dict.fromkeys(("dataset", "hdf5", "parquet", "tfrecord", "arrow"), "converters.sources.index"),
}


class Origin(NamedTuple):  # made by the million, like samples: a dataclass takes three times as long
    """The range of a file or object that holds one field, and its size and time, or etag, when it was listed."""

    path: bytes  # relative to the source's root, or to the conversion's spool
    offset: int  # bytes
    nbytes: int  # of the field: those of the range, unless `packing` says otherwise
    file_nbytes: int  # ANY_SIZE for a spooled file that was still being written
    mtime_ns: int  # 0 for an object
    packing: str = PLAIN  # how the bytes of the range become those of the field; see `converters.sources.packing`
    is_spooled: bool = False  # the file is in the spool; its time is that of the source's file
    etag: str = ""  # that the object must still have; "" for a file, or if the store has none

    @classmethod
    def whole(cls, path: bytes, nbytes: int, mtime_ns: int, etag: str = "") -> Origin:
        """Return the range of a whole file or object."""
        return cls(path, 0, nbytes, nbytes, mtime_ns, etag=etag)

    @property
    def is_whole(self) -> bool:
        return not self.offset and self.nbytes == self.file_nbytes and not self.packing and not self.is_spooled


class ListedSample(NamedTuple):
    """One sample of a source. Samples are sorted by (place, directory, name), the names compared as bytes."""

    directory: bytes  # with `name`, a path relative to the source's root; no slash at either end
    name: bytes
    place: int = 0
    label: int = NO_LABEL
    origins: Mapping[str, Origin] = MappingProxyType({})  # by field
    values: Mapping[str, str] = MappingProxyType({})  # by field: text, or JSON text
    size: tuple[int, int] | None = None  # required (height, width) of the image
    problem: str | None = None  # why it cannot be read, known without opening a file

    @property
    def source(self) -> bytes:
        """The sample's name."""
        return join(self.directory, self.name)

    @property
    def nbytes(self) -> int:
        """The number of bytes to read, in total."""
        nbytes = sum([origin.nbytes for origin in self.origins.values()])
        return nbytes + sum(map(len, self.values.values())) if self.values else nbytes


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The properties of a source, known after all of it was listed."""

    fields: tuple[FieldSpec, ...]  # of every sample
    classes: tuple[str, ...] | None  # names by label, if labels are classes
    labels: Mapping[int, int] | None = None  # listed label -> label; None: the listed ones are final
    empty_classes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # what is unusual about it, though not wrong
    made_from: Mapping[str, Any] | None = None  # for `dataset.json`: which dataset or archive this is; JSON-safe, no paths
    nothing: str = "no samples"  # message if there are no samples,
    remedy: str = "check the path of the source"  # and its remedy


@dataclass(frozen=True, slots=True)
class Workspace:
    """The directories that a scan may write to."""

    scratch: Path  # for files that are deleted at the end of the scan
    spool: Path  # for what cannot be read at random, kept as long as the plan; created by whoever needs it


class Source(Protocol):
    """A source of samples. One object lists once."""

    @property
    def root(self) -> Place:
        """The base of relative paths in the listing: a directory, or a prefix in a store."""

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        """Yield the samples, in any order; memory does not grow with their number.

        `notes` gets what is not a sample. Raises
        MissingDataError, StorageError, FormatError or OptionError if nothing can be listed.
        """

    def facts(self) -> SourceFacts:
        """Return the facts, after `scan` is exhausted."""


def open_source(options: ConvertOptions) -> Source:
    """Return the source that `options` name; its form must be known. Raises errors that are known without listing it."""
    source: Source = importlib.import_module(_MODULES[options.form]).open_source(options)
    return source


def join(directory: bytes, name: bytes) -> bytes:
    """Return the path relative to the root."""
    return directory + b"/" + name if directory else name


def divide(path: bytes) -> tuple[bytes, bytes]:
    """Return (directory, name) of a path relative to the root."""
    directory, _, name = path.rpartition(b"/")
    return directory, name
