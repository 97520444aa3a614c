"""Random numbers whose logarithm is uniform, the same on every CPU: aspect ratios of boxes.

The exponential functions of numpy and of the C library differ in the last digit between kinds of CPU, and a box whose side
lies close to half a pixel would then be another one. Here they come from a table that `decimal` computes with correct rounding,
and reading it takes no longer than `numpy.exp`.
"""

from __future__ import annotations

import functools
from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

_COARSE = _FINE = 256
_NUM_STEPS = _COARSE * _FINE  # 65,536: between two aspect ratios, the side of a 1,000 pixel box changes by 0.005 pixels


def log_uniform(uniform: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Return numbers between `low` and `high`, both greater than 0, for uniform ones in [0, 1)."""
    return _table(low, high).take((uniform * _NUM_STEPS).astype(np.int64))


@functools.lru_cache(maxsize=64)
def _table(low: float, high: float) -> NDArray[np.float64]:
    """Return the middle of every step, ascending."""
    with localcontext(Context(prec=28)):
        start = Decimal(low).ln()
        step = (Decimal(high).ln() - start) / _NUM_STEPS
        coarse = [float((start + step * _FINE * number).exp()) for number in range(_COARSE)]
        fine = [float((step * (number + Decimal("0.5"))).exp()) for number in range(_FINE)]
    table = np.outer(coarse, fine).ravel()
    table.flags.writeable = False  # shared by all threads
    return table
