"""Measure a loader of datapipe's and the machine: what a sample costs of each part, and how much of it there is."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datapipe.core.environment import importing_as_here, num_usable_cores
from datapipe.core.printable import counted
from datapipe.diagnostics.ceilings.costs import Costs, costs_of
from datapipe.diagnostics.ceilings.lock_watch import watch
from datapipe.diagnostics.ceilings.roofline import HIGH, Ceiling, Roofline, in_order, shares_in_words, time_in_words
from datapipe.errors import LifecycleError
from datapipe.kernel.accelerators import synchronize
from datapipe.stores.location import is_url

_BLOCK_NBYTES = 1 << 20
_MEMORY_NBYTES = 1 << 26  # of each thread: more than its share of any cache
_MOST_NBYTES = 1 << 31  # of the files that are read


def roofline_of(
    loader: Any, path: str, watched: Sequence[str], *, least_samples: int, demand_per_s: float | None = None
) -> Roofline:
    """Measure a loader over what lies at `path`, at least that many samples of it, and the machine.

    `watched`: the command of a process that iterates the same, and whose lock `lock_watch.watch` can watch. `demand_per_s`: what
    a model takes, in samples.
    """
    costs = costs_of(loader, least_samples=least_samples)
    threads, device = max(1, loader.num_workers), loader.device
    ceilings = [
        _cores(costs, num_usable_cores()),
        _disk(costs, path, threads),
        _lock(watched),
        _moved("memory", costs.read_nbytes + costs.batch_nbytes, memory_rate(threads), "what is read, and the batch"),
        _device(costs, device),
    ]
    return Roofline(measured_per_s=1 / costs.wall_s, ceilings=in_order(ceilings), demand_per_s=demand_per_s)


def _cores(costs: Costs, cores: int) -> Ceiling:
    why = f"{time_in_words(costs.cpu_s)} of CPU time on {counted(cores, 'core')}{shares_in_words(costs.stage_s)}"
    return Ceiling(part="cores", per_s=cores / costs.cpu_s, why=why)


def _disk(costs: Costs, path: str, threads: int) -> Ceiling:
    if is_url(path):
        return Ceiling(part="storage", per_s=None, why="an object store: `datapipe bench` measures it cold and warm")
    if not costs.read_nbytes:
        return Ceiling(part="storage", per_s=None, why="this loader does not say how many bytes it reads")
    rate = disk_rate(Path(path), threads)
    if rate is None:
        return Ceiling(part="storage", per_s=None, why=f"no bytes lie at {path}")
    return _moved("storage", costs.read_nbytes, rate, "while the files are not in memory")


def _lock(watched: Sequence[str]) -> Ceiling:
    """Watch another process that does the same: a process cannot see its own lock without taking it."""
    try:
        (span,) = watch(list(watched), importing_as_here(), cwd=Path.cwd())
    except LifecycleError as exc:
        return Ceiling(part="Python's lock", per_s=None, why=str(exc))
    held_s = span["held"] * span["wall_s"]
    return Ceiling(part="Python's lock", per_s=1 / max(held_s, 1 / HIGH), why=f"held for {time_in_words(held_s)}")


def _device(costs: Costs, device: torch.device) -> Ceiling | None:
    rate = copy_rate(device)
    return None if rate is None else _moved(f"copy to {device}", costs.batch_nbytes, rate, "the batch")


def _moved(part: str, nbytes: float, rate: float, what: str) -> Ceiling:
    return Ceiling(part=part, per_s=rate / nbytes, why=f"{nbytes / 1e3:,.0f} kB at {rate / 1e9:.3g} GB/s: {what}")


def memory_rate(num_threads: int, *, seconds: float = 0.5) -> float:
    """Return the bytes per second that threads together copy from memory to memory."""
    buffers = [(np.zeros(_MEMORY_NBYTES, np.uint8), np.ones(_MEMORY_NBYTES, np.uint8)) for _ in range(num_threads)]

    def copy(number: int) -> int:
        into, source = buffers[number]
        np.copyto(into, source)
        return into.nbytes

    return _rate(copy, num_threads, seconds)


def copy_rate(device: torch.device, *, seconds: float = 0.5) -> float | None:
    """Return the bytes per second that are copied from pinned memory to a device; None for the CPU."""
    if device.type == "cpu":
        return None
    source = torch.zeros(_MEMORY_NBYTES, dtype=torch.uint8).pin_memory()
    into = torch.empty_like(source, device=device)

    def copy(_: int) -> int:
        into.copy_(source, non_blocking=True)
        synchronize(device)
        return source.numel()

    copy(0)
    return _rate(copy, 1, seconds)


def disk_rate(path: Path, num_threads: int, *, seconds: float = 2.0) -> float | None:
    """Return the bytes per second that threads together read from the files at a path, once the kernel has forgotten them.

    None if there are no bytes. Files that another process has mapped stay in memory, and are read from there.
    """
    rng = random.Random(0)
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    rng.shuffle(files)
    blocks: list[tuple[Path, int]] = []
    for file in files:
        if len(blocks) * _BLOCK_NBYTES >= _MOST_NBYTES:
            break
        blocks += [(file, start) for start in range(0, file.stat().st_size, _BLOCK_NBYTES)]
    if not blocks:
        return None
    left = iter(blocks[:0])
    lock = threading.Lock()

    def read(_: int) -> int:
        nonlocal left
        with lock:
            block = next(left, None)
            if block is None:
                _forget({file for file, _ in blocks})
                left = iter(blocks)
                block = next(left)
        descriptor = os.open(block[0], os.O_RDONLY)
        try:
            return len(os.pread(descriptor, _BLOCK_NBYTES, block[1]))
        finally:
            os.close(descriptor)

    return _rate(read, num_threads, seconds)


def _forget(files: set[Path]) -> None:
    """Ask the kernel to drop what it keeps of the files in memory."""
    for file in files:
        with contextlib.suppress(OSError):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _rate(work: Callable[[int], int], num_threads: int, seconds: float) -> float:
    """Return the sum per second of what threads return, each of which calls `work` with its number again and again."""
    started_s = time.perf_counter()

    def run(number: int) -> int:
        done = 0
        while time.perf_counter() < started_s + seconds:
            done += work(number)
        return done

    with ThreadPoolExecutor(num_threads) as threads:
        done = sum(threads.map(run, range(num_threads)))
    return done / (time.perf_counter() - started_s)
