"""Account for the time of a whole run: start-up, first batches of passes, waiting, steps, validation, and the time between.

The verdict is about steady steps; a run may lose most of its time elsewhere. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from datapipe.diagnostics.document import LoaderTime, RunTime, Saving, guide_of
from datapipe.diagnostics.judge.analysis import Analysis
from datapipe.diagnostics.measure.recorded import Process
from datapipe.diagnostics.measure.watching import LoaderFacts
from datapipe.diagnostics.predict.candidates import argument_of
from datapipe.diagnostics.predict.remedies import WORTH_IT


def run_time(found: Analysis) -> RunTime | None:
    """Return the account of an analysed process's run, and what keeping workers would save."""
    run = account_of(found.recorded)
    if run is None:
        return None
    production = [profile.made.ready_ns - profile.made.start_ns for profile in found.profiles]
    production_s = float(np.mean(production)) * 1e-9 if production else None
    return msgspec.structs.replace(run, savings=tuple(savings_of(found.recorded, run, production_s)))


def account_of(process: Process) -> RunTime | None:
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
    loaders.sort(key=lambda one: -one.total_s)
    return RunTime(wall_s=wall_s, parts=_parts(startup_s, loaders, between_s), loaders=tuple(loaders))


def _parts(startup_s: float, loaders: Sequence[LoaderTime], between_s: float) -> dict[str, float]:
    """Return seconds by kind of time, in the order in which a run goes through them."""
    training = [one for one in loaders if not one.is_evaluation]
    return {
        "start-up": startup_s,
        "first batches": sum(one.first_wait_s for one in training),
        "waiting for data": sum(one.wait_s for one in training),
        "training steps": sum(one.work_s for one in training),
        "validation": sum(one.total_s for one in loaders if one.is_evaluation),
        "between passes": between_s,
    }


def savings_of(process: Process, run: RunTime, production_s: float | None) -> list[Saving]:
    """Return what keeping workers from pass to pass would save, loader by loader, the largest first.

    With persistent workers the first batch of a later pass takes as long as making one batch. `production_s`: that time, for
    the loader that the training waits for.
    """
    name, found = "persistent_workers=True", []
    for one in run.loaders:
        facts = process.loaders.get(one.id)
        if facts is None or not _starts_workers(facts) or one.num_passes < 2 or not run.wall_s:
            continue
        rows = process.steps[(process.steps["loader"] == one.id) & process.steps["is_first"]]
        later = rows[rows["is_evaluation"] == one.is_evaluation]["host_wait_s"][1:]
        usual_s = production_s if production_s is not None else _usual_wait_s(process, one.id)
        saved_s = float(np.maximum(0.0, later - usual_s).sum())
        if saved_s >= WORTH_IT * run.wall_s:
            how = guide_of(argument_of(facts, name, "workers are started again for each pass"))
            found.append(Saving(name=name, **how, saved_s=saved_s, gain=saved_s / run.wall_s))
    return sorted(found, key=lambda saving: -saving.saved_s)


def _time_of(rows: NDArray[np.void], key: int, *, is_evaluation: bool) -> LoaderTime:
    first = rows["is_first"]
    return LoaderTime(
        id=key,
        is_evaluation=is_evaluation,
        num_passes=len(np.unique(rows["pass_id"])),
        first_wait_s=float(rows["host_wait_s"][first].sum()),
        wait_s=float(rows["host_wait_s"][~first].sum()),
        work_s=float(rows["host_work_s"].sum()),
    )


def _starts_workers(facts: LoaderFacts) -> bool:
    return bool(facts.num_workers) and facts.persistent_workers is False


def _usual_wait_s(process: Process, loader: int) -> float:
    rows = process.steps[(process.steps["loader"] == loader) & ~process.steps["is_first"]]
    return float(rows["host_wait_s"].max()) if len(rows) else 0.0
