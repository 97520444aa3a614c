"""Run the script's own code in a fork of its process, for a limited time: that code lives in no other process.

A fork measures CPU time, which other processes disturb less than time.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from datapipe.core.waiting import reported_wait

_GRACE_S = 15.0  # beyond the time that is given: for imports, and for what is under way
_MIN_PAIRS, _MAX_PAIRS = 5, 40  # of batches, made in both ways
_FLOOR = 0.05  # relative error: batches of one short run vary less than runs do
_DIED = {"reason": "the process in which it was tried died"}


def told_by_fork(measure: Callable[[], dict[str, Any]], *, seconds: float) -> dict[str, Any]:
    """Return what `measure()` returns in a fork, or {"reason": why it is not known}.

    Waits for at most `seconds` and some more, then kills the fork and the processes that it started. Their output is dropped.
    In the fork, torch has one thread.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiving)
        _run_child(measure, sending)
    with suppress(OSError):  # the child does so too: whoever comes first
        os.setpgid(child, child)
    os.close(sending)
    try:
        with reported_wait("a trial of the script's own code", f"after its end, for about {seconds:.0f} s"):
            told = _read(receiving, until_s=time.monotonic() + seconds + _GRACE_S)
    finally:
        os.close(receiving)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if told is None:
        return {"reason": "there was no time left to try it"}
    try:
        found: dict[str, Any] = json.loads(told)
    except ValueError:
        found = _DIED
    return found


def _run_child(measure: Callable[[], dict[str, Any]], sending: int) -> None:
    found: dict[str, Any] = _DIED
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # what the script's code prints was printed by the script
            os.dup2(null, descriptor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch

            torch.set_num_threads(1)  # as in a worker; the parent's threads are not here
            found = measure()
    except BaseException as exc:
        found = {"reason": f"its code failed when it was tried ({type(exc).__name__}: {exc})"[:300]}
    finally:
        os.write(sending, json.dumps(found).encode())
        os._exit(0)


def _read(receiving: int, *, until_s: float) -> bytes | None:
    told = b""
    while (left_s := until_s - time.monotonic()) > 0:
        if wait([receiving], left_s):
            part = os.read(receiving, 1 << 16)
            if not part:
                return told
            told += part
    return None


Make = Callable[[np.ndarray[Any, Any]], Any]  # a batch, from the keys of its samples


def cpu_ratio(new: Make, old: Make, loader: Any, *, seconds: float, max_batch: int) -> dict[str, Any]:
    """Return {"ratio": CPU time of `new` over that of `old`, "spread", "num_samples"}.

    Both make the same batches of random samples of the loader's Dataset in turn, of at most `max_batch` samples.
    """
    size, draw = min(max_batch, batch_size_of(loader) or max_batch), np.random.default_rng(0)

    def keys_of_batch() -> np.ndarray[Any, Any]:
        return draw.integers(len(loader.dataset), size=size)

    def cpu_s(make: Make, keys: np.ndarray[Any, Any]) -> float:
        started_s = time.process_time()
        make(keys)
        return time.process_time() - started_s

    until_s = time.monotonic() + seconds
    for make in (new, old, new):  # what is done once: imports, and signatures of operations that are executed in both ways
        make(keys_of_batch())
    ratios: list[float] = []
    while len(ratios) < _MIN_PAIRS or (time.monotonic() < until_s and len(ratios) < _MAX_PAIRS):
        keys = keys_of_batch()
        times = {make: cpu_s(make, keys) for make in ((new, old) if len(ratios) % 2 else (old, new))}
        ratios.append(times[new] / max(1e-9, times[old]))
    return {"ratio": statistics.median(ratios), "spread": spread_of(ratios), "num_samples": len(ratios) * size}


def spread_of(values: Sequence[float]) -> float:
    """Return the relative standard error of a mean, at least 5%."""
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / len(values) ** 0.5 / mean if mean and len(values) > 1 else 0.0
    return max(_FLOOR, error)


def batch_size_of(loader: Any) -> int | None:
    """Return the size of a loader's batches; None: unknown."""
    return loader.batch_size or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
