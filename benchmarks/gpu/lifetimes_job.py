"""Whether anything leaks, is overwritten, or is read before it is there."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import datapipe
from benchmarks.contenders.ours_gpu import check_decoder
from benchmarks.gpu.device import MB, Device, open_device
from benchmarks.gpu.settings import Check
from benchmarks.task import CROP
from datapipe import Dali
from datapipe import transforms as T

_POISON = 0xDB


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: question, data, batch_size, dali (settings; None: images_cpu), and the question's sizes."""
    device = open_device(check.device)
    questions: dict[str, Callable[[dict[str, Any], Device], dict[str, Any]]] = {
        "abandoned": abandoned,
        "kept": kept,
        "poisoned": poisoned,
        "late": late,
        "ahead": ahead,
    }
    yield {"question": arguments["question"], **questions[arguments["question"]](arguments, device)}


def abandoned(arguments: dict[str, Any], device: Device) -> dict[str, Any]:
    """Iterators left after a batch: what the process holds after some, and after all of them."""
    loader = _loader(arguments, device, is_float=True)
    before: dict[str, float] = {}
    for number in range(arguments["num"]):
        iterator = iter(loader)
        batch = next(iterator)
        del iterator, batch
        if number == arguments["num"] // 5:
            before = _holdings(device)
    after = _holdings(device)
    return {**{f"{name}_grown": round(after[name] - before[name], 2) for name in after}, "num": arguments["num"]}


def kept(arguments: dict[str, Any], device: Device) -> dict[str, Any]:
    """Batches in the user's hands while many more are made: what they are then, against copies made at once."""
    num_changed = 0
    for is_float in (False, True):
        batches = _endlessly(_loader(arguments, device, is_float=is_float))
        held = [next(batches) for _ in range(arguments["num_kept"])]
        copies = [images.clone() for images, _ in held]
        for _ in range(arguments["num"]):
            next(batches)
        num_changed += sum(not torch.equal(images, copy) for (images, _), copy in zip(held, copies, strict=True))
        del held, copies
    return {"num_kept": 2 * arguments["num_kept"], "num_made_after": arguments["num"], "num_changed": num_changed}


def poisoned(arguments: dict[str, Any], device: Device) -> dict[str, Any]:
    """The same batches with every host slab overwritten as it is lent: a copy that came too late would show."""
    plain = _means(arguments, device, delay_ms=0)
    with _overwritten_slabs():
        found = _means(arguments, device, delay_ms=5)
    return _against(plain, found)


def late(arguments: dict[str, Any], device: Device) -> dict[str, Any]:
    """Batches read on a side stream that is kept busy, and dropped at once: a wait or a hold left out would show."""
    plain = _means(arguments, device, delay_ms=0)
    with device.side_stream():
        found = _means(arguments, device, delay_ms=arguments["delay_ms"])
    return _against(plain, found)


def ahead(arguments: dict[str, Any], device: Device) -> dict[str, Any]:
    """How much memory the device lends while it cannot compute and the host continues to take batches."""
    batches = _endlessly(_loader(arguments, device, is_float=True))
    for _ in range(5):
        next(batches)
    device.synchronise()
    before_mb, highest_mb = device.used_mb(), 0.0
    device.keep_busy(arguments["hold_ms"])
    end, num_taken = device.mark(), 0
    while num_taken < arguments["num"] and not (num_taken and device.is_past(end)):
        next(batches)
        num_taken += 1
        highest_mb = max(highest_mb, device.used_mb())
    device.synchronise()
    return {"num_taken": num_taken, "device_mb_grown": round(highest_mb - before_mb), "hold_ms": arguments["hold_ms"]}


def _means(arguments: dict[str, Any], device: Device, *, delay_ms: float) -> torch.Tensor:
    """(n,) the mean of every image, in order. With a delay the device is late at every batch; the host never waits."""
    means = []
    for number, (images, _) in enumerate(_endlessly(_loader(arguments, device, is_float=True))):
        if number == arguments["num"]:
            break
        if delay_ms:
            device.keep_busy(delay_ms)
        means.append(images.float().mean(dim=(1, 2, 3)))
        del images
    device.synchronise()
    return torch.cat(means).cpu()


def _against(plain: torch.Tensor, found: torch.Tensor) -> dict[str, Any]:
    difference = (plain - found).abs()
    return {
        "num_images": len(plain),
        "num_equal": int((difference == 0).sum()),
        "worst_difference": round(float(difference.max()), 6),  # of normalised images' means
        "spread": round(float(plain.std()), 6),
    }


@contextmanager
def _overwritten_slabs() -> Iterator[None]:
    from datapipe.kernel.pools import SlabPool

    lease = SlabPool.lease

    def overwritten(pool: SlabPool) -> Any:
        slab = lease(pool)
        slab[:] = _POISON
        return slab

    with mock.patch.object(SlabPool, "lease", overwritten):
        yield


def _holdings(device: Device) -> dict[str, float]:
    gc.collect()
    device.synchronise()
    return {
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "host_mb": _resident_mb(),
        "device_mb": device.used_mb(),
    }


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def _endlessly(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _loader(arguments: dict[str, Any], device: Device, *, is_float: bool) -> Any:
    to_float = [T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
    settings = arguments["dali"]
    backend: Any = "images_cpu" if settings is None else Dali(**settings)
    loader = datapipe.DataLoader(
        arguments["data"],
        batch_size=arguments["batch_size"],
        shuffle=True,
        seed=0,
        drop_last=True,
        num_workers=4,
        transform=[T.RandomResizedCrop(CROP), T.RandomHorizontalFlip(), *(to_float if is_float else [])],
        device=device.name,
        backend=backend,
    )
    check_decoder(loader, device.name)
    return loader
