"""The contents of a plan: sets, their shards, the samples of a shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.listing_store import Unreadable
from converters.sources import Origin
from datapipe.codecs.field_values import FieldSpec

WHOLE = "shard"  # name of shards without a split


@dataclass(frozen=True, slots=True)
class PlannedSet:
    """One dataset of the result: all of the source, or one split of it."""

    name: str  # "" for the whole
    num_slots: int
    permutation_key: int | None
    problems: tuple[tuple[str, str], ...] = ()  # (source, reason) of directories that could not be listed

    @property
    def shard_prefix(self) -> str:
        return self.name or WHOLE


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard to write."""

    number: int  # over all sets, from 0
    stem: str  # file name without suffix
    set_name: str
    first_position: int  # over all sets
    first_slot: int  # within the set
    num_slots: int
    nbytes: int  # of its source files


@dataclass(frozen=True, slots=True)
class PlannedSample:
    """One slot of a shard."""

    slot: int
    id: int
    label: int
    source: bytes  # its name: a path relative to the source's root
    problem: str | None  # why it cannot be read, if the listing shows that
    origins: Mapping[str, Origin]  # by field
    values: Mapping[str, str]  # by field: text, or JSON text
    size: tuple[int, int] | None = None  # required (height, width) of its image


@dataclass(frozen=True, slots=True)
class Duplicates:
    """The samples that are left out because an earlier one has the same content."""

    num: int = 0
    num_relabelled: int = 0  # of them, those whose label is another than that of the sample that is kept
    first: tuple[tuple[str, str], ...] = ()  # (source, the one that is kept)


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """A finished plan; its samples stay on disk."""

    path: Path
    options: dict[str, Any]  # ConvertOptions.as_typed() of the run that planned
    sets: tuple[PlannedSet, ...]
    shards: tuple[PlannedShard, ...]
    fields: tuple[FieldSpec, ...]  # of every sample
    classes: tuple[str, ...] | None  # names by label, where labels are classes
    source_digest: str  # of the listing
    field_nbytes: dict[str, int]  # by field, over all samples
    num_labels: int  # different ones
    first_class: str | None  # the class of the first sample
    made_from: dict[str, Any] | None  # which dataset or archive the source is
    unreadable: Unreadable
    duplicates: Duplicates  # also the table `duplicates`, if the options ask for them
    warnings: tuple[str, ...]  # of the source
    num_ignored: int
    num_junk: int
    loops: tuple[str, ...]  # links, relative to the source
    empty_classes: tuple[str, ...]

    @property
    def num_samples(self) -> int:
        return sum(planned.num_slots for planned in self.sets)

    @property
    def nbytes(self) -> int:
        """The size of all source files."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        return tuple(problem for planned in self.sets for problem in planned.problems)
