"""webdataset's reader with PIL and torchvision in torch's DataLoader, as its documentation shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from pathlib import Path

import webdataset
from torch.utils.data import default_collate

from benchmarks.contenders import endlessly
from benchmarks.contenders.torchvision_transforms import transforms_of
from benchmarks.task import Task


def make(task: Task) -> Iterator[Sized]:
    """Shards shared out over the workers, a shuffle buffer of 1,000, batches made in the workers."""
    shards = sorted(str(path) for path in (Path(task.data) / "webdataset").glob("*.tar"))
    if len(shards) < task.num_threads:
        raise SystemExit(f"{task.data}/webdataset: {len(shards)} shards do not busy {task.num_threads} workers")
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=100, seed=task.seed)
        .shuffle(1000)
        .decode("pilrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(transforms_of(), int)
        .batched(task.batch_size, partial=False, collation_fn=default_collate)
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=task.num_threads, persistent_workers=True)
    return endlessly(lambda: (images for images, _ in loader))
