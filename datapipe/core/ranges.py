"""Ranges of whole numbers, laid end to end: which rows of one array belong to some of those of another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ranges(starts: NDArray[np.int64] | int, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (t,) the numbers of ranges that begin at `starts`, range by range. `lengths`: (n,) how many numbers each has."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
