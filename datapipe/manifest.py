"""`dataset.json`: what a converted dataset is made of.

The manifest is written last, so a directory that has one is complete, and readers trust only what it
names. It holds nothing that depends on when, where or by how many workers it was made.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipe import atomic
from datapipe.errors import FormatError, MissingDataError, UnfinishedError

MANIFEST_NAME = "dataset.json"
BUILDING_NAME = ".building"  # the directory in which shards are built; readers refuse a dataset that has one
MANIFEST_VERSION = 1


class Kind(enum.Enum):
    """What a field's bytes mean."""

    IMAGE = "image"
    MASK = "mask"
    BOXES = "boxes"
    TEXT = "text"
    JSON = "json"
    ARRAY = "array"
    BYTES = "bytes"
    LABEL = "label"


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field that every sample has."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard and what it must contain. Slots are places in the dataset's written order."""

    name: str  # file name, without directory
    num_samples: int
    nbytes: int
    first_slot: int
    num_slots: int
    sha256: str = ""  # of the shard's bytes; empty for shards that somebody else wrote
    index_sha256: str = ""
    skipped: tuple[int, ...] = ()  # slots, ascending, whose sample was left out as bad
    mtime_ns: int = 0  # of a foreign shard when it was indexed; 0 for converted ones


@dataclass(frozen=True, slots=True)
class Manifest:
    """A dataset: its fields, classes and shards."""

    container: str  # "tar", "folder", ...
    fields: tuple[FieldSpec, ...]
    shards: tuple[ShardInfo, ...]
    classes: tuple[str, ...] | None = None  # names by label, where labels are classes
    class_to_idx: dict[str, int] | None = None
    permutation_key: int | None = None  # the slot of an id is Permutation(num_slots, key).inverse(id); None: the id
    image_size: tuple[int, int] | None = None  # (height, width) where all images share one
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the conversion, as typed
    source_digest: str = ""  # of the listing it was made from: names, sizes, labels; "" where nobody recorded it

    @property
    def num_samples(self) -> int:
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_slots(self) -> int:
        return sum(shard.num_slots for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """A name for the contents, 16 hex digits: the same shards in the same order have the same name."""
        digest = hashlib.sha256(f"{self.container} {self.permutation_key}\n".encode())
        for shard in self.shards:
            contents = shard.sha256 or shard.index_sha256  # of what others wrote, names and sizes are known
            digest.update(f"{shard.name} {shard.num_samples} {shard.nbytes} {contents}\n".encode())
        return digest.hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON-safe values."""
        value = dataclasses.asdict(self)
        value["fields"] = [{"name": field.name, "kind": field.kind.value} for field in self.fields]
        return {"version": MANIFEST_VERSION, "num_samples": self.num_samples, **value}

    @classmethod
    def from_json(cls, value: dict[str, Any], where: str) -> Manifest:
        """Rebuild and check a manifest; `where` names its file in errors."""
        if not isinstance(value, dict) or value.get("version") != MANIFEST_VERSION:
            found = value.get("version") if isinstance(value, dict) else type(value).__name__
            raise FormatError(f"{where}: manifest version {found!r}, expected {MANIFEST_VERSION}; convert again or upgrade")
        try:
            shards = tuple(_parse_shard(shard) for shard in value["shards"])
            manifest = cls(
                container=value["container"],
                fields=tuple(FieldSpec(field["name"], Kind(field["kind"])) for field in value["fields"]),
                shards=shards,
                classes=None if value["classes"] is None else tuple(value["classes"]),
                class_to_idx=value["class_to_idx"],
                permutation_key=None if value["permutation_key"] is None else _whole(value["permutation_key"]),
                image_size=None if value["image_size"] is None else (value["image_size"][0], value["image_size"][1]),
                options=value["options"],
                source_digest=str(value.get("source_digest", "")),
            )
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            raise FormatError(f"{where}: not a datapipe manifest ({type(exc).__name__}: {exc}); convert again") from exc
        if manifest.num_samples != value.get("num_samples"):
            claimed = value.get("num_samples")
            raise FormatError(f"{where}: says {claimed} samples, its shards hold {manifest.num_samples}; convert again")
        for shard in manifest.shards:
            if "/" in shard.name or shard.name in ("", ".", ".."):
                raise FormatError(f"{where}: shard name {shard.name!r} leaves the directory; do not use this dataset")
        return manifest


def _parse_shard(value: dict[str, Any]) -> ShardInfo:
    """Raises KeyError, TypeError or ValueError for what no manifest holds."""
    shard = ShardInfo(**{**value, "skipped": tuple(_whole(slot) for slot in value["skipped"])})
    for text in (shard.name, shard.sha256, shard.index_sha256):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} where a text belongs")
    for number in (shard.num_samples, shard.nbytes, shard.first_slot, shard.num_slots, shard.mtime_ns):
        _whole(number)
    return shard


def _whole(number: object) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"{number!r} where a whole number belongs")
    return number


def read_manifest(directory: Path) -> Manifest:
    """Read `directory/dataset.json`.

    Raises UnfinishedError for a directory under construction, MissingDataError where there is no
    manifest, FormatError for one that does not parse.
    """
    refuse_unfinished(directory)
    path = directory / MANIFEST_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError as exc:
        raise MissingDataError(f"{directory}: no {MANIFEST_NAME}; is this a converted dataset?") from exc
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise FormatError(f"{path}: not JSON ({exc}); convert again") from exc
    return Manifest.from_json(value, str(path))


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `directory/dataset.json` atomically."""
    atomic.write_json(directory / MANIFEST_NAME, manifest.to_json())


def refuse_unfinished(directory: Path) -> None:
    """Raise UnfinishedError if a conversion into `directory` has not ended."""
    if (directory / BUILDING_NAME).is_dir():
        raise UnfinishedError(
            f"{directory}: half made (it holds {BUILDING_NAME}/); run the same `datapipe convert` command again to finish it"
        )
