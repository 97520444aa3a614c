"""Analyze one process's recording: the verdict, the loader that the training reads, and why it waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from datapipe.analysis.judge.adjusting import join_zipped, with_freeing
from datapipe.analysis.judge.attribution import Wait, attribute, attribute_events
from datapipe.analysis.judge.fault import Fault
from datapipe.analysis.judge.steady import MIN_STEPS, Regime, find_steady, of_latest, of_training, regimes_of
from datapipe.analysis.judge.verdict import Figures, Verdict, VerdictKind, data_times, figures_of, judge
from datapipe.core.observe import Stage, StageEvent
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.timeline import Steps
from datapipe.instruments.measure.watching import LoaderFacts
from datapipe.instruments.torch_stages.profile import BatchProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The result of analyzing one process's steps."""

    process: Process  # its steps: those of loaders that are read in turn are joined
    recorded: Process  # its steps row by row
    figures: Figures
    verdict: Verdict
    steps: Steps  # the judged steps: if passes differ in level, only those of the latest level
    steady: NDArray[np.bool_]  # (n,) mask over all the process's steps,
    steady_rows: NDArray[np.bool_]  # and over those that were recorded
    others_wait_s: NDArray[np.float64]  # (steps,) waiting for loaders that are read in turn with the judged one
    others: tuple[int, ...] = ()  # those loaders
    loader: LoaderFacts | None = None  # the judged one, that the training waits for most; None: there was no training
    of_loader: Figures  # of that loader's steps only, if there are several loaders
    regimes: tuple[Regime, ...] = ()  # of that loader; one if its passes are alike
    profiles: tuple[BatchProfile, ...] = ()  # of that loader's training passes
    events: tuple[StageEvent, ...] = ()
    attribution: Fault | None = None
    why_no_attribution: str | None = None


def analyze(process: Process, *, site: str | None = None) -> Analysis:
    """Analyze a process. Pure. `site`: judge the loader created there, if any, else the one most waited for."""
    made_there = next((facts for facts in process.loaders.values() if site is not None and facts.site == site), None)
    recorded = with_freeing(process)
    in_turn = join_zipped(recorded.steps, prefers=made_there.key if made_there else None)
    process = replace(recorded, steps=in_turn.steps)
    loader = made_there if made_there and process.num_training_steps else main_loader(process)
    regimes = [] if loader is None else regimes_of(process.steps, loader.key)
    judged = np.ones(len(process.steps), np.bool_) if loader is None else of_latest(process.steps, loader.key, regimes)
    steps, steady = process.steps[judged], np.zeros(len(process.steps), np.bool_)
    steady[judged] = find_steady(steps).chosen
    figures = figures_of(steps, num_workers=None if loader is None else loader.num_workers)
    verdict = judge(figures, process.context)
    if not process.num_training_steps:
        verdict = replace(verdict, kind=VerdictKind.NOT_MEASURED, reason="no loader was iterated with gradients enabled")
    found = Analysis(
        process=process,
        recorded=recorded,
        figures=figures,
        verdict=verdict,
        steps=steps,
        steady=steady,
        steady_rows=steady[in_turn.of_row],
        others_wait_s=in_turn.others_wait_s[judged],
        of_loader=figures,
        regimes=tuple(regimes),
        why_no_attribution="there was no training",
    )
    if loader is None:
        return found
    own = steps[steps["loader"] == loader.key]
    raw = recorded.steps[judged[in_turn.of_row] & of_training(recorded.steps, loader.key)]
    found = replace(
        found,
        loader=loader,
        others=tuple(key for key in in_turn.loaders if key != loader.key),
        of_loader=figures if len(own) == len(steps) else figures_of(own, num_workers=loader.num_workers),
        profiles=tuple(_within(raw, [one for one in recorded.profiles if one.loader == loader.key])),
        events=tuple(event for key, event in process.events if key == loader.key),
    )
    attribution = _attributed(found, loader, raw)
    if isinstance(attribution, str):
        return replace(found, why_no_attribution=attribution)
    return replace(found, attribution=attribution, why_no_attribution=None)


