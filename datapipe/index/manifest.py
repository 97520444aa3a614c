"""Read and write `dataset.json`, the manifest of a converted dataset.

The manifest is written last, so a directory that has one is complete, and readers trust only what it
names. It holds nothing that depends on when, where or by how many workers it was made. What is read is checked against a
schema and against the checksum that was written with it: the schema refuses what no program wrote, the checksum detects
later damage.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.tokens import TokenFacts
from datapipe.core import atomic, regular_files
from datapipe.errors import FormatError, MissingDataError, StorageError, UnfinishedError

MANIFEST_NAME = "dataset.json"
BUILDING_NAME = ".building"  # the directory in which shards are built; readers refuse a dataset that has one
MANIFEST_VERSION = 1
MAX_SLOTS = 1 << 40  # in a dataset


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard and its expected contents. Slots are places in the dataset's written order."""

    name: str  # file name, relative to the dataset's directory
    num_samples: int
    nbytes: int
    first_slot: int
    num_slots: int
    sha256: str = ""  # of the shard's bytes; empty for shards that datapipe did not write
    index_sha256: str = ""
    skipped: tuple[int, ...] = ()  # slots, ascending, whose sample was left out as bad
    mtime_ns: int = 0  # of a foreign shard when it was indexed; 0 for converted ones


@dataclass(frozen=True, slots=True)
class Manifest:
    """A dataset: its fields, classes and shards."""

    container: str  # "tar", "folder", ...
    fields: tuple[FieldSpec, ...]
    shards: tuple[ShardInfo, ...]
    classes: tuple[str, ...] | None = None  # names by label, if labels are classes
    class_to_idx: dict[str, int] | None = None
    permutation_key: int | None = None  # the slot of an id is Permutation(num_slots, key).inverse(id); None: the id
    image_size: tuple[int, int] | None = None  # (height, width) if all images share one
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the conversion, as typed
    source_digest: str = ""  # of the source's listing: names, sizes, labels; "" if not recorded
    made_from: dict[str, Any] | None = None  # the dataset or archive that it was converted from, where that was one
    is_listing: bool = False  # its shards are parts of a listing of files, not files themselves
    has_row_groups: bool = False  # some fields are addressed by rows, which are read by row groups
    takes_rows: bool = False  # ... or one by one, so that no order goes by the groups
    tokens: TokenFacts | None = None  # of token ids

    @property
    def num_samples(self) -> int:
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_slots(self) -> int:
        return sum(shard.num_slots for shard in self.shards)

    @property
    def former_fingerprint(self) -> str:
        """The fingerprint of the set that this one was converted from, if both have the same samples; "" otherwise."""
        source = self.made_from or {}
        is_whole = source.get("num_samples") == self.num_samples == self.num_slots
        return str(source.get("fingerprint", "")) if is_whole else ""

    @property
    def fingerprint(self) -> str:
        """A hash of the contents, 16 hex digits: the same shards in the same order have the same one."""
        digest = hashlib.sha256(f"{self.container} {self.permutation_key}\n".encode())
        for shard in self.shards:
            contents = shard.sha256 or shard.index_sha256  # of shards that datapipe did not write, names and sizes are known
            digest.update(f"{shard.name} {shard.num_samples} {shard.nbytes} {contents}\n".encode())
        return digest.hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON-safe values."""
        value = dataclasses.asdict(self)
        value["fields"] = [{"name": field.name, "kind": field.kind.value} for field in self.fields]
        for name in ("made_from", "is_listing", "has_row_groups", "takes_rows", "tokens"):
            if not value[name]:
                del value[name]
        return {"version": MANIFEST_VERSION, "num_samples": self.num_samples, **value}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Manifest:
        """Rebuild and check a manifest; `where` names its file in errors. Raises FormatError if it is not a valid one."""
        if not isinstance(value, dict) or value.get("version") != MANIFEST_VERSION:
            found = value.get("version") if isinstance(value, dict) else type(value).__name__
            raise FormatError(f"{where}: manifest version {found!r:.40}, expected {MANIFEST_VERSION}; convert again or upgrade")
        try:
            document = msgspec.convert(value, _Document)
        except (msgspec.ValidationError, RecursionError) as exc:
            raise FormatError(f"{where}: not a datapipe manifest ({exc}); convert again") from exc
        known = {one.name: getattr(document, one.name) for one in dataclasses.fields(cls)}
        known["fields"] = tuple(FieldSpec(field.name, field.kind) for field in document.fields)
        known["shards"] = tuple(ShardInfo(**msgspec.structs.asdict(shard)) for shard in document.shards)
        manifest = cls(**known)
        if manifest.num_samples != document.num_samples:
            claimed = document.num_samples
            raise FormatError(f"{where}: says {claimed} samples, its shards hold {manifest.num_samples}; convert again")
        _check(manifest, where)
        if document.checksum and document.checksum != _checksum(value):
            raise FormatError(f"{where}: differs from what was written (its checksum); get the file again, or convert again")
        return manifest


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]  # so that sums of two fit 64 bits with their sign
_Time = Annotated[int, msgspec.Meta(ge=-(1 << 62), lt=1 << 62)]
_Digest = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2}){0,32}$")]
_Side = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _Field(msgspec.Struct, forbid_unknown_fields=True):
    name: _Name
    kind: FieldKind


class _Shard(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    num_samples: _Count
    nbytes: _Count
    first_slot: _Count
    num_slots: _Count
    sha256: _Digest = ""
    index_sha256: _Digest = ""
    skipped: tuple[_Count, ...] = ()
    mtime_ns: _Time = 0


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The document in the file."""

    version: Literal[1]
    num_samples: _Count
    container: _Name
    fields: tuple[_Field, ...]
    shards: tuple[_Shard, ...]
    classes: tuple[str, ...] | None
    class_to_idx: dict[str, _Count] | None
    permutation_key: Annotated[int, msgspec.Meta(ge=0)] | None
    image_size: tuple[_Side, _Side] | None
    options: dict[str, Any]
    source_digest: str = ""
    made_from: dict[str, Any] | None = None
    is_listing: bool = False
    has_row_groups: bool = False
    takes_rows: bool = False
    tokens: TokenFacts | None = None
    checksum: _Digest = ""  # of the rest; "" if not recorded


