"""One loader on a busy device: what waits for what."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.device import Device, open_device
from benchmarks.gpu.pace import run_paced
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.settings import Check
from benchmarks.task import CROP, Task

_SIDE = 4096  # of the matrices by which the device is kept busy


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """A result per question. `arguments`: variant, data, seconds (of each), hold_ms."""
    device = open_device(check.device)
    variant = Variant.from_json(arguments["variant"])
    contender = variant.bound_to(device.name)
    yield from bus(device, variant.batch_size)
    batches = contender.make(Task(contender.name, arguments["data"], variant.batch_size, variant.num_threads))
    for _ in range(8):
        next(batches)
    seconds = float(arguments["seconds"])
    alone = run_paced(batches, lambda _: None, device, warmup_s=seconds / 2, seconds=seconds)
    supply_ms = statistics.fmean(alone.gap_ms) + statistics.fmean(alone.compute_ms)
    yield {"question": "supply", "supply_ms": supply_ms, "images_per_s": 1000 * variant.batch_size / supply_ms}
    # Computing that takes longer than a batch: the device must never wait. Shorter: it waits for the difference.
    for load, demand in (("asleep", 2.0), ("matrices", 2.0), ("asleep", 0.4)):
        target_ms = demand * supply_ms
        compute, own_ms = busy_work(device, load, target_ms)
        pace = run_paced(batches, compute, device, warmup_s=seconds / 2, seconds=seconds)
        found = pace.summed_up(variant.batch_size)
        expected = max(0.0, supply_ms - own_ms) / max(supply_ms, own_ms)
        about = {"question": "idle", "load": load, "demand": demand, "own_compute_ms": own_ms}
        yield {**about, "expected_idle_share": expected, **found}
    yield from hold(batches, device, float(arguments["hold_ms"]))


def hold(batches: Iterator[Any], device: Device, hold_ms: float) -> Iterator[dict[str, Any]]:
    """The compute stream is held by one long kernel: `next()` must return all the same, as long as batches are ready."""
    device.keep_busy(1)
    device.synchronise()
    time.sleep(0.3)  # batches get ready
    device.keep_busy(hold_ms)
    end = device.mark()
    kept, waits_ms = [], []
    for _ in range(2):
        start = time.perf_counter()
        kept.append(next(batches))
        waits_ms.append((time.perf_counter() - start) * 1e3)
    yield {"question": "hold", "hold_ms": hold_ms, "waits_ms": waits_ms, "returned_before_its_end": not device.is_past(end)}
    device.synchronise()


def bus(device: Device, batch_size: int) -> Iterator[dict[str, Any]]:
    """What copying a batch costs alone, and what the pieces reach: the ceilings of this machine."""
    for dtype in (torch.uint8, torch.float32):
        host = torch.empty((batch_size, 3, CROP, CROP), dtype=dtype, pin_memory=device.name == "cuda")
        there = torch.empty_like(host, device=device.name)
        copies_ms = []
        for _ in range(12):
            before = device.mark()
            there.copy_(host, non_blocking=True)
            after = device.mark()
            device.synchronise()
            copies_ms.append(device.elapsed_ms(before, after))
        copy_ms = statistics.median(copies_ms)
        yield {
            "question": "bus",
            "dtype": str(dtype).removeprefix("torch."),
            "copy_ms": copy_ms,
            "gb_per_s": host.nbytes / 1e6 / max(copy_ms, 1e-6),
        }


def busy_work(device: Device, load: str, target_ms: float) -> tuple[Callable[[Any], None], float]:
    """Work of about `target_ms`, and what it takes with the device to itself."""
    if load == "asleep" or device.name == "cpu":

        def compute(_: Any) -> None:
            device.keep_busy(target_ms)

    else:
        left = torch.randn((_SIDE, _SIDE), device=device.name, dtype=torch.bfloat16)
        right = torch.randn((_SIDE, _SIDE), device=device.name, dtype=torch.bfloat16)
        out = torch.empty_like(left)
        num = max(1, round(target_ms / _median_ms(lambda: torch.mm(left, right, out=out), device)))

        def compute(_: Any) -> None:
            for _ in range(num):
                torch.mm(left, right, out=out)

    return compute, _median_ms(lambda: compute(None), device)


def _median_ms(work: Callable[[], object], device: Device) -> float:
    times = []
    for _ in range(7):
        before = device.mark()
        work()
        after = device.mark()
        device.synchronise()
        times.append(device.elapsed_ms(before, after))
    return statistics.median(times)
