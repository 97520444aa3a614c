"""Measure the speed of datapipe's loader on a sample of the user's data: alone, on this machine in its current state."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.containers import open_index
from datapipe.containers.foreign import ForeignSet, open_foreign
from datapipe.core.errors import OptionError
from datapipe.core.regular_files import open_descriptor
from datapipe.diagnostics.trials.sample import MAX_SAMPLES, Sample
from datapipe.diagnostics.trials.shards import Shards
from datapipe.index.concat import AnyIndex
from datapipe.index.file_list import FileListIndex
from datapipe.loader import DataLoader, Dataset

_MIN_PASSES, _MAX_PASSES = 3, 20
_FLOOR = 0.05  # relative error: passes within one short run vary less than runs do


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of passes over a sample without a consumer."""

    sample_s: float  # seconds per sample, median over passes
    spread: float  # relative standard error
    num_threads: int
    num_samples: int


def rate_of(loader: DataLoader, *, seconds: float, evicts: Sequence[str] = ()) -> Rate:
    """Time passes for about `seconds`, at least three, after one that does not count.

    `evicts`: files to drop from the page cache before each pass, as far as the kernel does so.
    """
    num_samples, times = 0, list[float]()
    until_s = time.perf_counter() + seconds
    while len(times) < 1 + _MIN_PASSES or (time.perf_counter() < until_s and len(times) < _MAX_PASSES):
        drop_from_page_cache(evicts)
        started_s = time.perf_counter()
        num_samples = _exhaust(loader)
        times.append(time.perf_counter() - started_s)
    if not num_samples:
        raise OptionError("none of the samples can be read")
    counted = np.array(times[1:])
    error = float(counted.std(ddof=1) / np.sqrt(len(counted)) / counted.mean())
    return Rate(statistics.median(times[1:]) / num_samples, max(_FLOOR, error), loader.num_workers, num_samples)


def index_of(sample: Sample, scratch: Path) -> AnyIndex:
    """Return an index of the sample as it is. For shards an index is made, once, in `scratch`."""
    data = sample.data
    if isinstance(data, Shards):
        directory = scratch / "linked"
        names = tuple(f"{number:06}.tar" for number in range(len(data.paths)))
        if not directory.exists():
            directory.mkdir()
            for name, path in zip(names, data.paths, strict=True):
                (directory / name).symlink_to(path)
        index = open_foreign(ForeignSet("tar", directory, names))
        return index.select(np.arange(min(MAX_SAMPLES, len(index)), dtype=np.int64))
    labels = None if min(data.labels) < 0 else np.array(data.labels, np.int64)
    return FileListIndex(list(data.paths), labels, where=sample.where)


def own_loader(sample: Sample, data: AnyIndex | str, **options: Any) -> DataLoader:
    """Return the loader that `from_torch` would make, over `data`: an index, or a path."""
    dataset = Dataset(open_index(data) if isinstance(data, str) else data)
    return DataLoader(
        dataset,
        batch_size=max(1, min(sample.batch_size, len(dataset) // 8)),  # so that a pass has several batches
        shuffle=True,
        seed=0,
        num_workers=sample.num_workers or None,
        transform=sample.recipe,
        device="cpu",
        backend="images_cpu",
        on_error="skip",
        fields=sample.data.fields if isinstance(sample.data, Shards) else None,
        **options,
    )


def drop_from_page_cache(paths: Iterable[str]) -> None:
    """Ask the kernel to drop these files from its cache, so that they are read from storage again; dirty pages stay."""
    for path in paths:
        descriptor, _ = open_descriptor(path)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _exhaust(loader: DataLoader) -> int:
    num = 0
    for batch in loader:
        num += len(batch[0])
        del batch
    return num
