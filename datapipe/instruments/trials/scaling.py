"""Measure whether workers wait for each other: the same Dataset, read by several numbers of processes at once.

Behind a lock, or a disk that is saturated, a batch takes longer the more workers there are. One run with one number of workers
does not show that. So when the measurement ends, forks of the script's process make batches for a moment.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.instruments.torch_stages.timing import between, thread_counters
from datapipe.instruments.trials.forking import batch_size_of, spread_of, told_by_fork

_MIN_BATCHES = 2  # of each process, besides the one that opens files


def try_scaling(loader: Any, nums: Sequence[int], *, seconds: float) -> dict[str, Any]:
    """Return {"levels": {number of processes: {"stall_s", "cpu_s", "spread"}}}, or {"reason": why it is not known}.

    `stall_s` and `cpu_s` are means per batch: neither on a core nor waiting for one, and on a core. `spread` is the relative
    standard error of `stall_s`. `loader`: what `dataset.held_for_trial` returned.
    """
    return told_by_fork(lambda: {"levels": {str(num): _level(loader, num, seconds / len(nums)) for num in nums}}, seconds=seconds)


def _level(loader: Any, num: int, seconds: float) -> dict[str, float]:
    """Return the means over batches that `num` processes make at once."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(num)
    makers = []
    for worker in range(num):
        receiving, sending = os.pipe()
        if not os.fork():
            os.close(receiving)
            _run_maker(loader, worker, num, seconds, barrier, sending)
        os.close(sending)
        makers.append(receiving)
    stalls, cpus = list[float](), list[float]()
    for receiving in makers:
        with open(receiving, "rb") as file:
            told: Any = json.loads(file.read() or b"null")
        if not isinstance(told, list):
            raise RuntimeError(str(told or "a worker died"))
        stalls += [max(0.0, wall - cpu - queued) for wall, cpu, queued in told]
        cpus += [cpu for _, cpu, _ in told]
    for _ in makers:
        os.wait()
    return {"stall_s": statistics.fmean(stalls), "cpu_s": statistics.fmean(cpus), "spread": spread_of(stalls)}


def _run_maker(loader: Any, worker: int, num: int, seconds: float, barrier: Any, sending: int) -> None:
    """Make batches for `seconds`, as a worker of torch's does; tell (wall, CPU, waiting for a core) of each."""
    told: Any = None
    try:
        told = _batch_times(loader, worker, num, seconds, barrier)
    except BaseException as exc:
        barrier.abort()
        told = f"{type(exc).__name__}: {exc}"[:200]
    finally:
        with open(sending, "wb") as file:
            file.write(json.dumps(told).encode())
        os._exit(0)


def _batch_times(loader: Any, worker: int, num: int, seconds: float, barrier: Any) -> list[tuple[float, float, float]]:
    from torch.utils.data._utils import worker as torch_worker
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    torch_worker._worker_info = torch_worker.WorkerInfo(id=worker, num_workers=num, seed=worker, dataset=loader.dataset)
    if loader.worker_init_fn is not None:
        loader.worker_init_fn(worker)
    fetcher: Any = _MapDatasetFetcher(loader.dataset, True, loader.collate_fn, False)
    size = batch_size_of(loader) or 1
    draw, counters = np.random.default_rng(worker), thread_counters()
    times = list[tuple[float, float, float]]()
    fetcher.fetch(draw.integers(len(loader.dataset), size=size).tolist())  # the first one opens files
    # Every batch from here on counts: where one process keeps taking a lock first, the others wait in their first batches.
    barrier.wait(timeout=30)
    until_s = time.perf_counter() + seconds
    while len(times) < _MIN_BATCHES or time.perf_counter() < until_s:
        keys = draw.integers(len(loader.dataset), size=size).tolist()
        before, started_s, started_cpu_s = counters.before(with_reading=False), time.perf_counter(), time.thread_time()
        batch = fetcher.fetch(keys)
        wall_s, cpu_s = time.perf_counter() - started_s, time.thread_time() - started_cpu_s
        times.append((wall_s, cpu_s, (between(before, counters.after(with_reading=False)).queued_ns or 0) * 1e-9))
        del batch
    return times
