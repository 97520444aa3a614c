"""What a conversion tells: while it runs, in the end, and beforehand."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from converters.planning import Plan
from datapipe.containers.listing import told_of_loops


class Phase(enum.Enum):
    """What a conversion is at."""

    SCAN = "scan"  # listing the source; the total is not known yet
    WRITE = "write"  # writing shards


@dataclass(frozen=True, slots=True)
class Advance:
    """Progress since the last one."""

    phase: Phase
    num_samples: int
    num_errors: int = 0
    total: int | None = None  # samples in this phase, where known


OnProgress = Callable[[Advance], None]


def ignore_progress(advance: Advance, /) -> None:
    """Tell nobody."""


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
    """How a conversion ended."""

    destination: Path
    sets: tuple[SetReport, ...]  # empty while other parts are still writing
    num_classes: int | None  # None where labels have no names, or there are none
    num_written: int  # shards that this run wrote
    num_resumed: int  # shards that an earlier run, or another part, had written
    num_waiting: int  # shards that other parts have still to write; 0 once the dataset is complete
    warnings: tuple[str, ...]
    elapsed_s: float
    compared: str | None = None  # of a dataset that was finished before: in what it is what was asked for

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
    """What a conversion would do."""

    sets: tuple[SetPreview, ...]
    num_classes: int | None  # None where labels have no names, or there are none
    fields: tuple[tuple[str, str], ...]  # (name, kind) of every sample's
    nbytes: int  # of the source files
    needed_nbytes: int | None  # on disk; None where images are encoded anew
    free_nbytes: int
    problems: tuple[tuple[str, str], ...]  # (source, reason) of directories that could not be listed
    num_unreadable: int  # samples that are bad by the listing alone; others turn out to be when they are read
    unreadable: tuple[tuple[str, str], ...]  # (source, reason) of the first of them
    warnings: tuple[str, ...]


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """What is odd about a source, though not wrong."""
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
