"""The output of a conversion: progress, report and preview."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from converters.planning import ConversionPlan
from datapipe.containers.listing import told_of_loops


class Phase(enum.Enum):
    """The phase of a conversion."""

    SCAN = "scan"  # listing the source; the total is unknown
    WRITE = "write"  # writing shards


@dataclass(frozen=True, slots=True)
class Advance:
    """Progress since the previous one."""

    phase: Phase
    num_samples: int
    num_errors: int = 0
    total: int | None = None  # samples in this phase, where known


OnProgress = Callable[[Advance], None]


def ignore_progress(advance: Advance, /) -> None:
    """Do nothing with the progress."""


@dataclass(frozen=True, slots=True)
class SetReport:
    """One dataset that was written."""

    name: str  # of the split; "" for the whole
    directory: Path
    num_samples: int
    num_shards: int
    nbytes: int  # of the shards
    num_errors: int


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a conversion."""

    destination: Path
    sets: tuple[SetReport, ...]  # empty while other parts are still writing
    num_classes: int | None  # None if labels have no names, or there are none
    num_written: int  # shards that this run wrote
    num_resumed: int  # shards that an earlier run, or another part, had written
    num_waiting: int  # shards that other parts still have to write; 0 when the dataset is complete
    warnings: tuple[str, ...]
    elapsed_s: float
    compared: str | None = None  # for a dataset that was already finished: what was found unchanged

    @property
    def is_finished(self) -> bool:
        return not self.num_waiting

    @property
    def num_samples(self) -> int:
        return sum(one.num_samples for one in self.sets)

    @property
    def num_errors(self) -> int:
        return sum(one.num_errors for one in self.sets)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.sets)


@dataclass(frozen=True, slots=True)
class SetPreview:
    """One dataset that would be written."""

    name: str
    num_samples: int
    num_shards: int
    nbytes: int  # of the source files
    first: tuple[tuple[str, str], ...]  # (key, source path) of the first samples of the first shard


@dataclass(frozen=True, slots=True)
class Preview:
    """The expected result of a conversion."""

    sets: tuple[SetPreview, ...]
    num_classes: int | None  # None if labels have no names, or there are none
    fields: tuple[tuple[str, str], ...]  # (name, kind) of each sample's fields
    nbytes: int  # of the source files
    needed_nbytes: int | None  # on disk; None if images are encoded again
    free_nbytes: int
    problems: tuple[tuple[str, str], ...]  # (source, reason) of directories that could not be listed
    num_unreadable: int  # samples that are bad by the listing alone; reading may find more
    unreadable: tuple[tuple[str, str], ...]  # (source, reason) of the first of them
    warnings: tuple[str, ...]


def warnings_of(plan: ConversionPlan) -> tuple[str, ...]:
    """Return what is unusual about a source, though not wrong."""
    warnings = list(plan.warnings)
    if plan.empty_classes:
        shown = ", ".join(plan.empty_classes[:5]) + (", ..." if len(plan.empty_classes) > 5 else "")
        warnings.append(f"{len(plan.empty_classes)} class folders without images (they stay in the class list): {shown}")
    if plan.num_ignored:
        warnings.append(f"{plan.num_ignored} files ignored: their names do not end like those of samples")
    if plan.num_junk:
        warnings.append(f"{plan.num_junk} hidden or system files and folders ignored")
    if plan.loops:
        warnings.append(told_of_loops(plan.loops))
    return tuple(warnings)
