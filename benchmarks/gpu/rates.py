"""Images per second of contenders that put batches on the GPU: several in one process, or one alone."""

from __future__ import annotations

import dataclasses
import gc
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.gpu.device import Device, open_device
from benchmarks.gpu.engines import EngineMeter
from benchmarks.gpu.pace import take
from benchmarks.gpu.settings import Check
from benchmarks.measure import check as check_batch
from benchmarks.task import Task


@dataclass(frozen=True, slots=True)
class Variant:
    """A contender and how it is set."""

    contender: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch_size: int = 256
    num_threads: int = 16

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "options": dict(self.options)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Variant:
        return cls(**value)

    def bound_to(self, device: str) -> Contender:
        """The contender with these settings."""
        contender = CONTENDERS[self.contender]
        return dataclasses.replace(contender, options={**contender.options, **self.options, "device": device})


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result per variant. `arguments`: data, variants, seconds (of each), warmup_s."""
    device = open_device(check.device)
    for value in arguments["variants"]:
        variant = Variant.from_json(value)
        try:
            found = rate_of(variant, Path(arguments["data"]), device, float(arguments["seconds"]), float(arguments["warmup_s"]))
        except ImportError as exc:
            found = {"missing": str(exc)}
        except Exception as exc:  # the other paths of this process can still be measured
            found = {"error": f"{type(exc).__name__}: {str(exc)[:500]}"}
        yield {**variant.to_json(), **found}
        gc.collect()
        device.free_unused()


def rate_of(variant: Variant, data: Path, device: Device, seconds: float, warmup_s: float) -> dict[str, Any]:
    """Images per second from batch to batch, once it runs, and what it took of the machine."""
    contender = variant.bound_to(device.name)
    task = Task(contender.name, str(data), batch_size=variant.batch_size, num_threads=variant.num_threads)
    before_mb = device.used_mb()
    started = time.perf_counter()
    batches = contender.make(task)
    first = next(batches)
    device.synchronise()
    first_batch_s = time.perf_counter() - started
    check_batch(first, contender, task.batch_size)
    take(batches, device, warmup_s)
    meter = EngineMeter(device.name)
    meter.start()
    used = resource.getrusage(resource.RUSAGE_SELF)
    num_images, wall_s, used_mb = take(batches, device, seconds)
    now = resource.getrusage(resource.RUSAGE_SELF)
    engines = meter.stop()
    cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return {
        "images_per_s": num_images / wall_s,
        "num_images": num_images,
        "wall_s": round(wall_s, 3),
        "own_cpu_s_per_1000": round(1000 * cpu_s / num_images, 3),  # without worker processes
        "first_batch_s": round(first_batch_s, 2),
        "device_mb": round(used_mb - before_mb),
        **engines,
    }
