"""One contender, one round, in a process of its own: `python -m benchmarks.measure TASK_JSON`.

Prints one line of JSON. Fresh processes keep one contender's threads, memory and caches from another.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.task import CROP, Task

PACKAGES = (
    "torch", "torchvision", "numpy", "pillow", "simplejpeg", "nvidia-nvimgcodec-cu12", "nvidia-dali-cuda120", "webdataset",
    "pylance", "ffcv", "opencv-python", "numba", "pyarrow",
)  # fmt: skip


def main() -> None:
    task = Task.from_json(sys.argv[1])
    if task.cores:
        os.sched_setaffinity(0, task.cores)
    print(json.dumps(measure(task)))
    sys.stdout.flush()
    os._exit(0)  # endless loaders end here; several of them join worker threads for ever at exit


def measure(task: Task) -> dict[str, Any]:
    """Images per second between the warm-up's last image and the last of `num_images` more."""
    contender = CONTENDERS[task.contender]
    started = time.perf_counter()
    batches = contender.make(task)
    first = next(batches)
    first_batch_s = time.perf_counter() - started
    check(first, contender, task.batch_size)
    _consume(batches, task.warmup_images - len(first))
    cpu, workers_cpu, began = _cpu_s(), _workers_cpu_s(), time.perf_counter()
    num_images = _consume(batches, task.num_images)
    wall_s = time.perf_counter() - began
    own_cpu_s = _cpu_s() - cpu
    return {
        "images_per_s": num_images / wall_s,
        "num_images": num_images,
        "wall_s": wall_s,
        "own_cpu_s": own_cpu_s,  # without worker processes
        "all_cpu_s": own_cpu_s + _workers_cpu_s() - workers_cpu,  # with those that were there all the time
        "first_batch_s": first_batch_s,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _consume(batches: Iterator[Sized], num_images: int) -> int:
    """Take batches until they make up that many images, holding one at a time."""
    done = 0
    while done < num_images:
        done += len(next(batches))
    return done


def check(batch: Sized, contender: Contender, batch_size: int) -> None:
    """Stop unless the contender does the work that it is measured for."""
    if len(batch) != batch_size:
        raise SystemExit(f"{contender.name}: a batch of {len(batch)}, asked for {batch_size}")
    if contender.output == "pixels":
        return
    images: Any = batch
    found = (str(images.dtype).removeprefix("torch."), tuple(images.shape[1:]))
    if found != (contender.output, (3, CROP, CROP)):
        raise SystemExit(f"{contender.name}: batches of {found}, expected {(contender.output, (3, CROP, CROP))}")
    if contender.output == "float32":
        mean, std = float(images.mean()), float(images.std())
        if not (abs(mean) < 1.5 and 0.3 < std < 3) or not math.isfinite(mean):
            raise SystemExit(f"{contender.name}: mean {mean:.2f} and standard deviation {std:.2f} are not normalised images")


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _workers_cpu_s() -> float:
    """What the living worker processes have used, if the system reports it."""
    ticks = 0
    for process in multiprocessing.active_children():
        try:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
