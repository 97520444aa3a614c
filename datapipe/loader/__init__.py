"""The loaders: torch's contract over an index, an order and a backend."""

from __future__ import annotations

from datapipe.loader.explanation import explain
from datapipe.loader.images.dataset import Dataset, mix
from datapipe.loader.images.facade import DataLoader
from datapipe.loader.images.samplers import WeightedSampler
from datapipe.loader.iteration import BatchIterator
from datapipe.loader.policy import BadSample
from datapipe.loader.tables.facade import TableLoader

__all__ = ["BadSample", "BatchIterator", "DataLoader", "Dataset", "TableLoader", "WeightedSampler", "explain", "mix"]
