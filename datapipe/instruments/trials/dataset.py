"""Try remedies on a Dataset of the script's own: in forks of the script's process, when its measurement ends.

Nobody else can run that code: it lives in the script's process alone. Deferred decoding is tried here: a fork reads samples as a
worker of torch's would, batch by batch with deferral and without.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datapipe.core.environment import is_of_datapipe
from datapipe.instruments.attach.ours import complain
from datapipe.instruments.torch_stages.profile import Making
from datapipe.instruments.trials.choosing import mostly_waits, waiting_share, worker_counts
from datapipe.instruments.trials.forking import batch_size_of, cpu_ratio, told_by_fork
from datapipe.instruments.trials.sample import why_no_files
from datapipe.instruments.trials.scaling import try_scaling

_MAX_BATCH = 32  # samples
_MAX_ROWS = 1024  # of a batch
_MAX_CLIPS = 8  # of a batch: several of them make up visits
_WAITS_IN_WORKERS = 0.1  # share of the time to make a batch: less waiting does not decide how workers scale
_MAX_LEVELS = 3  # numbers of workers that are tried besides the present one


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


def try_dataset(held: Any | str, made: Sequence[Making], *, cores: int, seconds: float) -> dict[str, Any]:
    """Return "deferral" and "scaling" of a `recorded.TrialSource`: what each trial found, which takes about `seconds`.

    `held`: what `held_for_trial` returned. `made`: the measured batches. What fails is reported to the user, and left out.
    """
    trials: dict[str, Callable[[], dict[str, Any] | None]] = {
        "deferral": lambda: _tried_batches(held, seconds),
        "scaling": lambda: _tried_scaling(held, made, cores, seconds),
    }
    found = {}
    for name, attempt in trials.items():
        try:
            found[name] = {"reason": held} if isinstance(held, str) else attempt()
        except Exception as exc:
            complain(f"a trial of the Dataset failed ({name})", exc)
    return found


def _tried_batches(held: Any, seconds: float) -> dict[str, Any] | None:
    """Return what whole batches or deferred decoding would gain; None for a Dataset that datapipe reads itself."""
    if why_no_files(held.dataset) is None or is_of_datapipe(held.dataset):
        return None
    return try_clips(held, seconds=seconds) or try_rows(held, seconds=seconds) or try_deferral(held, seconds=seconds)


def _tried_scaling(held: Any, made: Sequence[Making], cores: int, seconds: float) -> dict[str, Any] | None:
    """Return how batches wait with other numbers of workers; None if waiting is a small part of making them."""
    if not made or waiting_share(made) < _WAITS_IN_WORKERS:
        return None
    now = int(held.num_workers)
    nums = worker_counts(now, cores, waits=mostly_waits(made))
    return try_scaling(held, sorted({max(1, now), *nums[-_MAX_LEVELS:]}), seconds=seconds)


def try_clips(loader: Any, *, seconds: float) -> dict[str, Any]:
    """Return {"clips": `cpu_ratio` of `from_torch`'s clips over the Dataset, or the reason}; {} for others than LeRobot's.

    Forks, and waits for the child for at most `seconds` and some more.
    """
    from datapipe.datasets import episode_source

    if episode_source(loader.dataset) is None:
        return {}
    return {"clips": told_by_fork(lambda: _measured_clips(loader, seconds=seconds), seconds=seconds)}


def _measured_clips(loader: Any, *, seconds: float) -> dict[str, Any]:
    from datapipe.adapt.episodes import clip_batches, compared_episodes

    seen = compared_episodes(loader)
    if isinstance(seen, str):
        return {"reason": seen}
    data, as_collated = seen
    num = data.settings.per_visit
    batches = clip_batches(as_collated, min(_MAX_CLIPS, batch_size_of(loader) or _MAX_CLIPS))
    draw = np.random.default_rng(0)

    def by_visits(keys: np.ndarray[Any, Any]) -> Any:
        return [next(batches) for _ in range(num)]  # after which the visits of the first one are used up

    def by_lerobot(keys: np.ndarray[Any, Any]) -> Any:
        chosen = draw.integers(len(loader.dataset), size=(num, len(keys)))
        return [loader.collate_fn([loader.dataset[key] for key in of_batch]) for of_batch in chosen.tolist()]

    return cpu_ratio(by_visits, by_lerobot, loader, seconds=seconds, max_batch=_MAX_CLIPS)


def try_rows(loader: Any, *, seconds: float) -> dict[str, Any]:
    """Return {"rows": `cpu_ratio` of gathered batches over the Dataset's}; {} if `from_torch` does not gather its batches.

    Forks, and waits for the child for at most `seconds` and some more.
    """
    from datapipe.adapt.whole_batches import gathered_rows

    dataset = loader.dataset
    rows = None if not hasattr(dataset, "__len__") or not len(dataset) else gathered_rows(loader)
    if rows is None:
        return {}

    def by_rows(keys: np.ndarray[Any, Any]) -> Any:
        read = getattr(dataset, "__getitems__", None)
        return loader.collate_fn(read(keys.tolist()) if read is not None else [dataset[key] for key in keys.tolist()])

    told = told_by_fork(
        lambda: cpu_ratio(rows.__getitems__, by_rows, loader, seconds=seconds, max_batch=_MAX_ROWS), seconds=seconds
    )
    return {"rows": told} if "ratio" in told else {}


def try_deferral(loader: Any, *, seconds: float) -> dict[str, Any]:
    """Return {"ratio": CPU time with deferral over without, "spread", "num_samples"}, or {"reason": why it is not known}.

    `loader`: what `held_for_trial` returned. Forks, and waits for the child for at most `seconds` and some more.
    """
    if "PIL.Image" not in sys.modules:
        return {"reason": f"{type(loader.dataset).__qualname__} opens no images by Pillow"}
    return told_by_fork(lambda: _measured(loader, seconds=seconds), seconds=seconds)


def _measured(loader: Any, *, seconds: float) -> dict[str, Any]:
    from torch.utils.data._utils import worker

    from datapipe.adapt import from_torch
    from datapipe.adapt.torch_loader import TorchLoader
    from datapipe.deferral.dataset import DeferringDataset
    from datapipe.deferral.reports import DeliveringCollate
    from datapipe.deferral.requests import BatchRequest

    taken = from_torch(loader, device="cpu")
    dataset = taken.read_dataset if isinstance(taken, TorchLoader) else None
    if not isinstance(dataset, DeferringDataset) or not dataset.defers:
        return {"reason": "from_torch does not defer its images"}
    if loader.num_workers:
        worker._worker_info = worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=loader.dataset)
    if loader.worker_init_fn is not None and loader.num_workers:
        loader.worker_init_fn(0)
    plain = DeferringDataset(loader.dataset, defers=False)
    collate = DeliveringCollate(loader.collate_fn)

    def with_deferral(keys: np.ndarray[Any, Any]) -> Any:
        return collate(dataset.__getitems__(BatchRequest(keys.tolist(), keys.tolist())))

    def without(keys: np.ndarray[Any, Any]) -> Any:
        return loader.collate_fn(plain.__getitems__(BatchRequest(keys.tolist(), keys.tolist())))

    return cpu_ratio(with_deferral, without, loader, seconds=seconds, max_batch=_MAX_BATCH)
