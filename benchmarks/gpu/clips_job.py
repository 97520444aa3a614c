"""Clips on the GPU: are those by its engines the CPU's, how many a second come, how long does a network wait for them."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import datapipe as dp
from benchmarks.gpu.device import Device, open_device
from benchmarks.gpu.pace import bf16_step, first_and_steady, run_paced
from benchmarks.gpu.settings import Check, num_cores
from datapipe.kernel.processes import await_launcher
from datapipe.kinds.clips.process_workers import IMPORTS

ON_CPU, ON_ENGINES, RESIDENT = "clips_cpu", "clips_nvdec", "resident"
_FRAMES, _STRIDE, _STEP, _SIZE, _BATCH_SIZE = 8, 4, 4, 224, 32
_COMPARED = 8  # batches
_NUM_CLASSES = 16


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: question ("parity", "rate" or "train") and folder; feed, warmup_s, seconds."""
    device = open_device(check.device)
    with contextlib.ExitStack() as stack:
        if check.is_dry:
            from benchmarks.gpu.host_runtime import dry_nvdec

            stack.enter_context(dry_nvdec())
        if arguments["question"] == "parity":
            yield parity(arguments["folder"], device, check)
            return
        answer = {"rate": rate, "train": train}[arguments["question"]]
        yield {"feed": arguments["feed"], **answer(arguments, device, check)}


def open_loader(backend: str, folder: str, device: str, check: Check, num_workers: int | None = None) -> Any:
    """A loader of shuffled clips, each cut at random. `num_workers`: as many as there are cores, if None."""
    num_workers = check.pick(num_workers or num_cores(), 2)
    await_launcher(IMPORTS, num_workers)
    data = dp.Clips(folder, frames=_FRAMES, stride=check.pick(_STRIDE, 1), step=_STEP)
    crop = dp.transforms.RandomResizedCrop(check.pick(_SIZE, 32))
    options = {"batch_size": check.pick(_BATCH_SIZE, 2), "num_workers": num_workers, "backend": backend}
    return dp.DataLoader(data, shuffle=True, seed=0, tail="drop", transform=[crop], device=device, **options)


def parity(folder: str, device: Device, check: Check) -> dict[str, Any]:
    """Compare batches by engines with the CPU's, while the device is busy."""
    loader = open_loader(ON_ENGINES, folder, device.name, check)
    num_clips = num_different = 0
    pairs = zip(loader, open_loader(ON_CPU, folder, "cpu", check), strict=True)
    for batch, expected in itertools.islice(pairs, _COMPARED):
        device.keep_busy(2.0)
        differ = (batch["video"].cpu() != expected["video"]).flatten(1).any(1)
        num_clips, num_different = num_clips + len(differ), num_different + int(differ.sum())
    num_frames = loader._passes.kind.trust.num_frames
    return {"num_clips": num_clips, "num_different": num_different, "num_frames_of_engines": num_frames}


def rate(arguments: dict[str, Any], device: Device, check: Check) -> dict[str, Any]:
    """Clips per second from batch to batch, once it runs, and the cores that the machine keeps busy."""
    num_workers = arguments["num_workers"]
    batches = _endless(open_loader(arguments["feed"], arguments["folder"], device.name, check, num_workers))
    busy_s, started = _busy_s(), time.perf_counter()
    first_batch_s, taken = first_and_steady(batches, device, arguments, len)
    cores = (_busy_s() - busy_s) / (time.perf_counter() - started)
    found = {"clips_per_s": taken.num / taken.wall_s, "first_batch_s": round(first_batch_s, 2), "cores": round(cores, 2)}
    return {"num_workers": num_workers, **found}


def train(arguments: dict[str, Any], device: Device, check: Check) -> dict[str, Any]:
    """The pace of a small network over clips, and how long the device stood still for data."""
    torch.set_num_threads(1)  # the host only queues work
    resident = arguments["feed"] == RESIDENT
    batches = _endless(open_loader(ON_CPU if resident else arguments["feed"], arguments["folder"], device.name, check))
    if resident:
        batches = itertools.repeat(next(batches))
    step, losses = training_step(device.name)
    step(next(batches))
    device.synchronise()
    pace = run_paced(batches, step, device, warmup_s=arguments["warmup_s"], seconds=arguments["seconds"])
    found = {name: round(value, 4) for name, value in pace.summed_up(check.pick(_BATCH_SIZE, 2)).items()}
    found["clips_per_s"] = found.pop("images_per_s")
    return {**found, "is_loss_finite": bool(torch.isfinite(torch.stack(losses)).all())}


def training_step(device: str) -> Any:
    """See `bf16_step`; a convolution of two dimensions for each frame and means over time, of random labels."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((3, 64, 128, 256, 512)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, _NUM_CLASSES)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        b, t = batch.shape[:2]
        logits = model(batch.flatten(0, 1).float().div_(255)).view(b, t, -1).mean(1)
        labels = torch.arange(b, device=batch.device) % _NUM_CLASSES
        return nn.functional.cross_entropy(logits, labels)

    return bf16_step(loss_of, optimizer, device)


def _busy_s() -> float:
    """Return the CPU seconds of all processes since the machine started: worker processes are no children of this one."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _endless(loader: Any) -> Iterator[torch.Tensor]:
    """Yield the clips of batches, epoch after epoch."""
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        yield batch["video"]
