"""What tests of Accelerate run in processes of their own. Each returns plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from torch import nn

import datapipe as dp
from datapipe import transforms as T
from datapipe.adapt.hosts.accelerate import prepare


def make_loader(path: Path, **arguments: Any) -> dp.DataLoader:
    crop = [T.RandomResizedCrop(8), T.ToDtype(torch.float32, scale=True)]
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 5, "num_workers": 1, "output": "dict", "transform": crop}
    return dp.DataLoader(path, **(options | arguments))


def gathered(path: Path, arguments: dict[str, Any], adapts: bool = True) -> list[list[int]]:
    """The ids that `gather_for_metrics` gives for each step of two epochs."""
    accelerator = Accelerator(cpu=True)
    loader = make_loader(path, **arguments)
    loader = prepare(accelerator, loader) if adapts else accelerator.prepare(loader)
    steps = [accelerator.gather_for_metrics(batch["id"]).tolist() for _ in range(2) for batch in loader]
    accelerator.end_training()
    return steps


def steps_that_synchronise(path: Path, arguments: dict[str, Any], adapts: bool) -> list[list[bool]]:
    """Whether each step of two epochs ends an accumulation of four."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    layer = nn.Linear(3 * 64, 3)
    objects = (layer, make_loader(path, **arguments), torch.optim.SGD(layer.parameters(), lr=0.1))
    model, loader, optimizer = prepare(accelerator, *objects) if adapts else accelerator.prepare(*objects)
    epochs: list[list[bool]] = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(batch["image"].flatten(1)), batch["label"]))
                optimizer.step()
                optimizer.zero_grad()
            epochs[-1].append(accelerator.sync_gradients)
    # A DistributedDataParallel freed after its process group can wait for the group's threads for ever.
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()
    return epochs


def stop_or_go_on(path: Path, directory: Path, arguments: dict[str, Any], stop_after: int | None) -> dict[str, Any]:
    """Steps of a run of two epochs that is stopped and saved, or that resumes from there."""
    accelerator = Accelerator(cpu=True)
    _, loader = prepare(accelerator, nn.Linear(2, 2), make_loader(path, **arguments))
    if directory.exists():
        accelerator.load_state(str(directory))
    ids, sums, ends = [], [], []
    first = loader.state_dict()["epoch"] if directory.exists() else 0
    for _ in range(first, 2):
        for batch in loader:
            ids.append(accelerator.gather_for_metrics(batch["id"]).tolist())
            sums.append(round(accelerator.gather(batch["image"].sum()).sum().item(), 2))
            ends.append(accelerator.gradient_state.end_of_dataloader)
            if len(ids) == stop_after:
                accelerator.save_state(str(directory))
                break
        if len(ids) == stop_after:
            break
    accelerator.end_training()
    return {"ids": ids, "sums": sums, "ends": ends}


def state_after_leaving_early(path: Path) -> list[Any]:
    """The loader that the accelerator believes to be in progress: during a pass, and after leaving it."""
    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, prepare(accelerator, make_loader(path)))
    found = []
    for _ in loader:
        found.append(accelerator.gradient_state.active_dataloader is loader)
        break
    found.append(accelerator.gradient_state.active_dataloader)
    return found


def error_of(path: Path, arguments: dict[str, Any], options: dict[str, Any], skips: int = 0) -> str:
    from accelerate.utils import DataLoaderConfiguration

    config = DataLoaderConfiguration(**options)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    try:
        loader = prepare(accelerator, make_loader(path, **arguments))
        list(skip_first_batches(loader, skips) if skips else loader)
    except ValueError as exc:
        return f"{type(exc).__name__}: {exc}"
    finally:
        accelerator.end_training()
    return ""


def error_on_another_device(path: Path) -> str:
    """An accelerator that computes on a GPU, which is not asked to do so."""
    accelerator = Accelerator(cpu=True)
    accelerator.state._shared_state["device"] = torch.device("cuda", 1)
    try:
        prepare(accelerator, make_loader(path))
    except ValueError as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""