def _attributed(found: Analysis, loader: LoaderFacts, raw: Steps) -> Fault | str:
    """Return why the training waited for the loader, or why that is unknown. `raw`: the loader's judged training rows."""
    rows = found.recorded.steps
    waits = steady_waits(rows[found.steady_rows & (rows["loader"] == loader.key)], found.figures)
    if not waits:
        return "the steady state has no waiting" if found.steady.any() else "the run reached no steady state"
    if found.profiles:
        return attribute(found.profiles, waits, found.process.lock)
    if found.events:
        return attribute_events(_by_pass(raw, found.events, waits), found.process.lock)
    return f"{loader.kind} cannot be inspected"


def main_loader(process: Process) -> LoaderFacts | None:
    """Return the loader that training steps waited for longest in total; without waiting, the one with the most steps."""
    steps = process.steps[~process.steps["is_evaluation"]]

    def waited(key: int) -> tuple[float, int]:
        own = steps["host_wait_s"][steps["loader"] == key]
        return float(own.sum()), len(own)

    known = [key for key in dict.fromkeys(steps["loader"].tolist()) if key in process.loaders]
    return process.loaders[max(known, key=waited)] if known else None


def steady_waits(steps: Steps, figures: Figures) -> list[Wait]:
    """Return the waits for data: the device's, at the end of the host's wait, or the host's if there is no device."""
    data, _, _ = data_times(steps, figures.basis)
    data = np.where(np.isnan(data), 0.0, data - (np.nan_to_num(steps["copy_s"]) if figures.basis == "device" else 0.0))
    ends = steps["start_ns"] + (steps["host_wait_s"] * 1e9).astype(np.int64)
    starts = np.maximum(steps["start_ns"], ends - (data * 1e9).astype(np.int64))
    return [(int(start), int(end)) for start, end, waited in zip(starts, ends, data, strict=True) if waited > 0 and end > start]


def steady_profiles(found: Analysis) -> list[BatchProfile]:
    """Return profiles of batches handed out in steady steps; if these are few, of all but the first of each pass."""
    steps = found.recorded.steps[found.steady_rows]
    chosen = _within(steps, found.profiles)
    return chosen if len(chosen) >= MIN_STEPS else [profile for profile in found.profiles if profile.step >= MIN_STEPS // 2]


def _within(steps: Steps, profiles: Sequence[BatchProfile]) -> list[BatchProfile]:
    """Return the profiles requested within the `next()` of one of the steps."""
    if not len(steps):
        return []
    order = np.argsort(steps["start_ns"])
    starts = steps["start_ns"][order]
    ends = starts + (steps["host_wait_s"][order] * 1e9).astype(np.int64)
    asked = np.array([profile.asked_ns for profile in profiles], np.int64)
    places = np.searchsorted(starts, asked, side="right") - 1
    is_within = (places >= 0) & (asked <= ends[np.maximum(places, 0)])
    return [profile for profile, chosen in zip(profiles, is_within, strict=True) if chosen]


def _by_pass(steps: Steps, events: tuple[StageEvent, ...], waits: list[Wait]) -> list[list[StageEvent]]:
    """Return the stages of each pass, and only the given waits, clipped to their times."""
    first_ns = [int(steps["start_ns"][steps["pass_id"] == number].min()) for number in np.unique(steps["pass_id"])]
    passes: list[list[StageEvent]] = [[] for _ in first_ns]
    starts = np.array(sorted(first_ns), np.int64)
    ends = np.array([end for _, end in waits], np.int64)
    for event in events:
        number = int(np.searchsorted(starts, event.start_ns, side="right")) - 1
        if number < 0:
            continue
        if event.stage is Stage.WAIT:
            end_ns = event.start_ns + event.duration_ns
            place = int(np.searchsorted(ends, end_ns, side="left"))
            if place == len(waits) or waits[place][0] > end_ns:
                continue
            start_ns = max(event.start_ns, waits[place][0])
            event = replace(event, start_ns=start_ns, duration_ns=end_ns - start_ns)
        passes[number].append(event)
    return [of_pass for of_pass in passes if of_pass]
