"""The ceilings of a training, from its recording: what each part of it could bring if nothing else took time. Pure."""

from __future__ import annotations

import numpy as np

from datapipe.analysis.judge.analysis import Analysis, steady_profiles
from datapipe.analysis.judge.breakdown import OWN
from datapipe.analysis.predict.replay import Delivery
from datapipe.analysis.predict.workload import Workload
from datapipe.core.printable import counted
from datapipe.diagnostics.ceilings.roofline import Ceiling, Roofline, in_order, shares_in_words, time_in_words

_SELDOM = 0.01  # of the looks at the lock: a ceiling of fewer means nothing
_LITTLE = 0.01  # of what is read


def roofline_of_training(found: Analysis, workload: Workload) -> Roofline | None:
    """Return the ceilings of one rank in samples per second; None if the size of its batches or its steps is not known.

    `workload`: of the judged loader, which the steps are those of.
    """
    figures, size = found.of_loader, batch_size_of(found)
    if not size or not figures.step_s or figures.data_s is None:
        return None
    work_s = figures.step_s - figures.data_s
    ceilings = [
        _making(found, workload, size),
        _cores(found, workload, size),
        _handing_over(workload, size),
        _lock(found, size / figures.step_s),
        None if not figures.copy_s else _of("copy to the device", size, figures.copy_s, "of the loop's copies"),
        _storage(found),
    ]
    return Roofline(
        measured_per_s=size / figures.step_s,
        ceilings=in_order(ceilings),
        demand_per_s=size / work_s if work_s > 0 else None,
    )


def batch_size_of(found: Analysis) -> float | None:
    """Return the samples of a batch of the judged loader; None: unknown."""
    if found.loader is not None and found.loader.batch_size:
        return found.loader.batch_size
    nums = [one.made.num_samples for one in found.profiles if one.made.num_samples]
    return float(np.mean(nums)) if nums else None


def _of(part: str, size: float, batch_s: float, why: str, *, times: float = 1.0) -> Ceiling | None:
    """Return the ceiling of a part that takes so long for a batch, and of which there are so many."""
    return Ceiling(part=part, per_s=times * size / batch_s, why=f"{time_in_words(batch_s / size)} {why}") if batch_s > 0 else None


def _making(found: Analysis, workload: Workload, size: float) -> Ceiling | None:
    num, made_s = workload.setup.num_workers, float(workload.production_s.mean())
    stages = [] if found.attribution is None else found.attribution.stages
    parts = dict[str, float]()
    for one in stages:
        if one.name in ("read", "network", "decode", OWN, "transform", "augment", "collate"):
            parts[one.name] = parts.get(one.name, 0.0) + (one.work_share or 0.0)
    if not num:
        return _of("making batches", size, made_s, f"in the training process{shares_in_words(parts)}")
    who = "thread" if workload.setup.delivery is Delivery.SHARED else "worker"
    return _of(f"{who}s", size, made_s, f"of {'one of ' * (num > 1)}{counted(num, who)}{shares_in_words(parts)}", times=num)


def _cores(found: Analysis, workload: Workload, size: float) -> Ceiling | None:
    """Threads of the process itself, as datapipe's loader has them, are part of the CPU time of its steps."""
    cores, cpu_s = workload.setup.num_cores, found.steps["cpu_s"][~np.isnan(found.steps["cpu_s"])]
    if cores is None or not len(cpu_s):
        return None
    own_s = float(cpu_s.mean())
    workers_s = 0.0
    if workload.production_cpu_s is not None:
        own_s, workers_s = workload.host_cpu_s, float(workload.production_cpu_s.mean())
    parts = shares_in_words({"workers": workers_s, "the training process": own_s}) if workers_s else ""
    return _of("cores", size, own_s + workers_s, f"of CPU time on {counted(int(cores), 'core')}{parts}", times=cores)


def _handing_over(workload: Workload, size: float) -> Ceiling | None:
    if not workload.setup.num_workers:
        return None
    return _of("handing over", size, float(workload.delivery_s.mean()), "of the training process for a batch that is ready")


def _lock(found: Analysis, per_s: float) -> Ceiling | None:
    lock = found.process.lock
    if lock is None or lock.late_share < _SELDOM:
        return None
    return Ceiling(part="Python's lock", per_s=per_s / lock.late_share, why=f"taken {lock.late_share:.0%} of the time")


def _storage(found: Analysis) -> Ceiling | None:
    """Say how much of what was read came from storage: its rate alone is not known from a run."""
    counters = [one.made.counters for one in steady_profiles(found)]
    known = [(one.read_nbytes, one.storage_nbytes) for one in counters if one.read_nbytes and one.storage_nbytes is not None]
    if not known:
        return None
    read, stored = (float(np.sum(column)) for column in zip(*known, strict=True))
    if stored < _LITTLE * read:
        return Ceiling(part="storage", per_s=None, why="what was read lay in memory")
    why = f"{min(1.0, stored / read):.0%} of what was read came from it; `datapipe bench --ceilings` measures its rate"
    return Ceiling(part="storage", per_s=None, why=why)
