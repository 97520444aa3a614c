"""Try deferred decoding on a Dataset of the script's own: in a fork of the script's process, when its measurement ends.

Nobody else can run that code: it lives in the script's process alone. The fork reads samples as a worker of torch's would,
batch by batch with deferral and without, in turn, and measures CPU time, which other processes disturb less than time.
"""

from __future__ import annotations

import copy
import json
import os
import select
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

_MAX_BATCH = 32  # samples
_MIN_PAIRS, _MAX_PAIRS = 5, 40  # of batches, with deferral and without
_FLOOR = 0.05  # relative error: batches of one short run vary less than runs do
_GRACE_S = 15.0  # beyond the time that is given: for imports, and for the pair that is under way


def held_for_trial(loader: Any) -> Any | str:
    """Return what the trial needs of a loader, without its workers; or why it cannot be tried."""
    from torch.utils.data import IterableDataset

    if not hasattr(os, "fork"):
        return "this system cannot fork a process, in which its code would be tried"
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return f"{type(loader.dataset).__qualname__} is not read by keys, batch by batch"
    context = getattr(loader, "multiprocessing_context", None)
    if loader.num_workers and context is not None and context.get_start_method() != "fork":
        return f"its workers start by {context.get_start_method()}, and the trial runs in a fork"
    held = copy.copy(loader)
    held.__dict__["_iterator"] = None  # workers that persist end as without a trial
    return held


def try_deferral(loader: Any, *, seconds: float) -> dict[str, Any]:
    """Return {"ratio": CPU time with deferral over without, "spread", "num_samples"}, or {"reason": why it is not known}.

    `loader`: what `held_for_trial` returned. Forks, and waits for the child for at most `seconds` and some more.
    """
    if "PIL.Image" not in sys.modules:
        return {"reason": f"{type(loader.dataset).__qualname__} opens no images by Pillow"}
    return forked(lambda: _measured(loader, seconds=seconds), seconds=seconds)


def forked(measure: Callable[[], dict[str, Any]], *, seconds: float) -> dict[str, Any]:
    """Return what `measure` returns in a fork of this process, or {"reason": why it is not known}.

    Waits for the child for at most `seconds` and some more.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiving)
        _run_child(measure, sending)
    os.close(sending)
    try:
        told = _read(receiving, until_s=time.monotonic() + seconds + _GRACE_S)
    finally:
        os.close(receiving)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if told is None:
        return {"reason": "there was no time left to try it"}
    try:
        found: dict[str, Any] = json.loads(told)
    except ValueError:
        found = {"reason": "the process in which it was tried died"}
    return found


def _run_child(measure: Callable[[], dict[str, Any]], sending: int) -> None:
    found: dict[str, Any] = {"reason": "the process in which it was tried died"}
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # what the script's code prints was printed by the script
            os.dup2(null, descriptor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = measure()
    except BaseException as exc:
        found = {"reason": f"its code failed when it was tried ({type(exc).__name__}: {exc})"[:300]}
    finally:
        os.write(sending, json.dumps(found).encode())
        os._exit(0)


def _read(receiving: int, *, until_s: float) -> bytes | None:
    told = b""
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([receiving], [], [], left_s)[0]:
            part = os.read(receiving, 1 << 16)
            if not part:
                return told
            told += part
    return None


def _measured(loader: Any, *, seconds: float) -> dict[str, Any]:
    import torch
    import torch.utils.data
    from torch.utils.data._utils import worker

    from datapipe.adapt import from_torch
    from datapipe.adapt.deferral.dataset import BatchRequest, DeferringDataset
    from datapipe.adapt.deferral.reports import DeliveringCollate
    from datapipe.adapt.torch_loader import TorchLoader

    torch.set_num_threads(1)  # as in a worker; the parent's threads are not here
    taken = from_torch(loader, device="cpu")
    dataset = taken.read_dataset if isinstance(taken, TorchLoader) else None
    if not isinstance(dataset, DeferringDataset) or not dataset.defers:
        return {"reason": "from_torch does not defer its images"}
    if loader.num_workers:
        worker._worker_info = worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=loader.dataset)
    if loader.worker_init_fn is not None and loader.num_workers:
        loader.worker_init_fn(0)
    size = min(_MAX_BATCH, int(loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or _MAX_BATCH))
    draw = np.random.default_rng(0)
    plain = DeferringDataset(loader.dataset, defers=False)
    collate = DeliveringCollate(loader.collate_fn)

    def with_deferral(keys: list[int]) -> Any:
        return collate(dataset.__getitems__(BatchRequest(keys, keys)))

    def without(keys: list[int]) -> Any:
        return loader.collate_fn(plain.__getitems__(BatchRequest(keys, keys)))

    def cpu_s(make: Any, keys: list[int]) -> float:
        started_s = time.process_time()
        make(keys)
        return time.process_time() - started_s

    def keys_of_batch() -> list[int]:
        return draw.integers(len(loader.dataset), size=size).tolist()  # type: ignore[no-any-return]

    until_s = time.monotonic() + seconds
    for make in (with_deferral, without, with_deferral):  # signatures are compared both ways when they are first seen
        make(keys_of_batch())
    ratios: list[float] = []
    while len(ratios) < _MIN_PAIRS or (time.monotonic() < until_s and len(ratios) < _MAX_PAIRS):
        keys = keys_of_batch()
        order = (with_deferral, without) if len(ratios) % 2 else (without, with_deferral)
        times = {make: cpu_s(make, keys) for make in order}
        ratios.append(times[with_deferral] / max(1e-9, times[without]))
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 / statistics.mean(ratios)
    return {"ratio": statistics.median(ratios), "spread": max(_FLOOR, error), "num_samples": len(ratios) * size}
