"""An index as the source of a conversion.

An index is what HDF5, Parquet, TFRecord and Arrow files of others have, and the sets that `convert` made. Its samples come
in the order of their ids, with the fields and labels that a loader would have. Fields that lie in bytes are read where they are;
those that must be decoded a row group at a time are spooled while they are listed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from datapipe.codecs.field_values import LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec, value_of
from datapipe.codecs.stored import PLAIN, joined, summed_crc32c
from datapipe.containers.form import Form
from datapipe.containers.labels import LabelCensus, label_said
from datapipe.errors import DecodeError, IntegrityError, MissingDataError, OptionError
from datapipe.fetch.files import Files, open_files
from datapipe.fetch.row_groups import RowGroups
from datapipe.index.entries import Extents, RowGroup
from datapipe.index.listed import ANY_SIZE, ListedSample, Origin, ScanNotes, SourceFacts, Workspace, divide, time_of_etag
from datapipe.index.manifest import Manifest
from datapipe.opening.samples import open_index
from datapipe.sources.fields import Choices, in_order
from datapipe.sources.lists import refuse_class_from
from datapipe.sources.spool import SpoolWriter, spooled
from datapipe.stores.location import Location, Place
from datapipe.stores.objects import ListedObject, object_facts

_SAMPLES_AT_ONCE = 4096
_ASKED_AT_ONCE = 16
_CHOICES = ("image", "mask", "boxes", "text", "json", "array", "bytes", "label", "none")
_LABEL_KINDS = (FieldKind.TEXT, FieldKind.JSON, FieldKind.ARRAY)


class IndexSource:
    """The samples of an index."""

    def __init__(self, place: Place, form: Form) -> None:
        """Open the index, which is made now if somebody else wrote the data.

        Raises what `open_index` raises, and OptionError for choices of fields that are not possible.
        """
        refuse_class_from(form)
        self._index = open_index(str(place), Form(form.name))
        self._manifest = self._index.manifest
        remote = self._index.remote
        self.root: Place = self._index.data_directory if remote is None else remote.location
        self._is_ours = not self._index.is_foreign
        self._objects: dict[str, ListedObject] = {}  # of a store, by URL
        if isinstance(self.root, Location):
            self._objects = _found_shards(self.root, self._manifest)
        elif self._is_ours:
            _refuse_other_sizes(self.root, self._manifest)
        names = {spec.name for spec in self._manifest.fields}
        self._kinds, self._label_field = _chosen(self._manifest.fields, form, self._index.where)
        is_dropped = any(choice.name == LABEL_FIELD.name and choice.kind == "none" for choice in form.fields)
        self._has_label = LABEL_FIELD.name in names and self._label_field is None and not is_dropped
        self._census = LabelCensus(form.class_map) if form.class_map or self._label_field else None
        if form.class_map and not self._has_label and self._label_field is None:
            raise OptionError(f"--class-map {form.class_map}: {self._index.where} has no label; choose it by --field NAME=label")

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        files = open_files(self._index, row_groups=RowGroups(min_groups=len(self._wanted())))
        with contextlib.closing(files), contextlib.ExitStack() as spooling:
            reading = _FieldPlaces(self.root, space, files, self._objects, spooling)
            for start in range(0, len(self._index), _SAMPLES_AT_ONCE):
                ids = self._index.ids(np.arange(start, min(start + _SAMPLES_AT_ONCE, len(self._index)), dtype=np.int64))
                found = {name: self._index.look_up(ids, name) for name in self._wanted()}
                extents = {name: entries.extents for name, entries in found.items()}
                labels = next(iter(found.values())).labels.tolist()
                for row, number in enumerate(ids.tolist()):
                    yield self._listed(start + row, number, row, extents, labels[row], reading)

    @property
    def fields(self) -> tuple[FieldSpec, ...]:
        """The fields of every sample, without the label."""
        return tuple(FieldSpec(name, kind) for name, kind in self._kinds.items())

    def facts(self) -> SourceFacts:
        fields = self.fields
        has_label = self._has_label or self._label_field is not None
        if self._census is None:
            classes, labels = self._manifest.classes if self._has_label else None, None
        else:
            classes, labels = self._census.classes(), self._census.labels()
        if classes is None and FieldKind.BOXES in self._kinds.values():
            classes = self._manifest.classes
        return SourceFacts(
            fields=in_order([*fields, *([LABEL_FIELD] if has_label else [])]),
            classes=classes,
            labels=labels,
            made_from=self._made_from(),
        )

    def _wanted(self) -> list[str]:
        return [*self._kinds, *([self._label_field] if self._label_field and self._label_field not in self._kinds else [])]

    def _listed(
        self, place: int, number: int, row: int, extents: Mapping[str, Extents], label: int, reading: _FieldPlaces
    ) -> ListedSample:
        origins: dict[str, Origin] = {}
        problem: str | None = None
        for name in self._kinds:
            try:
                origins[name] = reading.origin(extents[name], row)
            except (DecodeError, IntegrityError) as exc:
                problem = problem or f"field {name!r}: {exc}"
        if self._label_field is not None:
            try:
                label = self._number(reading.value(extents[self._label_field], row))
            except (DecodeError, IntegrityError) as exc:
                label, problem = NO_LABEL, problem or f"field {self._label_field!r}: {exc}"
        elif not self._has_label:
            label = NO_LABEL
        elif self._census is not None and label != NO_LABEL:
            label = self._census.number(self._manifest.classes[label] if self._manifest.classes and label >= 0 else str(label))
        described = self._index.describe(number)
        if described.source:
            directory, file = divide(os.fsencode(described.source))
        else:
            directory, file = os.fsencode(os.path.basename(described.path)), described.key
        return ListedSample(directory, file, place, label, origins, problem=problem)

    def _number(self, data: bytes) -> int:
        """Return the census's number of a label that is a text, a whole number, or an array of one. Raises DecodeError."""
        assert self._label_field is not None
        assert self._census is not None
        kind = next(spec.kind for spec in self._manifest.fields if spec.name == self._label_field)
        value = value_of(kind, data)
        if kind is FieldKind.ARRAY:
            value = value.item() if value.size == 1 else None
        said = label_said(value)
        if not said:
            raise DecodeError(f"is {value!r:.40}, not a class")
        return self._census.number(said)

    def _made_from(self) -> dict[str, Any]:
        """Return what this dataset is, without paths: the same wherever it lies."""
        manifest = self._manifest
        made_from: dict[str, Any] = {
            "container": manifest.container,
            "num_samples": manifest.num_samples,
            "files": [shard.name for shard in manifest.shards[:: max(1, len(manifest.shards) - 1)]],  # the first and the last
            "num_files": len(manifest.shards),
            "fingerprint": manifest.fingerprint,
        }
        if self._is_ours:
            made_from |= {
                "options": manifest.options,
                "source_digest": manifest.source_digest,
                "made_from": manifest.made_from,
            }
        return made_from


