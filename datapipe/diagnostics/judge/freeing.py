"""Count the time to free a batch as waiting for data. Pure.

A batch of a worker lies in memory that is mapped into the training process. Unmapping a hundred megabytes takes tens of
milliseconds. It happens when the loop replaces the last reference, after `next()` has returned, so it looks like the step's own
work. A pass keeps some batches a little longer and times how long it takes to let go of them (`attach.passes`).
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from datapipe.diagnostics.measure.recorded import Process
from datapipe.diagnostics.measure.timeline import Steps
from datapipe.diagnostics.torch_stages.profile import BatchProfile


def with_freeing(process: Process) -> Process:
    """Return the process with the time to free batches moved from the steps' work to their waiting, and to the transfer.

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
