"""Join the rows of loaders that are read in turn, as `zip(one, other)` does: together they are one training step. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.diagnostics.measure.timeline import Steps

_MOST = 0.9  # share of the rounds that must be alike
_MIN_ROUNDS = 4
_SUMMED = ("host_wait_s", "host_work_s", "cpu_s", "gap_s", "copy_s", "work_s", "sync_s")


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
