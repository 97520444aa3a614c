"""The same samples by one backend: pixels to files, for others to compare."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import datapipe
from benchmarks.contenders.ours_gpu import check_decoder
from benchmarks.gpu.device import Device, open_device
from benchmarks.gpu.libraries import told_libraries
from benchmarks.gpu.settings import Check
from benchmarks.task import CROP
from datapipe import Dali
from datapipe import transforms as T
from datapipe.kernel.explanation import explain

SEED = 1
_TO_FLOAT = [T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
RECIPES: dict[str, list[Any]] = {
    "RandomResizedCrop, flip": [T.RandomResizedCrop(CROP), T.RandomHorizontalFlip()],
    "RandomResizedCrop, flip, Normalize": [T.RandomResizedCrop(CROP), T.RandomHorizontalFlip(), *_TO_FLOAT],
    "Resize, CenterCrop": [T.Resize(256), T.CenterCrop(CROP)],
    "Resize, RandomCrop with padding, flips": [
        T.Resize((CROP, CROP)), T.RandomCrop(CROP, padding=16, fill=(9, 80, 200)), T.RandomVerticalFlip(),
        T.RandomHorizontalFlip(),
    ],
    "RandomCrop alone": [T.RandomCrop(CROP, pad_if_needed=True)],
}  # fmt: skip


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """A result per recipe, then what was loaded.

    `arguments`: data (an image folder), out (folder for .npy files), recipes (names), backend, device, dali (settings, or
    None), batch_size, older_nvjpeg (behave as beside an nvJPEG that cannot decode regions smoothly), is_busy, delay_ms (how late
    batches are read then).
    """
    busy = open_device(arguments["device"]) if arguments["is_busy"] else None
    if arguments.get("older_nvjpeg"):
        _pretend_older_nvjpeg()
    dali = arguments.get("dali")
    backend: Any = arguments["backend"] if dali is None else Dali(**dali)
    out = Path(arguments["out"])
    out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(arguments["recipes"]):
        loader = datapipe.DataLoader(
            arguments["data"],
            batch_size=arguments["batch_size"],
            shuffle=True,
            num_workers=4,
            transform=RECIPES[name],
            device=arguments["device"],
            backend=backend,
            seed=SEED,
            output="dict",
        )
        check_decoder(loader, arguments["device"])
        batches = [_read(batch) for batch in loader] if busy is None else _read_late(loader, busy, arguments["delay_ms"])
        images = torch.cat([batch["image"] for batch in batches])
        path = out / f"{number}.npy"
        np.save(path, images.numpy())
        ids, labels = (torch.cat([batch[key] for batch in batches]).tolist() for key in ("id", "label"))
        yield {"recipe": name, "file": str(path), "ids": ids, "labels": labels, "dtype": str(images.dtype)}
    yield {**told_libraries(), "explained": list(explain(loader).lines)}


def _read(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value.cpu() for key, value in batch.items()}


def _read_late(loader: Any, device: Device, delay_ms: float) -> list[dict[str, torch.Tensor]]:
    """What the batches are when the device gets to them, the host having taken and dropped them before."""
    copies = []
    for batch in loader:
        device.compete(delay_ms)
        device.keep_busy(delay_ms)
        copies.append({key: value.clone() for key, value in batch.items()})
        del batch
    device.synchronise()
    return [_read(copy) for copy in copies]


def _pretend_older_nvjpeg() -> None:
    """Let the installed nvJPEG wheel say a version in which regions are not decoded as smoothly as the whole."""
    truth: Callable[[str], str] = importlib.metadata.version

    def version(distribution_name: str) -> str:
        return "12.4.0" if distribution_name in ("nvidia-nvjpeg", "nvidia-nvjpeg-cu12") else truth(distribution_name)

    importlib.metadata.version = version
