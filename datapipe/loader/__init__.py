"""The loaders: torch's contract over an index, an order and a backend."""

from __future__ import annotations

from datapipe.loader.dataset import Dataset
from datapipe.loader.explanation import explain
from datapipe.loader.facade import DataLoader
from datapipe.loader.iteration import BatchIterator
from datapipe.loader.mixing import WeightedSampler, mix
from datapipe.loader.policy import BadSample
from datapipe.loader.table_loader import TableLoader

__all__ = ["BadSample", "BatchIterator", "DataLoader", "Dataset", "TableLoader", "WeightedSampler", "explain", "mix"]
