"""The parts of a document that are about the slowest rank alone: loaders, its run, and steps, as far as a page shows them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from datapipe.analysis.judge.analysis import Analysis
from datapipe.analysis.judge.breakdown import OWN, Breakdown
from datapipe.analysis.judge.steady import of_latest, step_times
from datapipe.analysis.predict.instructions import Instruction, argument_of, place_of
from datapipe.analysis.predict.remedies import WORTH_IT
from datapipe.core.observe import Stage
from datapipe.diagnostics.document import (
    MAX_SPANS,
    MAX_STEPS,
    LoaderRow,
    LoaderTime,
    RunTime,
    RunWait,
    Saving,
    Span,
    StepColumns,
    guide_of,
)
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.watching import LoaderFacts
from datapipe.instruments.torch_stages.profile import BatchProfile

_KEPT = "persistent_workers=True"


def details_of(found: Analysis) -> dict[str, Any]:
    """Return these parts, by the names of `Document`'s fields."""
    process = found.process
    return {
        "loaders": tuple(_loader_row(facts, found) for facts in process.loaders.values()),
        "run": _run_time(found),
        "regimes": found.regimes if len(found.regimes) > 1 else (),
        "steps": _steps_of(found),
        "spans": tuple(_spans_of(found)),
        "syncs": dict(process.context.syncs),
        "environment": dict(process.environment),
    }


def _loader_row(facts: LoaderFacts, found: Analysis) -> LoaderRow:
    steps = found.recorded.steps[found.recorded.steps["loader"] == facts.key]
    training = ~steps["is_evaluation"]
    return LoaderRow(
        id=facts.key,
        where=None if facts.site is None else place_of(facts.site),
        kind=facts.kind,
        dataset=None if facts.dataset is None else facts.dataset.rpartition(".")[2],
        num_workers=facts.num_workers,
        prefetch_factor=facts.prefetch_factor,
        batch_size=facts.batch_size,
        pin_memory=facts.pin_memory,
        is_evaluation=bool(len(steps)) and not training.any(),
        is_judged=found.loader is not None and found.loader.key == facts.key,
        num_steps=len(steps),
    )


def _run_time(found: Analysis) -> RunTime | None:
    """Return the account of an analysed process's run, and what keeping workers would save."""
    run = account_of(found.recorded)
    if run is None:
        return None
    production = [profile.made.total_ns for profile in found.profiles]
    production_s = float(np.mean(production)) * 1e-9 if production else None
    savings = tuple(savings_of(found.recorded, run, production_s))
    return msgspec.structs.replace(run, savings=savings, waiting=_waiting_of(found, run.wall_s - run.parts["start-up"]))


def _waiting_of(found: Analysis, wall_s: float) -> RunWait | None:
    """Return the waiting of a run that took `wall_s` from its first batch on: the device's, or the host's without a device."""
    steps = found.process.steps[~found.process.steps["is_evaluation"]]
    if not len(steps):
        return None
    waits_s = np.where(np.isnan(steps["gap_s"]), steps["host_wait_s"], steps["gap_s"])
    wall_s = max(wall_s - float(steps["host_wait_s"][0]), float(waits_s[1:].sum()), 1e-9)
    waits_s[0] = 0.0
    is_earlier = np.zeros(len(steps), np.bool_)
    if found.loader is not None:
        is_earlier = ~of_latest(steps, found.loader.key, found.regimes) & ~steps["is_first"]
    parts = (np.ones(len(steps), np.bool_), steps["is_first"], is_earlier)
    share, of_starts, of_earlier = (float(waits_s[part].sum()) / wall_s for part in parts)
    return RunWait(share=share, of_starts=of_starts, of_earlier=of_earlier)


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
    """Return what keeping workers from pass to pass would save, by the place where loaders are made, the largest first.

    With persistent workers the first batch of a later pass takes as long as making one batch. `production_s`: that time, for
    the loader that the training waits for.
    """
    found = []
    for is_evaluation, loaders in _restarting(process, run):
        keys = [facts.key for facts in loaders]
        rows = process.steps[np.isin(process.steps["loader"], keys) & process.steps["is_first"]]
        later = rows[rows["is_evaluation"] == is_evaluation]["host_wait_s"][1:]
        usual_s = production_s if production_s is not None else _usual_wait_s(process, keys)
        saved_s = float(np.maximum(0.0, later - usual_s).sum())
        if run.wall_s and saved_s >= WORTH_IT * run.wall_s:
            found.append(Saving(name=_KEPT, **guide_of(_keeping(loaders)), saved_s=saved_s, gain=saved_s / run.wall_s))
    return sorted(found, key=lambda saving: -saving.saved_s)


