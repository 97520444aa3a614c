"""Datasets: samples one at a time, parts of them, and several datasets mixed."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.containers import open_index
from datapipe.core.checks import positions_of, real_number, whole_number
from datapipe.core.errors import DecodeError, IntegrityError, OptionError
from datapipe.core.printable import counted, listed, printable
from datapipe.datasets import Original
from datapipe.fetch.files import open_files
from datapipe.index.concat import AnyIndex, concatenated, select
from datapipe.index.stored_order import StoredOrder, stored_order
from datapipe.kernel.bad_samples import located
from datapipe.kinds.images.fields import LABEL, BatchFields, FurtherFields
from datapipe.order.draws import key64
from datapipe.order.sample_order import Order, Permutation, SequentialOrder, ShuffledOrder
from datapipe.order.sampling import MixedOrder, checked_weights, own_seed, shares


@dataclass(frozen=True, slots=True)
class Mixture:
    """How often the samples of several datasets, concatenated in one index, come in an epoch."""

    lengths: tuple[int, ...]  # samples of each dataset
    counts: tuple[int, ...]  # samples of each in an epoch


class Dataset:
    """A map-style dataset, as torch's: `len(d)`, `d[i]`, and the attributes of torchvision's folders. Thread-safe.

    `d[i]` is the decoded, untransformed sample, as a tuple of the fields that a loader's batches have: the image a
    (3, h, w) uint8 tensor, the label an int, other kinds as in `docs/loader.md`.
    """

    def __init__(
        self,
        index: AnyIndex,
        fields: BatchFields | None = None,
        mixture: Mixture | None = None,
        *,
        original: Original | None = None,
    ) -> None:
        if isinstance(index, (str, os.PathLike)):
            raise OptionError(f"Dataset takes an index, not a path: DataLoader({os.fspath(index)!r}, ...).dataset opens one")
        self.index = index
        self.mixture = mixture
        self.original = original  # the torch Dataset from which it was made
        self.fields = BatchFields.of(index, None) if fields is None else fields
        self._files = open_files(index)
        self._stored = FurtherFields(self.fields.stored, index=index, files=self._files, geometry=None)
        self._targets: list[int] | None = None
        self._stored_order: StoredOrder | None = None

    def __reduce__(self) -> tuple[type[Dataset], tuple[AnyIndex, BatchFields, Mixture | None]]:
        return Dataset, (self.index, self.fields, self.mixture)

    def __repr__(self) -> str:
        return printable(f"<datapipe.Dataset: {self.shown}>")

    @property
    def shown(self) -> str:
        """The samples and where they lie, in words."""
        container = self.index.manifest.container
        form = "loose files" if container == "folder" else container
        text = f"{counted(len(self), 'sample')} ({listed(self.fields.names)}) in {form} at {self.index.where}"
        return text if self.mixture is None else f"{sum(self.mixture.counts):,} an epoch of {text}"

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> tuple[Any, ...]:
        """Return the sample at a position. Raises IndexError, DecodeError or IntegrityError."""
        number = operator.index(position)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of a dataset of {len(self)}")
        ids = self.index.ids(np.array([number % len(self)], np.int64))
        try:
            values = self._stored.load_stored(self._stored.look_up(ids))
        except (DecodeError, IntegrityError) as exc:
            raise located(exc, self.index.describe(int(ids[0]))) from exc
        if self.fields.has_label:
            values[LABEL] = int(self.index.look_up(ids, self.fields.looked_up(self.index)).labels[0])
        return tuple(values[name] for name in self.fields.names)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[position] for position in range(len(self)))

    @property
    def classes(self) -> list[str]:
        """Class names by label. Raises AttributeError if the data names none."""
        names = self.index.manifest.classes
        if names is None:
            raise AttributeError(f"{self.index.where}: no class names, or they differ between its parts")
        return list(names)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label by class name. Raises AttributeError if the data names none."""
        labels = self.index.manifest.class_to_idx
        if labels is None:
            raise AttributeError(f"{self.index.where}: no class names, or they differ between its parts")
        return dict(labels)

    @property
    def targets(self) -> list[int]:
        """The label of every sample, in order; read from the index once."""
        if self._targets is None:
            self._targets = self.index.labels().tolist()
        return self._targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """The path and the label of every sample, in order. Raises AttributeError if samples are not files of their own."""
        positions = np.arange(len(self), dtype=np.int64)
        entries = self.index.look_up(self.index.ids(positions), self.fields.looked_up(self.index))
        if not entries.extents.one_file_each:
            raise AttributeError(f"{self.index.where}: its samples lie in shards and are not files of their own")
        return list(zip(entries.extents.paths, entries.labels.tolist(), strict=True))

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same as `samples`: torchvision's `ImageFolder` has both names."""
        return self.samples

    @property
    def root(self) -> str:
        """The path or URL of the data."""
        return self.index.where

    @property
    def transform(self) -> object:
        """The transform of the torch Dataset from which this was made; None if it was made from none. Read-only.

        `d[i]` is untransformed, and the loader has transforms of its own.
        """
        return None if self.original is None else self.original.transform

    @transform.setter
    def transform(self, value: object) -> None:
        raise OptionError("a dataset's transform is fixed once a loader has it; make a loader with transform=")

    def stored_order(self) -> StoredOrder:
        """Return what a shuffle in windows of shards goes by. Raises OptionError where there is no such order."""
        if self._stored_order is None:
            if self.mixture is not None:
                raise OptionError(
                    "shuffle='windows' of what mix() or repeat() made: its datasets are shuffled in full; pass True"
                )
            self._stored_order = stored_order(self.index, [spec.name for spec in self.fields.stored])
        if self._stored_order is None:
            raise OptionError(f"{self.index.where}: shuffle='windows' goes by shards, and these are single files; pass True")
        return self._stored_order

    def select(self, indices: Iterable[int]) -> Dataset:
        """Return a dataset of the samples at these positions, in this order. They keep their ids, and so their random crops."""
        if self.mixture is not None:
            raise OptionError("select() on a dataset of mix() or repeat(): select from each dataset first, then mix or repeat")
        return Dataset(select(self.index, positions_of(indices, "select()")), self.fields)

    def take(self, num_samples: int) -> Dataset:
        """Return the first `num_samples` samples, or all if there are fewer."""
        return self.select(range(min(whole_number(num_samples, "num_samples", least=0), len(self))))

    def repeat(self, times: float) -> Dataset:
        """Return the same samples, each of which comes `times` times in an epoch, such as 3 or 0.1.

        All come once before any comes again, also across epochs; a sample that comes again in an epoch is augmented again.
        """
        count = round(len(self) * real_number(times, "times"))
        if self.mixture is not None or count < 1:
            problem = "of what mix() or repeat() made" if self.mixture is not None else "makes an epoch of no samples"
            raise OptionError(f"repeat({times}) {problem}; pass num_samples to mix()")
        return Dataset(self.index, self.fields, Mixture((len(self),), (count,)))

    def folds(self, num_folds: int, *, seed: int = 0) -> list[tuple[Dataset, Dataset]]:
        """Return `num_folds` pairs of training and validation samples, for cross-validation.

        Each sample is in the validation part of one pair; `seed` decides which. Parts keep the dataset's order.
        """
        seed = whole_number(seed, "seed")
        if not 2 <= whole_number(num_folds, "num_folds") <= len(self):
            raise OptionError(f"folds({num_folds}) of {len(self)} samples; pass at least 2 and at most the number of samples")
        fold_of = Permutation(len(self), int(key64(seed, num_folds)))(np.arange(len(self), dtype=np.int64)) % num_folds
        return [
            (self.select(np.flatnonzero(fold_of != fold)), self.select(np.flatnonzero(fold_of == fold)))
            for fold in range(num_folds)
        ]

    def with_fields(self, fields: BatchFields) -> Dataset:
        """Return the same samples, with these fields."""
        return Dataset(self.index, fields, self.mixture, original=self.original)


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
