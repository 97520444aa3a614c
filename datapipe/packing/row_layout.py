"""The layout of a batch's rows: runs of documents and of padding, and the positions, boundaries and masks that models take."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import OptionError
from datapipe.order.draws import Ints


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """The runs of a batch's rows laid end to end: documents, or parts of them, and padding between."""

    starts: Ints  # (r,) where each run begins
    is_padding: NDArray[np.bool_]  # (r,)
    num_rows: int
    width: int

    @classmethod
    def of(cls, begin: Ints, num: Ints, *, num_rows: int, width: int) -> RowLayout:
        """Return the layout of documents that begin there and have so many tokens; a row ends where it ends."""
        starts = np.unique(np.concatenate([begin, begin + num, np.arange(num_rows) * width]))
        starts = starts[: np.searchsorted(starts, num_rows * width)]
        is_padding = np.ones(len(starts), np.bool_)
        is_padding[np.searchsorted(starts, begin)] = False
        return cls(starts, is_padding, num_rows, width)

    @property
    def num_tokens(self) -> int:
        """The tokens of all rows, those of padding among them."""
        return self.num_rows * self.width

    @property
    def lengths(self) -> Ints:
        """The (r,) tokens of each run."""
        return np.diff(self.starts, append=self.num_tokens)

    def padding(self) -> list[tuple[int, int]]:
        """Return where padding begins and ends."""
        padding = self.is_padding
        return list(zip(self.starts[padding].tolist(), (self.starts + self.lengths)[padding].tolist(), strict=True))

    def position_ids(self) -> Ints:
        """Return (n,) the place of each token in its run."""
        return counting(self.num_tokens) - np.repeat(self.starts, self.lengths)

    def document_ids(self, *, over_all: bool) -> NDArray[np.int32]:
        """Return (n,) the number of each token's run in its row, or `over_all` of them; -1 in padding."""
        number = counting(len(self.starts))
        if not over_all:
            rows = self.starts // self.width
            number = number - np.searchsorted(rows, rows)
        numbers = number.astype(np.int32)
        numbers[self.is_padding] = -1
        return np.repeat(numbers, self.lengths)

    def attention_mask(self) -> Ints:
        """Return (n,) 1 for tokens of documents, 0 for padding."""
        return np.repeat((~self.is_padding).astype(np.int64), self.lengths)

    def boundaries(self, num: int | None) -> NDArray[np.int32]:
        """Return int32 where runs begin, and the end. `num`: how many to return, the end repeated; None: as many as there are.

        Raises OptionError for fewer than there are.
        """
        found = np.append(self.starts, self.num_tokens).astype(np.int32)
        if num is None:
            return found
        if len(found) > num:
            raise OptionError(f"num_seqlens is {num}, and a batch has {len(found)} boundaries; pass more, or max_documents")
        return np.append(found, np.full(num - len(found), self.num_tokens, np.int32))


@functools.lru_cache(maxsize=4)
def counting(num: int) -> Ints:
    """Return the numbers from 0 on, kept."""
    found = np.arange(num)
    found.setflags(write=False)
    return found