class _FieldPlaces:
    """Looks up where the fields of samples lie, and spools those that are addressed by rows.

    Leaving `spooling` completes the spooled file that is being written; an exception gives it up.
    """

    def __init__(
        self,
        root: Place,
        space: Workspace,
        files: Files,
        objects: Mapping[str, ListedObject],
        spooling: contextlib.ExitStack,
    ) -> None:
        self._root = root
        self._space = space
        self._objects = objects
        self._holders: dict[str, _HoldingFile] = {}
        self._spooling = spooling
        self._spool: tuple[str, SpoolWriter] | None = None  # of one shard at a time, as ids ascend
        self._files = files

    def value(self, extents: Extents, row: int) -> bytes:
        """Return the bytes of a field. Raises DecodeError or IntegrityError for a value that cannot be read."""
        return self._files.read(extents, row)

    def origin(self, extents: Extents, row: int) -> Origin:
        """Return where a field lies. Raises as `value` does where it is addressed by rows."""
        path = extents.paths[row]
        holder = self._holder(path)
        stored = PLAIN if extents.codecs is None else extents.codecs[row]
        if isinstance(stored, RowGroup):
            data = self.value(extents, row)
            writer = self._writer(path, holder)
            offset = writer.put(data)
            return Origin(writer.name, offset, len(data), ANY_SIZE, holder.mtime_ns, summed_crc32c(crc32c(data)), True)
        checked = summed_crc32c(int(extents.crc32c[row])) if extents.has_crc[row] else PLAIN
        nbytes, codec = int(extents.nbytes[row]), joined(checked, stored)
        if holder.etag:
            return Origin(holder.name, int(extents.offset[row]), nbytes, holder.nbytes, 0, codec, etag=holder.etag)
        return Origin(holder.name, int(extents.offset[row]), nbytes, holder.nbytes, holder.mtime_ns, codec)

    def _writer(self, path: str, holder: _HoldingFile) -> SpoolWriter:
        if self._spool is None or self._spool[0] != path:
            self._spooling.close()  # completes that of the shard before
            opened = spooled(self._space, holder.name, nbytes=holder.nbytes, mtime_ns=holder.mtime_ns)
            self._spool = path, self._spooling.enter_context(opened)
        return self._spool[1]

    def _holder(self, path: str) -> _HoldingFile:
        if path not in self._holders:
            found = self._objects.get(path)
            if found is not None:
                etag = found.etag or ""
                self._holders[path] = _HoldingFile(found.name.encode(), found.nbytes, time_of_etag(etag), etag)
            else:
                status = os.stat(path)
                name = os.fsencode(os.path.relpath(path, str(self._root)))
                self._holders[path] = _HoldingFile(name, status.st_size, status.st_mtime_ns)
        return self._holders[path]


