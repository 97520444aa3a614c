"""DDP and FSDP over one loader; stops in mid-epoch, and resumes if there is a checkpoint.

torchrun --nproc-per-node 2 parallel_run.py DATA CHECKPOINT OUT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import datapipe as dp
from datapipe import transforms as T


def main(data: str | Path, checkpoint: Path, out: Path, stop_after: int = 0) -> None:
    dist.init_process_group("gloo")
    train(data, checkpoint, out, stop_after)  # apart, so that whatever holds the process group is gone before it ends
    dist.barrier()
    dist.destroy_process_group()


def train(data: str | Path, checkpoint: Path, out: Path, stop_after: int) -> None:
    loader = dp.DataLoader(
        data,
        batch_size=4,
        shuffle=True,
        seed=2,
        num_workers=1,
        output="dict",
        transform=[T.RandomResizedCrop(8), T.ToDtype(torch.float32, scale=True)],
    )
    torch.manual_seed(0)
    sharded = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 3))
    fully_shard(sharded, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    replicated = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))
    optimizer = torch.optim.SGD([*sharded.parameters(), *replicated.parameters()], lr=0.1)
    if checkpoint.exists():
        state = {"sharded": sharded.state_dict(), "loader": loader}
        dcp.load(state, checkpoint_id=checkpoint)
        sharded.load_state_dict(state["sharded"])
    steps: list[list[int]] = []
    for batch in loader:
        loss = sum(nn.functional.cross_entropy(model(batch["image"]), batch["label"]) for model in (sharded, replicated))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.append(batch["id"].tolist())
        if len(steps) == stop_after:
            dcp.save({"sharded": sharded.state_dict(), "loader": loader}, checkpoint_id=checkpoint)
            break
    gathered: list[list[list[int]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, steps)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(gathered))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that ends as usual (pytorch/pytorch#190489)
