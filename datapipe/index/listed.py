"""The samples of a source as a scan lists them: their names, and where the bytes of their fields lie.

A form of sources (`containers/forms`) has a scan: a stream of `ListedSample`, in any order, and the facts that are known once all
of it was listed. The loader makes an index of it, and a conversion a plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from datapipe.codecs.field_values import NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.stored import PLAIN, value_nbytes
from datapipe.stores.location import Place

ANY_SIZE = -1


def field_of_origin(name: str) -> str:
    """Return the field that an origin is of: each image of a field has its own."""
    return name.partition("/")[0]


class Origin(NamedTuple):  # made by the million, like samples: a dataclass takes three times as long
    """The range of a file or object that holds one field, and its size and time, or etag, when it was listed."""

    path: bytes  # relative to the source's root, or to the conversion's spool
    offset: int  # bytes
    nbytes: int  # of the range
    file_nbytes: int  # ANY_SIZE for a spooled file that was still being written
    mtime_ns: int  # 0 for an object
    codec: str = PLAIN  # how the bytes of the range become those of the field; see `codecs/stored`
    is_spooled: bool = False  # the file is in the spool; its time is that of the source's file
    etag: str = ""  # that the object must still have; "" for a file, or if the store has none

    @classmethod
    def whole(cls, path: bytes, nbytes: int, mtime_ns: int, etag: str = "") -> Origin:
        """Return the range of a whole file or object."""
        return cls(path, 0, nbytes, nbytes, mtime_ns, etag=etag)

    @property
    def is_whole(self) -> bool:
        return not self.offset and self.nbytes == self.file_nbytes and not self.codec and not self.is_spooled

    @property
    def value_nbytes(self) -> int:
        """The number of bytes of the field."""
        return value_nbytes(self.nbytes, self.codec) if self.codec else self.nbytes


class ListedSample(NamedTuple):
    """One sample of a source. Samples are sorted by (place, directory, name), the names compared as bytes."""

    directory: bytes  # with `name`, a path relative to the source's root; no slash at either end
    name: bytes
    place: int = 0
    label: int = NO_LABEL
    origins: Mapping[str, Origin] = MappingProxyType({})  # by field; `NAME/0`, `NAME/1`, ... of a field of images
    values: Mapping[str, str] = MappingProxyType({})  # by field: text, or JSON text
    size: tuple[int, int] | None = None  # required (height, width) of the image
    problem: str | None = None  # why it cannot be read, known without opening a file

    @property
    def source(self) -> bytes:
        """The sample's name."""
        return join(self.directory, self.name)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all fields but the label."""
        nbytes = sum([origin.value_nbytes for origin in self.origins.values()])
        return nbytes + sum(map(len, self.values.values())) if self.values else nbytes


@dataclass(frozen=True, slots=True)
class ScanProblem:
    """A directory or archive whose files are missing from the listing."""

    source: bytes  # relative to the root
    reason: str
    is_damaged: bool = False  # what is there is not what it should be, rather than out of reach


@dataclass(slots=True)
class ScanNotes:
    """The notes of a scan about what it found besides samples; filled while it runs."""

    num_ignored: int = 0  # files that are neither samples by name nor junk
    num_junk: int = 0  # hidden files and folders, Thumbs.db and the like
    loops: list[bytes] = field(default_factory=list)  # links to a directory that contains them, not descended into
    links: list[bytes] = field(default_factory=list)  # in archives, to folders: not followed
    problems: list[ScanProblem] = field(default_factory=list)
    directories: dict[bytes, int] = field(default_factory=dict)  # those read, relative, with their modification times (ns)
    files: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # those that hold samples, with sizes and times (ns)
    absent: set[bytes] = field(default_factory=set)  # files that were looked for in vain, relative


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
    spool: Path | None  # for what cannot be read at random, kept as long as the plan; made by whoever needs it; None: nowhere


class Source(Protocol):
    """A source of samples. One object lists once."""

    @property
    def root(self) -> Place:
        """The base of relative paths in the listing: a directory, or a prefix in a store."""

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        """Yield the samples, in any order; memory does not grow with their number.

        `notes` gets what is not a sample, and the directories and files that decided about the listing. Raises MissingDataError,
        StorageError, FormatError or OptionError if nothing can be listed.
        """

    def facts(self) -> SourceFacts:
        """Return the facts, after `scan` is exhausted."""


def time_of_etag(etag: str) -> int:
    """Return a number that stands for the time of an object, made of its etag: what is spooled of it bears that time."""
    return int.from_bytes(hashlib.sha256(etag.encode()).digest()[:7])


def join(directory: bytes, name: bytes) -> bytes:
    """Return the path relative to the root."""
    return directory + b"/" + name if directory else name


def divide(path: bytes) -> tuple[bytes, bytes]:
    """Return (directory, name) of a path relative to the root."""
    directory, _, name = path.rpartition(b"/")
    return directory, name


def needed_fields(fields: Iterable[FieldSpec]) -> list[str]:
    """Return the names of the fields of which every sample has bytes. A label is none, and of images there may be none at all."""
    return [one.name for one in fields if one.kind not in (FieldKind.LABEL, FieldKind.IMAGES)]


def missing_fields(fields: tuple[FieldSpec, ...], has: frozenset[str], label: int) -> str | None:
    """Return a message about a sample that lacks one of the set's fields; None if it has them all."""
    lacks = [name for name in needed_fields(fields) if name not in has]
    lacks += [one.name for one in fields if one.kind is FieldKind.LABEL and label == NO_LABEL]
    if not lacks:
        return None
    shown = ", ".join(sorted(has) + (["label"] if label != NO_LABEL else [])) or "nothing"
    return f"has no {' and no '.join(lacks)} (has: {shown}), which others have"