def _restarting(process: Process, run: RunTime) -> Iterator[tuple[bool, list[LoaderFacts]]]:
    """Yield loaders that start workers for several passes: one, or those that a script makes again and again at one place."""
    made_at: defaultdict[tuple[bool, object], dict[int, LoaderFacts]] = defaultdict(dict)
    num_passes = Counter[tuple[bool, object]]()
    for one in run.loaders:
        facts = process.loaders.get(one.id)
        if facts is not None and facts.num_workers and facts.persistent_workers is False:
            place = (one.is_evaluation, facts.site or facts.key)
            made_at[place][facts.key] = facts
            num_passes[place] += one.num_passes
    yield from ((place[0], list(loaders.values())) for place, loaders in made_at.items() if num_passes[place] > 1)


def _keeping(loaders: Sequence[LoaderFacts]) -> Instruction:
    """Return the instruction to keep the workers of loaders that are made at one place."""
    how = argument_of(loaders[0], _KEPT, "workers are started again for each pass")
    return how if len(loaders) == 1 else replace(how, note=f"{how.note}: make the loader once, before the epochs")


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


def _usual_wait_s(process: Process, loaders: Sequence[int]) -> float:
    rows = process.steps[np.isin(process.steps["loader"], loaders) & ~process.steps["is_first"]]
    return float(rows["host_wait_s"].max()) if len(rows) else 0.0


def _steps_of(found: Analysis) -> StepColumns:
    """Return at most MAX_STEPS of the steps, thinned evenly; seconds since `_origin_ns`."""
    steps = found.process.steps
    kept = np.linspace(0, max(0, len(steps) - 1), min(len(steps), MAX_STEPS))
    rows = np.unique(kept.round().astype(np.int64))
    steps, steady = steps[rows], found.steady[rows]
    phase = np.where(steady, "steady", "warm-up").astype(object)
    phase[steps["is_first"]] = "edge"
    phase[steps["is_evaluation"]] = "evaluation"
    return StepColumns(
        start_s=tuple(((steps["start_ns"] - _origin_ns(found)) * 1e-9).tolist()),
        step_s=_known(step_times(steps)),
        gap_s=_known(steps["gap_s"]),
        host_wait_s=_known(steps["host_wait_s"]),
        phase=tuple(phase.tolist()),
        loader=tuple(steps["loader"].tolist()),
    )


def _spans_of(found: Analysis) -> list[Span]:
    """Return the work on the latest steady batches: at most MAX_SPANS rows.

    Within a torch worker's time in the dataset only the amounts are known: the parts are placed one after the other.
    """
    origin = _origin_ns(found)
    rows = list(_torch_spans(found)) if found.profiles else list(_own_spans(found))
    kept = sorted(rows, key=lambda row: row[3])[-MAX_SPANS:]
    return [
        Span(batch=batch, worker=worker, stage=stage, start_s=(start_ns - origin) * 1e-9, duration_s=duration_ns * 1e-9)
        for batch, worker, stage, start_ns, duration_ns in kept
    ]


def _origin_ns(found: Analysis) -> int:
    """Return the start of the first step."""
    steps = found.process.steps
    return int(steps["start_ns"].min()) if len(steps) else 0


_Row = tuple[int, int | None, str, int, int]  # batch, worker, stage, start_ns, duration_ns


def _torch_spans(found: Analysis) -> Iterator[_Row]:
    """Yield rows for the latest steady batches, or the latest of all if none is steady; about MAX_SPANS rows."""
    breakdown = Breakdown(found.profiles)
    until_ns = _last_steady_ns(found)
    numbered = [(number, profile) for number, profile in enumerate(found.profiles) if profile.taken_ns <= until_ns]
    for number, profile in numbered[-(MAX_SPANS // 4) :]:
        yield from _spans_of_batch(number, profile, breakdown)


def _spans_of_batch(number: int, profile: BatchProfile, breakdown: Breakdown) -> Iterator[_Row]:
    made, moved, pinned = profile.made, profile.moved, profile.pinned
    parts: dict[str, float] = {}
    for (kind, _), share in breakdown.of_dataset(made).items():
        parts[kind] = parts.get(kind, 0.0) + share
    start_ns = made.start_ns
    for kind in ("cores", "read", "decode", OWN, "transform"):
        duration_ns = round(parts.get(kind, 0.0) * made.dataset_ns)
        if duration_ns > 0:
            yield number, made.worker, kind, start_ns, duration_ns
            start_ns += duration_ns
    yield number, made.worker, "collate", made.collate_start_ns, made.collate_ns
    if moved is not None:
        yield number, None, "transfer", moved.pickle_start_ns, moved.open_end_ns - moved.pickle_start_ns
    if pinned is not None:
        yield number, None, "pin", pinned.start_ns, pinned.end_ns - pinned.start_ns


def _own_spans(found: Analysis) -> Iterator[_Row]:
    until_ns = _last_steady_ns(found)
    for event in found.events:
        if event.stage is not Stage.WAIT and event.duration_ns > 0 and event.start_ns <= until_ns:
            yield event.step, None, event.stage.value, event.start_ns, event.duration_ns


def _last_steady_ns(found: Analysis) -> float:
    steady = found.process.steps[found.steady]
    return float(steady["start_ns"].max() + steady["host_wait_s"].max() * 1e9) if len(steady) else float("inf")


def _known(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else float(value) for value in values)
