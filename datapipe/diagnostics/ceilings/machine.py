"""How fast this machine is by itself: copying memory, reading files that are not in memory, copying to a device."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from datapipe.kernel.accelerators import synchronize

_BLOCK_NBYTES = 1 << 20
_MEMORY_NBYTES = 1 << 26  # of each thread: more than its share of any cache
_MOST_NBYTES = 1 << 31  # of the files that are read


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
