"""The differences between two makers of the same images, and whether they are within what is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.parity_case import Bound, Case, Pair, Pixels

_BINS_PER_STEP = 1000  # of the histogram from which the 99.9th percentile is read


def measure(case: Case, photos: list[Pixels]) -> dict[str, Any]:
    """The differences of one case over all photographs, of 255."""
    found = differences((case.compare(photo, number) for number, photo in enumerate(photos)), case.bound, case.name)
    return {"operation": case.name, "against": case.against, **found}


def differences(pairs: Iterator[Pair], bound: Bound, name: str) -> dict[str, Any]:
    """The greatest, the 99.9th percentile and the mean over all values of all pairs, and the bounds of these three."""
    counts = np.zeros(256 * _BINS_PER_STEP + 1, np.int64)
    largest, total = 0.0, 0.0
    for ours, theirs in pairs:
        if ours.shape != theirs.shape:
            raise SystemExit(f"{name}: shapes differ, {tuple(ours.shape)} and {tuple(theirs.shape)}")
        difference = (ours - theirs).abs().double().numpy().ravel()
        largest = max(largest, float(difference.max()))
        total += float(difference.sum())
        # A difference counts in the first bin whose value is not less than it.
        places = np.minimum(np.ceil(difference * _BINS_PER_STEP), len(counts) - 1).astype(np.int64)
        counts += np.bincount(places, minlength=len(counts))
    p999 = float(np.searchsorted(np.cumsum(counts), 0.999 * counts.sum()) / _BINS_PER_STEP)
    mean = total / int(counts.sum())
    return {
        "max": round(largest, 6),
        "p99.9": min(p999, round(largest, 6)),
        "mean": round(mean, 6),
        "bound": {"max": bound.largest, "p99.9": bound.p999, "mean": bound.mean},
        "within_bound": largest <= bound.largest and min(p999, largest) <= bound.p999 and mean <= bound.mean,
    }
