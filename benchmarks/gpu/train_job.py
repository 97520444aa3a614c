"""One network fed by one contender."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.gpu.device import MB, open_device
from benchmarks.gpu.pace import bf16_step, run_paced
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.settings import Check
from benchmarks.task import Task

_NUM_CLASSES = 1000


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: variant, data, model, seconds, warmup_s."""
    device = open_device(check.device)
    variant = Variant.from_json(arguments["variant"])
    contender = variant.bound_to(device.name)
    torch.set_num_threads(1)  # the host only queues work
    before_mb = device.used_mb()
    batches = contender.make(Task(contender.name, arguments["data"], variant.batch_size, variant.num_threads))
    try:
        first: Any = next(batches)
    except ImportError as exc:
        yield {**variant.to_json(), "missing": str(exc)}
        return
    step, losses = training_step(arguments["model"], device.name, variant.batch_size)
    step(first)
    del first
    device.synchronise()
    pace = run_paced(batches, step, device, warmup_s=arguments["warmup_s"], seconds=arguments["seconds"])
    peak = torch.cuda.max_memory_allocated() if device.name == "cuda" else 0
    yield {
        **variant.to_json(),
        "model": arguments["model"],
        **{name: round(value, 4) for name, value in pace.summed_up(variant.batch_size).items()},
        "torch_peak_mb": round(peak / MB),
        "device_mb": round(device.used_mb() - before_mb),
        "is_loss_finite": bool(torch.isfinite(torch.stack(losses)).all()),
    }


def training_step(name: str, device: str, batch_size: int) -> tuple[Callable[[Any], None], list[torch.Tensor]]:
    """See `bf16_step`; in channels_last."""
    import_torchvision()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    models: Any = importlib.import_module("torchvision.models")
    model = models.get_model(name, weights=None).to(device=device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    labels = torch.randint(0, _NUM_CLASSES, (batch_size,), device=device)
    return bf16_step(lambda images: torch.nn.functional.cross_entropy(model(images), labels), optimizer, device)
