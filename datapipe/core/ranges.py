"""Ranges of whole numbers: laid end to end, and some numbers of one, spread over it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ranges(starts: NDArray[np.int64] | int, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (t,) the numbers of ranges that begin at `starts`, range by range. `lengths`: (n,) how many numbers each has."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def spread(num: int, most: int) -> list[int]:
    """Return at most `most` of the numbers below `num`, ascending, as far apart as can be; none if `num` is 0."""
    found: list[int] = np.unique(np.linspace(0, num - 1, most).astype(np.int64)).tolist()
    return found if num else []
