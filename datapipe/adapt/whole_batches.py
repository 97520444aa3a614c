"""Which loaders' batches are gathered whole, from arrays, tensors or columns of numbers, in the training process."""

from __future__ import annotations

from torch.utils.data import IterableDataset

from datapipe.adapt.array_rows import ArrayRows, array_rows_of
from datapipe.adapt.loaders import TorchDataLoader, batch_size_of, collation_of
from datapipe.adapt.number_rows import NumberRows, rows_of


def gathered_rows(loader: TorchDataLoader, *, tries: bool = True) -> NumberRows | ArrayRows | None:
    """Return the rows of a loader's Dataset, each batch of which comes finished; None if its own code must make them.

    `tries`: whether the Dataset's own `__getitem__` may be read and called, to find out what it takes from which arrays.
    """
    collation = collation_of(loader)
    if collation is None or loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return None
    rows = rows_of(loader.dataset, collation)
    prepares = loader.worker_init_fn is not None and loader.num_workers > 0  # the copies of the Dataset in workers
    if rows is not None or not tries or prepares:
        return rows
    size = batch_size_of(loader) or 1
    return array_rows_of(loader.dataset, loader.collate_fn, batch_size=size, num_workers=loader.num_workers)
