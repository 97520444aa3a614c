"""Adjust the rows of steps before they are judged: count freeing a batch as waiting, join loaders that are read in turn. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.timeline import Steps
from datapipe.instruments.torch_stages.profile import BatchProfile

_MOST = 0.9  # share of the rounds that must be alike, so that loaders count as read in turn
_MIN_ROUNDS = 4
_SUMMED = ("host_wait_s", "host_work_s", "cpu_s", "gap_s", "copy_s", "work_s", "sync_s")


def with_freeing(process: Process) -> Process:
    """Return the process with the time to free batches moved from the steps' work to their waiting, and to the transfer.

    A batch of a worker lies in memory that is mapped into the training process. Unmapping a hundred megabytes takes tens of
    milliseconds. It happens when the loop replaces the last reference, after `next()` has returned, so it looks like the step's
    own work. A pass keeps some batches a little longer and times how long it takes to let go of them (`attach.passes`).
    Only by the host's clock: a device goes on working meanwhile.
    """
    steps, profiles = process.steps, list(process.profiles)
    for key in process.loaders:
        timed = [one for one in profiles if one.loader == key and one.freed_ns is not None]
        rows = np.flatnonzero((steps["loader"] == key) & np.isnan(steps["gap_s"]))
        if not timed or not len(rows):
            continue
        freed_ns = round(statistics.median(one.freed_ns or 0 for one in timed))
        steps = _moved(steps, rows, freed_ns, timed)
        profiles = [_later(one, freed_ns) if one.loader == key else one for one in profiles]
    return process if steps is process.steps else replace(process, steps=steps, profiles=tuple(profiles))


def _moved(steps: Steps, rows: NDArray[np.int64], freed_ns: int, timed: list[BatchProfile]) -> Steps:
    places = np.searchsorted(steps["start_ns"][rows], [one.asked_ns for one in timed], side="right") - 1
    frees_none = rows[np.maximum(places - 1, 0)]  # in the step before, the batch was still held
    moves = np.zeros(len(steps))
    moves[rows] = freed_ns * 1e-9
    moves[frees_none] = 0.0
    moves = np.minimum(moves, steps["host_work_s"])
    moved = steps.copy()
    moved["host_wait_s"] += moves
    moved["host_work_s"] -= moves
    return moved


def _later(profile: BatchProfile, freed_ns: int) -> BatchProfile:
    """Return the profile as if freeing the batch before it were part of its transfer."""
    if profile.moved is None:
        return profile
    moved = replace(profile.moved, open_end_ns=profile.moved.open_end_ns + freed_ns)
    return replace(profile, moved=moved, taken_ns=profile.taken_ns + freed_ns)


@dataclass(frozen=True, slots=True)
class Joined:
    """Rows of which each is one training step."""

    steps: Steps  # (m,)
    of_row: NDArray[np.int64]  # (n,) for each row that was given, the one that it became part of
    others_wait_s: NDArray[np.float64]  # (m,) part of `host_wait_s` that was for other loaders than the row's
    loaders: tuple[int, ...]  # that are read in turn; empty: none are


def join_zipped(steps: Steps, *, prefers: int | None = None) -> Joined:
    """Return the steps with rounds of training rows joined, if most rounds read the same loaders once each.

    A joined row has the start of its first part, and the pass and loader of the one that was waited for longest overall, or of
    the loader `prefers`, if that is among them.
    """
    rows = np.flatnonzero(~steps["is_evaluation"])
    loaders = steps["loader"][rows]
    for outer in dict.fromkeys(loaders.tolist()):
        starts = np.flatnonzero(loaders == outer)
        rounds = [tuple(part.tolist()) for part in np.split(loaders, starts)[1:]]
        if len(rounds) < _MIN_ROUNDS:
            continue
        usual, num = Counter(rounds).most_common(1)[0]
        if len(usual) > 1 and len(set(usual)) == len(usual) and num >= _MOST * len(rounds) - 1:
            chosen = [part for part, of in zip(np.split(rows, starts)[1:], rounds, strict=True) if of == usual]
            return _joined(steps, np.array(chosen), usual, prefers)
    return Joined(steps, np.arange(len(steps)), np.zeros(len(steps)), ())


def _joined(steps: Steps, rounds: NDArray[np.int64], loaders: tuple[int, ...], prefers: int | None) -> Joined:
    """`rounds`: (num, loaders) rows, each round of which becomes one."""
    waits = steps["host_wait_s"][rounds]
    main = loaders.index(prefers) if prefers in loaders else int(waits.sum(axis=0).argmax())
    whole = steps[rounds[:, main]].copy()
    for name in _SUMMED:
        whole[name] = steps[name][rounds].sum(axis=1)  # NaN if any is
    whole["start_ns"] = steps["start_ns"][rounds[:, 0]]
    whole["is_ahead"] = steps["is_ahead"][rounds[:, -1]]
    updates = steps["num_updates"][rounds]
    whole["num_updates"] = np.where((updates < 0).any(axis=1), -1, updates.sum(axis=1))
    whole["is_first"] = steps["is_first"][rounds].any(axis=1)

    kept = np.ones(len(steps), np.bool_)
    kept[rounds] = False
    kept[rounds[:, 0]] = True
    of_row = np.cumsum(kept) - 1
    of_row[rounds] = of_row[rounds[:, :1]]
    joined = steps[kept].copy()
    places = of_row[rounds[:, 0]]
    joined[places] = whole
    others_s = np.zeros(len(joined))
    others_s[places] = waits.sum(axis=1) - waits[:, main]
    return Joined(joined, of_row, others_s, loaders)
