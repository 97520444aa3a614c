"""Try deferred decoding on a Dataset of the script's own: in a fork of the script's process, when its measurement ends.

Nobody else can run that code: it lives in the script's process alone. The fork reads samples as a worker of torch's would,
batch by batch with deferral and without, in turn, and measures CPU time, which other processes disturb less than time.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

from datapipe.diagnostics.trials.forking import told_by_fork

_MAX_BATCH = 32  # samples
_MIN_PAIRS, _MAX_PAIRS = 5, 40  # of batches, with deferral and without
_FLOOR = 0.05  # relative error: batches of one short run vary less than runs do


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
    return told_by_fork(lambda: _measured(loader, seconds=seconds), seconds=seconds)


def _measured(loader: Any, *, seconds: float) -> dict[str, Any]:
    import torch
    import torch.utils.data
    from torch.utils.data._utils import worker

    from datapipe.adapt import from_torch
    from datapipe.adapt.deferral.dataset import DeferringDataset
    from datapipe.adapt.deferral.reports import DeliveringCollate
    from datapipe.adapt.deferral.requests import BatchRequest
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
