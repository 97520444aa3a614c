"""Confidence intervals for ratios of sums over steps that depend on each other.

Steps depend on each other through buffers, so drawing them one by one would give intervals that are too narrow. Blocks are
drawn instead, around a circle (Politis and Romano, "A circular block-resampling procedure for stationary data", 1992), with
the length that the series' own correlation requires (Politis and White, "Automatic block-length selection for the dependent
bootstrap", Econometric Reviews 23, 2004).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Number: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]  # in documents: neither infinite nor NaN
Known: TypeAlias = Number | None  # None: not measured

_NUM_REPLICATES = 1000
_MAX_BLOCKS = 2048


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and the bounds of 95 of 100 replicates."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.value, self.low, self.high))):
            raise ValueError(f"an interval of {self.value}, {self.low}, {self.high}: a value that was not measured must be None")


def ratio_interval(above: NDArray[np.float64], below: NDArray[np.float64], *, seed: int = 0) -> Interval:
    """Return sum(above) / sum(below) for two parallel series of one length; `below` sums to more than 0."""
    value = float(above.sum() / below.sum())
    num = len(above)
    # Longer blocks than needed do no harm in a series of thousands, and they limit the number of draws.
    length = max(block_length(above - value * below), -(-num // _MAX_BLOCKS))
    num_blocks = -(-num // length)
    starts = np.random.default_rng(seed).integers(num, size=(_NUM_REPLICATES, num_blocks))
    tops, bottoms = (_block_sums(series, length)[starts].sum(axis=1) for series in (above, below))
    low, high = np.percentile(tops / bottoms, [2.5, 97.5])
    return Interval(value, min(value, float(low)), max(value, float(high)))


def block_rows(num: int, length: int, shape: tuple[int, int], *, seed: int = 0) -> NDArray[np.int64]:
    """Return row indices below `num` for each replicate, in circular blocks of `length`; `shape` is (replicates, rows)."""
    num_replicates, num_rows = shape
    num_blocks = -(-num_rows // length)
    starts = np.random.default_rng(seed).integers(num, size=(num_replicates, num_blocks, 1))
    rows: NDArray[np.int64] = ((starts + np.arange(length)) % num).reshape(num_replicates, -1)[:, :num_rows]
    return rows


def block_length(series: NDArray[np.float64]) -> int:
    """Return the number of steps per block, from 1 to a third of the series, by the rule for the circular bootstrap."""
    num = len(series)
    longest = max(1, num // 3)
    centred = series - series.mean()
    if num < 8 or not centred.any():
        return 1
    num_lags = min(num - 1, math.ceil(math.sqrt(num)) * 2 + 10)
    size = 1 << (2 * num - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), size)[: num_lags + 1] / num
    span = _last_telling_lag(covariance / covariance[0], num)
    lags = np.arange(1, min(2 * span, num_lags) + 1)
    # A trapezoid: 1 up to the middle, then falling to 0, so that reliable lags have full weight.
    weights = np.clip(2 * (1 - lags / (2 * span + 1e-12)), 0, 1)
    weighted = weights * covariance[lags]
    long_run = covariance[0] + 2 * weighted.sum()
    slope = 2 * (weighted * lags).sum()
    if long_run <= 0 or slope == 0:  # a self-correcting series: single steps give, if anything, too wide an interval
        return min(longest, max(1, span))
    length = float(1.5 * (slope / long_run) ** 2 * num) ** (1 / 3)
    return int(max(1, min(longest, math.ceil(length))))


def _last_telling_lag(correlation: NDArray[np.float64], num: int) -> int:
    """Return the lag after which a run of correlations is within chance."""
    bound = 2 * math.sqrt(math.log10(num) / num)
    needed = max(5, math.ceil(math.sqrt(math.log10(num))))
    quiet = np.abs(correlation[1:]) < bound
    for lag in range(len(quiet) - needed + 1):
        if quiet[lag : lag + needed].all():
            return max(1, lag)
    return max(1, len(quiet) // 2)


def _block_sums(series: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return the sum of the block that starts at each position of the circle."""
    total = np.concatenate([[0.0], np.cumsum(np.concatenate([series, series[: length - 1]]))])
    sums: NDArray[np.float64] = total[length : length + len(series)] - total[: len(series)]
    return sums
