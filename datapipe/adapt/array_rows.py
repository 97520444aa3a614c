"""Gather whole batches for a Dataset whose `__getitem__` only takes parts of arrays, such as windows of token ids."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray

from datapipe.adapt.loaders import length_of
from datapipe.adapt.number_rows import inside_of_subsets
from datapipe.core.readahead import announce
from datapipe.deferral.requests import BatchRequest
from datapipe.formulas.evaluation import RowFormula, formula_of

CHECKED = 64  # one batch in so many has a sample compared with what `__getitem__` gives
_TRIED = 16  # samples that are compared before anything is taken over
_MOST_TRIED_NBYTES = 1 << 24
_ROUNDS = 3
MOST_NBYTES_WITH_WORKERS = 1 << 23  # of a batch: what is larger may take longer to gather than to receive from a worker


@dataclass(frozen=True, slots=True)
class Trial:
    """The CPU seconds that a batch of so many samples took, gathered and by the Dataset's code."""

    num_samples: int
    gathered: float
    plain: float

    @property
    def pays(self) -> bool:
        """Whether gathering costs less."""
        return self.gathered < self.plain


class ArrayRows(torch.utils.data.Dataset[Any]):
    """The samples of `dataset`; `__getitems__` returns a finished batch, as `collate_fn` makes it of them.

    A batch is made by the dataset's own code if some of its samples do not lie in the arrays as a whole, as at their ends, or
    if the dataset has changed so that its code is no longer clear. Once a sample that is compared differs, every batch is.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any], trial: Trial | None = None) -> None:
        self.dataset = dataset
        self.trial = trial
        self.num_compared = self.num_batches = self.num_plain = 0
        self.difference = ""  # which sample differed
        self._collate = collate_fn
        # What -1 means is up to the dataset. A `Subset` that is not taken apart has no formula.
        self._inner, self._places = inside_of_subsets(dataset, counts_back=False) or (dataset, None)
        self._formula: RowFormula | None = None
        self._is_new = False  # whether no sample has been compared since the code was read

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayRows, (self.dataset, self._collate, self.trial)  # views of arrays would be pickled as copies

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, keys: Any) -> Any:
        """Return the batch of the samples at `keys`. Raises what the dataset raises."""
        listed: Any = BatchRequest.of(keys).keys
        batch = None if self.difference else self.gathered(listed)
        self.num_batches += 1
        if batch is not None and (self._is_new or self.num_batches % CHECKED == 0):
            self._is_new = False
            self._compare(batch, listed)
        if batch is None or self.difference:
            self.num_plain += 1
            return self.plain(listed)
        return batch

    def gathered(self, keys: Any) -> Any:
        """Return the batch of the samples at `keys` from the arrays; None if only the dataset's code can make it.

        `keys`: int, or an array (n,) int64.
        """
        found = self._found(keys)
        return None if found is None else found[0].take(found[1])

    def plain(self, keys: Any) -> Any:
        """Return the batch as torch makes it."""
        return self._collate([self.dataset[key] for key in (keys.tolist() if isinstance(keys, np.ndarray) else keys)])

    def announce(self, keys: Any) -> None:
        """Have the operating system read what a batch that comes later needs of mapped files."""
        found = self._found(BatchRequest.of(keys).keys)
        if found is not None:
            announce(span for leaf in found[0].apart for span in leaf.spans(found[1]))

    @property
    def formula(self) -> RowFormula | None:
        """The formula of the samples at present; None if none is certain."""
        if self._formula is None or not self._formula.is_unchanged(self._inner):
            self._formula, self._is_new = formula_of(self._inner), True
        return self._formula

    @property
    def source(self) -> str:
        """The name of the code that was read."""
        return f"{type(self._inner).__qualname__}.__getitem__"

    def _found(self, keys: Any) -> tuple[RowFormula, NDArray[np.int64]] | None:
        """Return the formula and the indices (n,) of a batch; None for keys that it does not cover, or that are not int."""
        formula = self.formula
        if formula is None:
            return None
        if not isinstance(keys, np.ndarray):
            if not isinstance(keys, list | tuple) or not all(type(key) is int for key in keys):
                return None
            try:
                keys = np.array(keys, np.int64)
            except OverflowError:
                return None
        if not len(keys):
            return None
        if self._places is not None:
            if keys.min() < 0 or keys.max() >= len(self._places):
                return None
            keys = self._places[keys]
        return (formula, keys) if formula.indices.start <= keys.min() and keys.max() < formula.indices.stop else None

    def _compare(self, batch: Any, keys: Any) -> None:
        """Compare one sample of a batch with what the dataset gives."""
        place = self.num_batches // CHECKED % len(keys)
        self.num_compared += 1
        if not is_same(_row(batch, place), self.plain([keys[place]])):
            self.difference = f"sample {keys[place]}"
            warnings.warn(
                f"from_torch: sample {keys[place]} as gathered differs from what {self.source} returns; all batches are made by "
                "the Dataset's own code from here on",
                stacklevel=2,
            )


def array_rows_of(dataset: Any, collate_fn: Callable[[list[Any]], Any], *, batch_size: int, num_workers: int) -> ArrayRows | None:
    """Return the rows of a Dataset, or of a `Subset` of one, whose code only takes parts of arrays; None for all others.

    Some of its samples, the first and the last among them, are made both ways. None if they differ, or if gathering does not pay.
    """
    rows, num = ArrayRows(dataset, collate_fn), length_of(dataset) or 0
    formula = rows.formula if num and not hasattr(rows._inner, "__getitems__") else None
    if formula is None or (num_workers and batch_size * formula.nbytes > MOST_NBYTES_WITH_WORKERS):
        return None
    drawn = np.random.default_rng(num).integers(0, num, _TRIED - 2).tolist()  # leaves numpy's global state alone
    try:
        keys = [key for key in dict.fromkeys([0, num - 1, *drawn]) if rows.gathered([key]) is not None]
        if not keys or not all(is_same(rows.gathered([key]), rows.plain([key])) for key in keys):
            return None
        most = max(1, min(batch_size, _MOST_TRIED_NBYTES // max(1, formula.nbytes)))
        keys = (keys * -(-most // len(keys)))[:most]
        if not is_same(rows.gathered(keys), rows.plain(keys)):
            return None
        plain, gathered = (_cheapest(way, keys) for way in (rows.plain, rows.gathered))
    except Exception:  # whatever the user's code raises, it raises when its batch is asked for
        return None
    trial = Trial(len(keys), gathered, plain)
    return ArrayRows(dataset, collate_fn, trial) if trial.pays else None


def is_same(one: Any, other: Any) -> bool:
    """Return whether two batches have the same containers, and tensors of the same bytes, shape, dtype, device and strides."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        facts = ((made.shape, made.dtype, made.device, made.stride(), made.requires_grad) for made in (one, other))
        return next(facts) == next(facts) and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[name], other[name]) for name in one)
    return isinstance(one, list) and len(one) == len(other) and all(map(is_same, one, other))


def _row(batch: Any, place: int) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[place : place + 1]
    if isinstance(batch, dict):
        return {name: _row(values, place) for name, values in batch.items()}
    return [_row(values, place) for values in batch]


def _cheapest(way: Callable[[Any], Any], keys: list[int]) -> float:
    """Return the CPU seconds of a batch made in this way, the least of some rounds."""
    seconds = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        way(keys)
        seconds.append(time.thread_time() - began)
    return min(seconds)
