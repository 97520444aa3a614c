"""LitData, MosaicML Streaming and Lance, reading their own data from a disk as their documentation shows it, with PIL."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import endlessly
from benchmarks.contenders.streaming_peers import Decoded
from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.task import Task


def make(task: Task, *, peer: str) -> Iterator[Sized]:
    """Batches for ever, shuffled, decoded by as many worker processes as there are threads elsewhere."""
    import_torchvision()
    loader = {"litdata": _litdata, "mds": _mds, "lance": _lance}[peer](str(Path(task.data) / peer), task)
    return endlessly(lambda: (images for images, _ in loader))


def _litdata(folder: str, task: Task) -> Any:
    litdata = importlib.import_module("litdata")
    dataset = litdata.StreamingDataset(folder, shuffle=True, drop_last=True, transform=Decoded())
    return litdata.StreamingDataLoader(dataset, batch_size=task.batch_size, num_workers=task.num_threads, drop_last=True)


class Stacked:
    """Makes batches of what a Lance dataset yields, in worker processes that are spawned."""

    def __init__(self) -> None:
        self._decoded: Decoded | None = None

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        if self._decoded is None:
            import_torchvision()
            self._decoded = Decoded()
        return torch.utils.data.default_collate([self._decoded(sample) for sample in samples])


def _lance(folder: str, task: Task) -> Any:
    data = importlib.import_module("lance.torch.data")
    return data.get_safe_loader(
        data.SafeLanceDataset(folder),
        batch_size=task.batch_size,
        num_workers=task.num_threads,
        shuffle=True,
        drop_last=True,
        collate_fn=Stacked(),
    )


def _mds(folder: str, task: Task) -> Any:
    streaming = importlib.import_module("streaming")
    importlib.import_module("streaming.base.util").clean_stale_shared_memory()  # of a run that was cut off
    decoded = Decoded()

    class Images(streaming.StreamingDataset):  # type: ignore[name-defined, misc]
        def __getitem__(self, place: Any) -> tuple[torch.Tensor, int]:
            return decoded(super().__getitem__(place))

    dataset = Images(local=folder, shuffle=True, batch_size=task.batch_size)
    return torch.utils.data.DataLoader(
        dataset, batch_size=task.batch_size, num_workers=task.num_threads, drop_last=True, persistent_workers=True
    )
