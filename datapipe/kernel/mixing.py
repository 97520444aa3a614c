"""Mix several sets of samples: how often those of each come, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from datapipe.core.checks import whole_number
from datapipe.errors import OptionError
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder
from datapipe.order.sampling import MixedOrder, checked_weights, own_seed, shares


class Samples(Protocol):
    """Samples that are mixed with others."""

    @property
    def where(self) -> str:
        """Their name in messages."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Mixture:
    """How often the samples of several datasets, concatenated in one index, come in an epoch."""

    lengths: tuple[int, ...]  # samples of each dataset
    counts: tuple[int, ...]  # samples of each in an epoch

    @classmethod
    def of(cls, indexes: Sequence[Samples], weights: Sequence[float] | None, num_samples: int | None) -> Mixture:
        """Return the mixture by these weights. Raises OptionError for weights that fit no epoch, or datasets without samples."""
        lengths = tuple(len(index) for index in indexes)
        given: Sequence[float] = (
            lengths if weights is None else checked_weights(weights, num=len(indexes), what="dataset").tolist()
        )
        length = sum(lengths) if num_samples is None else whole_number(num_samples, "num_samples", least=1)
        counts = tuple(shares(given, length))
        for index, count in zip(indexes, counts, strict=True):
            if count and not len(index):
                raise OptionError(f"{index.where}: has no samples, and its weight asks for {count} of an epoch; leave it out")
        return cls(lengths, counts)


def mixed_order(mixture: Mixture, *, seed: int, shuffle: object) -> MixedOrder:
    """Return the order of a mixture. A mixture of one dataset is shuffled as that dataset alone."""
    orders: list[Order] = [
        ShuffledOrder(length, own_seed(seed, place) if place else seed) if shuffle else SequentialOrder(length)
        for place, length in enumerate(mixture.lengths)
    ]
    return MixedOrder(orders, mixture.counts, bool(shuffle))
