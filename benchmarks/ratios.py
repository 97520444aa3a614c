"""Medians and ratios over alternated rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """One contender's median over another's, with a 95% interval."""

    ratio: float
    low: float
    high: float


def ratio_of(ours: list[float], theirs: list[float]) -> Ratio:
    """The ratio of medians; the interval is a percentile bootstrap over rounds.

    Round i of both ran within the same minute, so rounds are drawn in pairs: what slowed the machine
    down then is in both. Raises ValueError where the numbers of rounds differ.
    """
    pairs: NDArray[np.float64] = np.array(list(zip(ours, theirs, strict=True)))
    picks = np.random.default_rng(0).integers(len(pairs), size=(_RESAMPLES, len(pairs)))
    medians = np.median(pairs[picks], axis=1)
    low, high = np.percentile(medians[:, 0] / medians[:, 1], [2.5, 97.5])
    point = np.median(pairs[:, 0]) / np.median(pairs[:, 1])
    return Ratio(round(float(point), 3), round(float(low), 3), round(float(high), 3))


def rotated(names: list[str], round_number: int) -> list[str]:
    """The order of a round: everyone is first once, and every other round runs backwards."""
    start = round_number % len(names)
    order = names[start:] + names[:start]
    return order[::-1] if round_number % 2 else order