def _check(manifest: Manifest, where: str) -> None:
    """Raise FormatError for what a schema cannot check: names that lead out or come twice, slots that overlap or leave gaps."""
    if manifest.permutation_key is not None and manifest.permutation_key >= 1 << 64:
        raise FormatError(f"{where}: the permutation's key has more than 64 bits; convert again")
    for what, names in (("field", [one.name for one in manifest.fields]), ("shard", [one.name for one in manifest.shards])):
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FormatError(f"{where}: names the {what} {twice!r:.80} twice; convert again")
    slot = 0
    for shard in manifest.shards:
        name = shard.name
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise FormatError(f"{where}: shard name {name!r:.80} leaves the directory; do not use this dataset")
        if shard.first_slot != slot:
            raise FormatError(f"{where}: shard {name} begins at slot {shard.first_slot}, not at {slot}; convert again")
        slot += shard.num_slots
        if shard.num_samples + len(shard.skipped) != shard.num_slots or not _are_slots_of(shard):
            raise FormatError(
                f"{where}: shard {name} has {shard.num_slots} slots, {shard.num_samples} samples and {len(shard.skipped)} slots"
                " left out, which do not fit together; convert again"
            )
    if slot > MAX_SLOTS:
        raise FormatError(f"{where}: claims {slot} slots, more than a dataset can have; convert again")


def _are_slots_of(shard: ShardInfo) -> bool:
    """Return True if the skipped slots are the shard's, in ascending order."""
    edges = (shard.first_slot - 1, *shard.skipped, shard.first_slot + shard.num_slots)
    return all(before < after for before, after in itertools.pairwise(edges))


def _checksum(value: dict[str, Any]) -> str:
    """Return the sha256, in hex, of a manifest's JSON in a form independent of spaces and the order of members."""
    rest = {name: one for name, one in value.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def class_numbers(classes: Sequence[str] | None) -> dict[str, int] | None:
    """Return the label of each class, given the names in the order of the labels; None if classes have no names."""
    return None if classes is None else {name: label for label, name in enumerate(classes)}


def read_manifest(directory: Path) -> Manifest:
    """Read `directory/dataset.json`.

    Raises UnfinishedError for a directory under construction, MissingDataError if there is no
    manifest, StorageError if it cannot be read, FormatError for one that no program wrote or that is damaged.
    """
    refuse_unfinished(directory)
    return read_document(directory)


def read_document(directory: Path) -> Manifest:
    """Read `directory/dataset.json`, also next to the marker of a conversion in progress. Raises as `read_manifest` does."""
    path = directory / MANIFEST_NAME
    try:
        text = regular_files.read_bytes(path)
    except FileNotFoundError as exc:
        raise MissingDataError(f"{directory}: no {MANIFEST_NAME}; is this a converted dataset?") from exc
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be read ({exc.strerror}); check its permissions") from exc
    return parse_document(text, str(path))


def parse_document(text: bytes, where: str) -> Manifest:
    """Return the manifest in the text of a `dataset.json`; `where` names it in errors. Raises FormatError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise FormatError(f"{where}: not JSON ({exc}); convert again") from exc
    return Manifest.from_json(value, where)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `directory/dataset.json` atomically, with its checksum."""
    value = json.loads(json.dumps(manifest.to_json()))  # as a reader gets it: lists for tuples, str for keys
    atomic.write_json(directory / MANIFEST_NAME, {**value, "checksum": _checksum(value)})


def refuse_unfinished(directory: Path) -> None:
    """Raise UnfinishedError if a conversion into `directory` has not ended."""
    if (directory / BUILDING_NAME).is_dir():
        raise UnfinishedError(
            f"{directory}: unfinished (it holds {BUILDING_NAME}/); run the same `datapipe convert` command again to finish it"
        )
