"""Mix several sets of samples: how often those of each come, and in which order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from datapipe.core.checks import whole_number
from datapipe.core.printable import printable
from datapipe.errors import OptionError
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder
from datapipe.order.sampling import MAX_MIXED, MixedOrder, checked_weights, own_seed, shares


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
        length = whole_number(sum(lengths) if num_samples is None else num_samples, "num_samples", most=MAX_MIXED)
        if num_samples is not None and length < 1:
            raise OptionError(f"num_samples is {length}; it must be at least 1")
        counts = tuple(shares(given, length))
        for index, count in zip(indexes, counts, strict=True):
            if count and not len(index):
                raise OptionError(f"{index.where}: has no samples, and its weight asks for {count} of an epoch; leave it out")
        return cls(lengths, counts)

    def described(self) -> str:
        """Return the samples of an epoch and the shares of datasets, for people."""
        num = sum(self.counts)
        shares = ", ".join(f"{count / num:.1%}" for count in self.counts)
        return f"{num} an epoch" + (f" in shares of {shares}" if len(self.counts) > 1 else "")


def refuse_unlike(parts: Sequence[Any], differing: Callable[[Any], Sequence[str]]) -> None:
    """Raise OptionError for data objects that are mixtures already, or that differ from the first one.

    `differing`: returns the names of the settings in which one does.
    """
    for part in parts:
        if part.mixture is not None:
            raise OptionError("mix() on a dataset of mix(): pass all datasets to one mix()")
        if names := differing(part):
            raise OptionError(f"mix() of {type(part).__qualname__} that differ in {', '.join(names)}; give all of them the same")


def mixed_order(mixture: Mixture, *, seed: int, shuffle: object) -> MixedOrder:
    """Return the order of a mixture. A mixture of one dataset is shuffled as that dataset alone."""
    orders: list[Order] = [
        ShuffledOrder(length, own_seed(seed, place)) if shuffle else SequentialOrder(length)
        for place, length in enumerate(mixture.lengths)
    ]
    return MixedOrder(orders, mixture.counts, bool(shuffle))


def warn_of_classes(named: Sequence[tuple[str, Sequence[str] | None]]) -> None:
    """Warn if datasets that are mixed name different classes: then one label means different things.

    `named`: where each dataset lies, and its classes by label; None: it names none.
    """
    classes = {tuple(names): where for where, names in named if names}
    if len(classes) > 1:
        listed = printable("; ".join(f"{where}: {', '.join(names[:5])}" for names, where in classes.items()))
        warnings.warn(
            f"mix() of datasets that name different classes ({listed:.400}): each keeps its own labels, so one label means "
            "several things; convert them with the same classes, or do not use the labels",
            stacklevel=4,  # at the `mix()`
        )
