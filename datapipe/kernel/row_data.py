"""Data of documents that are packed into rows: what those of tokens and of conversations have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence, Sized
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from datapipe.index.tokens import TokenIndex
from datapipe.kernel.mixing import Mixture, mixed_order
from datapipe.kernel.options import Shuffle
from datapipe.kernel.reopening import ReopenedData
from datapipe.order.by_length import BalancedSteps, LikeLengths
from datapipe.order.draws import Ints
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder
from datapipe.packing.row_settings import RowSettings


class RowData(ReopenedData):
    """Rows of documents, opened by an `opening` that a copy in another process opens again; or several such, mixed."""

    _parts: tuple[Any, ...] = ()  # that are mixed
    _opening: Any
    settings: Any
    _is_padded: bool  # whether the settings, and not the tokenizer, say what fills rows

    @property
    @abstractmethod
    def index(self) -> TokenIndex:
        """The documents as they are stored."""

    @property
    @abstractmethod
    def _rows(self) -> Sized:
        """The rows, each once."""

    @property
    def where(self) -> str:
        """The path or URL of the documents."""
        return self.index.where

    @property
    def vocab_size(self) -> int | None:
        """The number of ids that the tokenizer has; None if the files do not say, and it was not passed."""
        return self.index.facts.vocab_size

    def __len__(self) -> int:
        """Return the rows of an epoch, over all ranks; with `max_tokens` the batches."""
        return len(self._rows) if self.mixture is None else sum(self.mixture.counts)

    def _making(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.mixture is not None:
            return type(self)._join, (self._parts, self.mixture)
        return type(self)._reopen, (self._opening, self.settings, self._is_padded)

    @abstractmethod
    def _set(self, opening: Any, settings: Any, *, is_padded: bool) -> None:
        """Open the documents and plan their rows."""

    @abstractmethod
    def _set_joined(self, parts: Sequence[Any], first_shards: list[int]) -> None:
        """Take the documents and rows of several, whose shards are counted from these numbers on."""

    @classmethod
    def _reopen(cls, opening: Any, settings: Any, is_padded: bool) -> Self:
        data = cls.__new__(cls)
        data._set(opening, settings, is_padded=is_padded)
        return data

    @classmethod
    def _join(cls, parts: Sequence[Self], mixture: Mixture) -> Self:
        data = cls.__new__(cls)
        data._opening, data._is_padded, data.settings = parts[0]._opening, True, parts[0].settings
        data._parts, data.mixture = tuple(parts), mixture
        data._set_joined(parts, [sum(part.index.num_shards for part in parts[:number]) for number in range(len(parts))])
        return data


def order_of_rows(
    num: int,
    mixture: Mixture | None,
    settings: RowSettings,
    *,
    seed: int,
    shuffle: Shuffle,
    global_batch: int,
    lengths: Callable[[Ints], Ints] | None,
    cost: Callable[[int, Ints], NDArray[np.float64]],
) -> Order:
    """Return the order of `num` rows, dealt alike to ranks if the settings say so.

    `lengths`: the tokens of rows, if those of a step are to be about as long; None: they need not be. `cost`: the work of rows of
    an epoch.
    """
    order: Order = ShuffledOrder(num, seed) if shuffle else SequentialOrder(num)
    if mixture is not None:
        order = mixed_order(mixture, seed=seed, shuffle=shuffle)
    elif shuffle and lengths is not None:
        order = LikeLengths(num, seed, global_batch, lengths)
    return BalancedSteps(order, global_batch, settings.accumulate, cost) if settings.balance else order
