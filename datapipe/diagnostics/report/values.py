"""What a diagnosis document says, as values. What was not measured is None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datapipe.diagnostics.bootstrap import Interval
from datapipe.diagnostics.instruction import Instruction


def number(value: float | None) -> float | None:
    """A finite one. Raises ValueError for any other."""
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"{value} for a number; not measured is null")
    return float(value)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict. `figures`: those of `diagnostics.figures`, by name."""

    kind: str
    severity: str | None
    reason: str
    figures: Mapping[str, Any]
    starvation: Interval | None
    rank: int | None  # whose verdict it is, where that is said

    @property
    def is_device(self) -> bool:
        """Whether it is the device's idle time that was measured, not the host's wait."""
        return bool(self.figures.get("basis") == "device")

    def figure(self, name: str) -> float | None:
        return number(self.figures.get(name))


@dataclass(frozen=True, slots=True)
class StageOfWait:
    """A stage, and its part in the waiting: seconds, and a share of all of it."""

    name: str
    detail: str | None
    wait_s: float | None
    share: float | None
    work_share: float | None = None  # of making and moving batches, waited for or not


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the loop waited. `stages`: the largest part first."""

    stages: tuple[StageOfWait, ...]
    fault: str | None
    reason: str
    worker: int | None
    head_of_line_s: float | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a remedy is predicted to bring: seconds per step, and how much shorter that is, as a share."""

    name: str
    how: Instruction
    step_s: Interval
    gain: Interval | None
    starvation: Interval | None
    needs_edit: bool | None  # of the user's code; None: not known
    changes_results: bool | None  # what is trained is not quite the same


@dataclass(frozen=True, slots=True)
class Need:
    """A stage that would have to become faster for the loop to stop waiting."""

    stage: StageOfWait
    where: str | None  # the user's code: file:line (name)
    step_s: float | None  # if the stage cost nothing; None: not predicted
    times_faster: float | None  # None: it alone does not suffice


@dataclass(frozen=True, slots=True)
class WhatIf:
    """`best` is the name of a remedy, "change nothing", or "no remedy known" where the loop waits."""

    best: str
    outlooks: tuple[Outlook, ...]  # worth a change: the best first, then as the document has them
    within_noise: tuple[Outlook, ...]  # whose gain may be chance, or is too small
    now: Outlook | None
    measured_step_s: float | None
    misfit: float | None  # of the replay of what was measured: 0.1 is 10% too long
    needs: tuple[Need, ...] = ()  # the most waited for first


@dataclass(frozen=True, slots=True)
class Saving:
    """A remedy that shortens the run rather than a steady step."""

    name: str
    how: Instruction
    saved_s: float
    gain: float  # as a share of the run


@dataclass(frozen=True, slots=True)
class LoaderTime:
    """One loader's part of the run, in seconds."""

    where: str | None
    is_evaluation: bool
    is_judged: bool
    wait_s: float  # first batches of passes included
    total_s: float


@dataclass(frozen=True, slots=True)
class RunTime:
    """Where the time of the whole run went."""

    wall_s: float
    parts: Mapping[str, float]  # seconds by what they went to
    loaders: tuple[LoaderTime, ...]  # the longest first
    savings: tuple[Saving, ...]  # the largest first


@dataclass(frozen=True, slots=True)
class Level:
    """Consecutive passes that wait alike; passes are counted from 0 on."""

    first_pass: int
    last_pass: int
    waiting: float  # of their time
    step_s: float


@dataclass(frozen=True, slots=True)
class StepRow:
    start_s: float
    step_s: float | None
    gap_s: float | None
    host_wait_s: float | None
    phase: str | None
    loader: int | None


@dataclass(frozen=True, slots=True)
class SpanRow:
    start_s: float
    duration_s: float
    stage: str
    worker: int | None
    batch: int | None


@dataclass(frozen=True, slots=True)
class SyncRow:
    """What makes the loop wait for the device, as users call it."""

    name: str
    num: int
    host_s: float


@dataclass(frozen=True, slots=True)
class RankRow:
    rank: int | None
    pid: int | None
    num_steps: int | None
    verdict: Judgement


@dataclass(frozen=True, slots=True)
class Applied:
    """A remedy that was carried out, and what came of it."""

    remedy: str
    predicted_step_s: Interval | None
    measured_step_s: float | None
    starvation: Interval | None
    reason: str | None  # why it was not measured


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All of it."""

    command: tuple[str, ...]
    exit_code: int | None
    started_at: str | None
    duration_s: float | None
    clock: str  # "cuda", or "host" where no device was measured
    verdict: Judgement
    ranks: tuple[RankRow, ...]
    loaders: tuple[Mapping[str, Any], ...]
    attribution: Fault | None
    why_no_attribution: str | None
    what_if: WhatIf | None
    why_no_remedies: str | None
    left_out: tuple[tuple[str, str], ...]  # remedies that could not be tried, and why
    syncs: tuple[SyncRow, ...]  # the longest first
    steps: tuple[StepRow, ...]  # in order of time
    spans: tuple[SpanRow, ...]  # in order of time
    run: RunTime | None
    levels: tuple[Level, ...]  # of training passes, where they differ
    applied: Applied | None
    environment: Mapping[str, Any]
    troubles: tuple[str, ...]

    @property
    def slowest_rank(self) -> int | None:
        """Whose verdict is that of all: the one that waits most for data."""
        if self.verdict.rank is not None or not self.ranks:
            return self.verdict.rank
        return max(self.ranks, key=lambda row: row.verdict.figure("data_s") or 0.0).rank

    @property
    def batch_size(self) -> int | None:
        """Of the loader that was judged: where the document does not say which, the one that most steps were of."""
        judged = [loader for loader in self.loaders if loader.get("is_judged")]
        judged = judged or [loader for loader in self.loaders if not loader.get("is_evaluation")]
        loader = max(judged, key=lambda one: one.get("num_steps") or 0, default={})
        return loader.get("batch_size")

    @property
    def samples_per_s(self) -> float | None:
        """Of one rank, in the steady state."""
        step_s, batch_size = self.verdict.figure("step_s"), self.batch_size
        return batch_size / step_s if batch_size and step_s else None
