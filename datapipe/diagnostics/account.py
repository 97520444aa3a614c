"""Account for the time of a whole run: start-up, first batches of passes, waiting, steps, validation, and the time between.

The verdict is about steady steps; a run may lose most of its time elsewhere. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.diagnostics.measure.recorded import Process
from datapipe.diagnostics.measure.watching import LoaderFacts
from datapipe.diagnostics.predict.remedies import WORTH_IT


@dataclass(frozen=True, slots=True)
class LoaderTime:
    """The time of a run spent with one loader, in seconds."""

    id: int  # the loader's number
    is_evaluation: bool
    num_passes: int
    first_wait_s: float  # in the first next() of its passes: starting workers, making the first batch
    wait_s: float  # in all other next() calls
    work_s: float  # in the steps between

    @property
    def total_s(self) -> float:
        return self.first_wait_s + self.wait_s + self.work_s


@dataclass(frozen=True, slots=True)
class Account:
    """The account of one process. The parts add up to `wall_s`."""

    wall_s: float
    startup_s: float  # before the first batch was requested
    loaders: tuple[LoaderTime, ...]  # the longest first
    between_s: float  # outside of passes: ends of epochs, checkpoints, and the time after the last pass

    def parts(self) -> dict[str, float]:
        """Return seconds by kind of time, in the order in which a run goes through them."""
        training = [one for one in self.loaders if not one.is_evaluation]
        return {
            "start-up": self.startup_s,
            "first batches": sum(one.first_wait_s for one in training),
            "waiting for data": sum(one.wait_s for one in training),
            "training steps": sum(one.work_s for one in training),
            "validation": sum(one.total_s for one in self.loaders if one.is_evaluation),
            "between passes": self.between_s,
        }


def account_of(process: Process) -> Account | None:
    """Return the account of a process; None if it made no step, or if its start or end is unknown."""
    steps = process.steps
    if not len(steps) or process.started_ns is None or process.ended_ns is None:
        return None
    first_ns = int(steps["start_ns"].min())
    is_whole = bool(steps["pass_id"].min() == 0)  # otherwise the first steps were dropped, and the account begins later
    begin_ns = min(process.started_ns, first_ns) if is_whole else first_ns
    loaders = []
    for key in np.unique(steps["loader"]).tolist():
        for is_evaluation in (False, True):
            rows = steps[(steps["loader"] == key) & (steps["is_evaluation"] == is_evaluation)]
            if len(rows):
                loaders.append(_time_of(rows, key, is_evaluation=is_evaluation))
    wall_s = max(0.0, (process.ended_ns - begin_ns) * 1e-9)
    startup_s = (first_ns - begin_ns) * 1e-9
    between_s = max(0.0, wall_s - startup_s - sum(one.total_s for one in loaders))
    return Account(wall_s, startup_s, tuple(sorted(loaders, key=lambda one: -one.total_s)), between_s)


def savings_of(process: Process, account: Account, production_s: float | None) -> list[tuple[int, float]]:
    """Return what keeping workers from pass to pass would save: (loader, seconds), the largest first.

    With persistent workers the first batch of a later pass takes as long as making one batch. `production_s`: that time, for
    the loader that the training waits for.
    """
    found = []
    for one in account.loaders:
        facts = process.loaders.get(one.id)
        if facts is None or not _starts_workers(facts) or one.num_passes < 2 or not account.wall_s:
            continue
        rows = process.steps[(process.steps["loader"] == one.id) & process.steps["is_first"]]
        later = rows[rows["is_evaluation"] == one.is_evaluation]["host_wait_s"][1:]
        usual_s = production_s if production_s is not None else _usual_wait_s(process, one.id)
        saved_s = float(np.maximum(0.0, later - usual_s).sum())
        if saved_s >= WORTH_IT * account.wall_s:
            found.append((one.id, saved_s))
    return sorted(found, key=lambda saving: -saving[1])


def _time_of(rows: NDArray[np.void], key: int, *, is_evaluation: bool) -> LoaderTime:
    first = rows["is_first"]
    return LoaderTime(
        key,
        is_evaluation,
        len(np.unique(rows["pass_id"])),
        float(rows["host_wait_s"][first].sum()),
        float(rows["host_wait_s"][~first].sum()),
        float(rows["host_work_s"].sum()),
    )


def _starts_workers(facts: LoaderFacts) -> bool:
    return bool(facts.num_workers) and facts.persistent_workers is False


def _usual_wait_s(process: Process, loader: int) -> float:
    rows = process.steps[(process.steps["loader"] == loader) & ~process.steps["is_first"]]
    return float(rows["host_wait_s"].max()) if len(rows) else 0.0
