"""Loaders without a seed, as ranks of a process group."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import datapipe as dp
from datapipe import transforms as T


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, number: int) -> int:
        return number


def make(path: Path, **changes: Any) -> dp.DataLoader:
    arguments: dict[str, Any] = {"shuffle": True, "num_workers": 0, "output": "dict", "transform": T.RandomResizedCrop(8)}
    return dp.DataLoader(path, 5, **(arguments | changes))


def seeds(path: Path) -> dict[str, Any]:
    """Of loaders that are begun in various ways by ranks that are seeded differently, and what they give."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(10 + rank)
    loader = make(path)
    if rank == 0:
        next(iter(loader))  # looks at a batch, alone
    total = torch.ones(1)
    dist.all_reduce(total)
    loader.set_epoch(0)
    ids = [sample for batch in loader for sample in batch["id"].tolist()]
    found: dict[str, Any] = {"sum": total.item(), "ids": ids, "seed": loader.seed}
    torch.manual_seed(20 + rank)
    found["seeded again"] = _begun(make(path))
    found["generator"] = _begun(make(path, generator=torch.Generator().manual_seed(rank)))
    found["given"] = _begun(make(path, seed=3))
    found["shared out"] = _begun(dp.from_torch(DataLoader(Numbers(), 5, shuffle=True), share_among_ranks=True))
    found["all samples each"] = _begun(make(path, ranks=(0, 1)))
    taken = dp.from_torch(DataLoader(Numbers(), 5, sampler=DistributedSampler(Numbers())))
    found["sampler"] = (_begun(taken), taken.state_dict()["seed"])
    dist.barrier()
    dist.destroy_process_group()
    return found


def _begun(loader: Any) -> int | None:
    next(iter(loader))
    seed: int | None = loader.seed
    return seed


def left_alone(path: Path) -> str:
    """The error of rank 1 if rank 0 never begins."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    said = ""
    if dist.get_rank() == 1:
        try:
            next(iter(make(path)))
        except dp.errors.LifecycleError as exc:
            said = str(exc)
        dist.distributed_c10d._get_default_store().set("said", "yes")
    else:
        dist.distributed_c10d._get_default_store().wait(["said"], datetime.timedelta(seconds=60))
    dist.destroy_process_group()
    return said
