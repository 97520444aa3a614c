"""Scripts, as they are and with lines changed, run in processes of their own."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import torch

import datapipe as dp
from datapipe import transforms as T


def run_script(script: Path, arguments: list[str]) -> str:
    """What the `main` of a file returns."""
    result: str = runpy.run_path(str(script))["main"](arguments)
    return result


def timm_epochs(folder: Path, ours: bool) -> dict[str, Any]:
    """Two epochs of timm's training and evaluation loops, over its own loaders or over ours within its `PrefetchLoader`."""
    from timm.data import create_dataset, create_loader
    from timm.data.loader import PrefetchLoader
    from timm.models import create_model

    device = torch.device("cpu")
    common: dict[str, Any] = {"input_size": (3, 32, 32), "batch_size": 5, "device": device, "num_workers": 0}
    if ours:
        train = PrefetchLoader(
            dp.DataLoader(folder, 5, shuffle=True, drop_last=True, transform=[T.RandomResizedCrop(32), T.RandomHorizontalFlip()]),
            device=device,
        )
        evaluation = PrefetchLoader(dp.DataLoader(folder, 5, transform=[T.Resize(36), T.CenterCrop(32)]), device=device)
    else:
        train = create_loader(create_dataset("", root=str(folder)), is_training=True, no_aug=True, **common)
        evaluation = create_loader(create_dataset("", root=str(folder)), is_training=False, **common)
    model = create_model("test_resnet", num_classes=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: dict[str, Any] = {"train": [], "eval": [], "length": len(train), "mixup": train.mixup_enabled}
    for epoch in range(2):
        if hasattr(train.sampler, "set_epoch"):
            train.sampler.set_epoch(epoch)
        model.train()
        seen["train"].append([])
        for images, target in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), target).backward()
            optimizer.step()
            seen["train"][-1].append(_reds(images))
        model.eval()
        with torch.no_grad():
            seen["eval"].append([(_reds(images), target.tolist()) for images, target in evaluation if len(model(images))])
    return seen


def _reds(images: torch.Tensor) -> list[int]:
    """The numbers of images of one colour, normalised as timm does."""
    found: list[int] = ((images[:, 0, 0, 0] * 0.229 + 0.485) * 255).round().int().tolist()
    return found


def run_example(script: Path, arguments: list[str]) -> str:
    """What a script prints."""
    import contextlib
    import io
    import sys

    sys.argv = [str(script), *arguments]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(script), run_name="__main__")
    return out.getvalue()
