"""Number the positions at which a selection holds one sample several times, so that each is augmented differently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.index.concat import AnyIndex, ConcatIndex, Selection

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """The number of each position among those of its sample."""

    number: Ints  # (n,) earlier positions of the same sample
    most: int  # largest number of positions of one sample

    @staticmethod
    def of(index: AnyIndex) -> Repeats | None:
        """Return the repeats of an index; None if no sample has several positions."""
        parts = index.parts if isinstance(index, ConcatIndex) else (index,)
        if not any(isinstance(part, Selection) for part in parts):
            return None
        ids = index.ids(np.arange(len(index), dtype=np.int64))
        if (np.diff(ids) > 0).all():
            return None
        order = np.argsort(ids, kind="stable")
        begins = np.flatnonzero(np.append(True, np.diff(ids[order]) > 0))
        if len(begins) == len(ids):
            return None
        sizes = np.diff(np.append(begins, len(ids)))
        number = np.empty(len(ids), np.int64)
        number[order] = np.arange(len(ids), dtype=np.int64) - np.repeat(begins, sizes)
        return Repeats(number, int(sizes.max()))

    def occurrences(self, positions: Ints, before: Ints | None) -> Ints:
        """Return (m,) a number unique among the occurrences of a sample; `before`: how often each position came already."""
        number = self.number[positions]
        return number if before is None else number + self.most * before