class _HoldingFile(NamedTuple):
    """The file or object that holds fields."""

    name: bytes  # relative to the root
    nbytes: int
    mtime_ns: int  # for an object, a number made of its etag: what is spooled of it bears that time
    etag: str = ""


def _chosen(fields: tuple[FieldSpec, ...], form: Form, where: str) -> tuple[dict[str, FieldKind], str | None]:
    """Return the kinds of the fields to keep, by name, and the field that the user chose as the label."""
    choices = Choices(form.fields)
    kinds: dict[str, FieldKind] = {}
    label: str | None = None
    for spec in fields:
        choice = choices.take(spec.name, ("label", "none") if spec.kind is FieldKind.LABEL else _CHOICES)
        if spec.kind is FieldKind.LABEL or choice == "none":
            continue
        if choice != "label":
            kinds[spec.name] = FieldKind(choice) if choice else spec.kind
            continue
        if spec.kind not in _LABEL_KINDS:
            raise OptionError(f"--field {spec.name}=label: it holds {spec.kind.value}, not classes; leave it out")
        if label is not None:
            raise OptionError(f"--field: {label!r} and {spec.name!r} are both labels; a sample has one")
        label = spec.name
    choices.refuse_unmet(where, (spec.name for spec in fields))
    if not kinds:
        raise OptionError(f"{where}: no field is left; keep one with --field")
    return kinds, label


def _found_shards(location: Location, manifest: Manifest) -> dict[str, ListedObject]:
    """Return sizes and etags of the shards in a store, by URL.

    Raises MissingDataError or IntegrityError if one is gone or has another size than it had, StorageError.
    """
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        found = list(pool.map(lambda shard: object_facts(location / shard.name), manifest.shards))
    for shard, one in zip(manifest.shards, found, strict=True):
        if one.nbytes != shard.nbytes:
            raise IntegrityError(
                f"{location / shard.name}: has {one.nbytes} bytes, its manifest says {shard.nbytes}; get the file again"
            )
    return {str(location / one.name): one for one in found}


def _refuse_other_sizes(root: Path, manifest: Manifest) -> None:
    """Raise MissingDataError or IntegrityError if a shard of a converted set is gone or has another size than written."""
    for shard in manifest.shards:
        path = root / shard.name
        try:
            nbytes = path.stat().st_size
        except FileNotFoundError as exc:
            raise MissingDataError(f"{path}: no such shard; `datapipe verify` names what else is missing") from exc
        if nbytes != shard.nbytes:
            raise IntegrityError(f"{path}: has {nbytes} bytes, its manifest says {shard.nbytes}; get the file again")
