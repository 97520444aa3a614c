"""CUDA graphs captured while a loader's threads are at work, replayed, and held to what was captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.device import Device, open_device
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.settings import Check
from benchmarks.task import Task

_SIDE = 512  # of the matrices that the captured work multiplies
_DRAINED = 4  # batches taken right before, so that threads are busy with the next ones


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: variant, data, mode (of errors), num (captures), wait_s (that one takes)."""
    device = open_device(check.device)
    variant = Variant.from_json(arguments["variant"])
    contender = variant.bound_to(device.name)
    batches = contender.make(Task(contender.name, arguments["data"], variant.batch_size, variant.num_threads))
    for _ in range(2 * _DRAINED):
        next(batches)
    work, is_right = _work(device)
    num_failed, first_error, loader_error = 0, "", ""
    for _ in range(arguments["num"]):
        try:
            for _ in range(_DRAINED):
                next(batches)
        except Exception as exc:  # a capture that failed took the loader with it
            loader_error = f"{type(exc).__name__}: {str(exc)[:300]}"
            break
        try:
            replay = device.capture(work, arguments["mode"], arguments["wait_s"])
            replay()
            if not is_right():
                raise RuntimeError("the replayed graph gives other values")
        except Exception as exc:
            num_failed += 1
            first_error = first_error or f"{type(exc).__name__}: {str(exc)[:300]}"
    yield {
        "contender": variant.contender,
        "mode": arguments["mode"],
        "num": arguments["num"],
        "num_failed": num_failed,
        "first_error": first_error,
        "loader_error": loader_error,
    }


def _work(device: Device) -> tuple[Any, Any]:
    """Something to capture, run a few times before, and whether its output is what it should be."""
    left, right = (torch.randn((_SIDE, _SIDE), device=device.name) for _ in range(2))
    out = torch.empty_like(left)

    def work() -> None:
        torch.mm(left, right, out=out)

    def is_right() -> bool:
        device.synchronise()
        made = out.clone()
        out.zero_()
        return torch.allclose(made, expected)

    with device.side_stream():
        for _ in range(3):
            work()
    device.synchronise()
    expected = out.clone()
    out.zero_()
    device.synchronise()
    return work, is_right
