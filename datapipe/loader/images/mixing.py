"""Mix several datasets by weight, and draw samples by weight."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.containers import open_index
from datapipe.core.checks import whole_number
from datapipe.core.errors import OptionError
from datapipe.core.printable import printable
from datapipe.index.concat import concatenated
from datapipe.loader.images.batch_fields import BatchFields
from datapipe.loader.images.dataset import Dataset, Mixture
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder
from datapipe.order.sampling import MixedOrder, WeightedOrder, checked_weights, own_seed, shares


def mix(
    datasets: Sequence[str | os.PathLike[str] | Dataset],
    weights: Sequence[float] | None = None,
    *,
    num_samples: int | None = None,
) -> Dataset:
    """Return one dataset of several, each of which makes up a fixed share of every epoch.

    `datasets`: as for a loader. `weights`: one for each, to any scale; None: each by its size. `num_samples`: length of
    an epoch; None: the sum of their sizes. Shares hold in every batch, to within a sample or two. All samples of a dataset come
    before any of them comes again, also across epochs; a sample that comes again is augmented again.
    Batches have the fields that all datasets have; labels are those of the datasets, which are not renumbered.

    Raises OptionError for invalid weights, an epoch of no samples, and datasets without samples or a common field.
    """
    if isinstance(datasets, (str, os.PathLike)) or not len(datasets):
        raise OptionError(f"mix({datasets!r}): pass a list of at least one dataset")
    opened = [_opened(dataset) for dataset in datasets]
    for dataset in opened:
        if dataset.mixture is not None:
            raise OptionError("mix() on a dataset of mix() or repeat(): pass all datasets to one mix()")
    lengths = tuple(len(dataset) for dataset in opened)
    given: Sequence[float] = lengths if weights is None else checked_weights(weights, num=len(opened), what="dataset").tolist()
    length = sum(lengths) if num_samples is None else whole_number(num_samples, "num_samples", least=1)
    counts = shares(given, length)
    for dataset, count in zip(opened, counts, strict=True):
        if count and not len(dataset):
            raise OptionError(f"{dataset.index.where}: has no samples, and its weight asks for {count} of an epoch; leave it out")
    _warn_of_classes(opened)
    return Dataset(concatenated([dataset.index for dataset in opened]), _common_fields(opened), Mixture(lengths, counts))


def mixed_order(mixture: Mixture, *, seed: int, shuffle: object) -> MixedOrder:
    """Return the order of a mixture. A mixture of one dataset is shuffled as that dataset alone."""
    orders: list[Order] = [
        ShuffledOrder(length, own_seed(seed, place) if place else seed) if shuffle else SequentialOrder(length)
        for place, length in enumerate(mixture.lengths)
    ]
    return MixedOrder(orders, mixture.counts, bool(shuffle))


@dataclass
class WeightedSampler:
    """A loader's `sampler` that draws samples with replacement, each as often as its weight says.

    The arithmetic form of torch's `WeightedRandomSampler`: every rank draws its part of one epoch, and a saved state
    resumes on any number of ranks. `weights`: (n,) for each sample of the dataset in its order. `num_samples`: length of an
    epoch over all ranks; None: the number of weights.
    """

    weights: NDArray[np.float64] | Sequence[float]
    num_samples: int | None = None

    def __post_init__(self) -> None:
        self.update_weights(self.weights)
        if self.num_samples is not None:
            self.num_samples = whole_number(self.num_samples, "num_samples", least=1)

    def update_weights(self, weights: NDArray[np.float64] | Sequence[float]) -> None:
        """Draw by these weights from the next pass on. Raises OptionError unless there is one for each sample.

        States refer to the weights in use: a state resumes in a loader that has the same.
        """
        num = len(self.weights) if hasattr(self, "_cumulated") else np.size(np.asarray(weights, object))
        self.weights = checked_weights(weights, num=num, what="sample")
        self._cumulated = np.cumsum(self.weights)

    def __len__(self) -> int:
        return len(self.weights) if self.num_samples is None else self.num_samples

    def order(self, seed: int) -> WeightedOrder:
        """Return the order of a pass by the current weights."""
        return WeightedOrder(self._cumulated, len(self), seed)

    def check_fits(self, dataset: Dataset) -> None:
        """Raise OptionError unless there is a weight for each sample, and no mixture that decides how often it comes."""
        if dataset.mixture is not None:
            raise OptionError("a WeightedSampler and a dataset of mix() or repeat() both say how often samples come; use one")
        if len(self.weights) != len(dataset):
            found = f"{dataset.index.where}: has {len(dataset)} samples, and the sampler {len(self.weights)} weights"
            raise OptionError(f"{found}; pass one weight for each sample")


def _opened(dataset: object) -> Dataset:
    if isinstance(dataset, Dataset):
        return dataset
    if not isinstance(dataset, (str, os.PathLike)):
        raise OptionError(f"mix() of a {type(dataset).__qualname__}; pass paths, or datasets such as `loader.dataset`")
    return Dataset(open_index(dataset))


def _warn_of_classes(datasets: Sequence[Dataset]) -> None:
    """Warn if the datasets name different classes: then one label means different things."""
    named = {tuple(dataset.index.manifest.classes): dataset for dataset in datasets if dataset.index.manifest.classes}
    if len(named) > 1:
        listed = printable("; ".join(f"{dataset.index.where}: {', '.join(classes[:5])}" for classes, dataset in named.items()))
        warnings.warn(
            f"mix() of datasets that name different classes ({listed:.400}): each keeps its own labels, so one label means "
            "several things; convert them with the same classes, or do not use the labels",
            stacklevel=3,
        )


def _common_fields(datasets: Sequence[Dataset]) -> BatchFields | None:
    """Return the fields with which the datasets were opened, if they are the same."""
    first = datasets[0].fields
    return first if all(dataset.fields == first for dataset in datasets) else None
