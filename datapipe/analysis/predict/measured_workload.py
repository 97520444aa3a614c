"""The workload to replay, from what was measured of a loader and of the steps that used it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from datapipe.analysis.judge.analysis import Analysis, steady_profiles
from datapipe.analysis.judge.steady import MIN_STEPS
from datapipe.analysis.predict.replay import Delivery, Floats, Setup
from datapipe.analysis.predict.workload import Workload, workload_of
from datapipe.core.observe import Stage
from datapipe.instruments.measure.watching import LoaderFacts
from datapipe.instruments.torch_stages.profile import BatchProfile

MAKING = (Stage.PLAN, Stage.NETWORK, Stage.READ, Stage.DECODE, Stage.AUGMENT, Stage.COLLATE)  # stages that make a batch


def workload_from(found: Analysis) -> Workload | str:
    """Return the workload to replay, or why there is none."""
    loader = found.loader
    if loader is None:
        return "there was no training"
    cores = float(found.process.environment.get("cores") or 1)
    is_own = found.steps["loader"] == loader.key
    steps, others_s = found.steps[is_own].copy(), found.others_wait_s[is_own]
    steps["host_wait_s"] -= others_s  # to this loader, waiting for another one is the caller's own time
    steps["host_work_s"] += others_s
    floor_s = supply_s(found)
    if found.events and not found.profiles:
        made_s = _own_batches(found)
        setup = Setup(loader.num_workers or 0, max(1, loader.prefetch_factor or 1), Delivery.SHARED, cores)
        workload = workload_of(steps, setup, production_s=made_s, floor_s=floor_s)
    else:
        profiles = _whole_rounds(steady_profiles(found))
        workload = workload_of(
            steps,
            setup_of(loader, cores),
            production_s=_seconds(_making_ns(profile, is_crowded=(loader.num_workers or 0) + 1 > cores) for profile in profiles),
            production_cpu_s=_seconds(one.made.cpu_ns for one in profiles) if loader.num_workers else None,
            made_by=np.array([profile.made.worker for profile in profiles], np.int64) if loader.num_workers else None,
            delivery_s=_deliveries(profiles) if profiles else None,
            floor_s=floor_s,
            made_here_cpu_s=0.0 if loader.num_workers else _mean_s(one.made.cpu_ns for one in profiles),
            helpers_cpu_s=_mean_s(one.made.helpers_cpu_ns for one in profiles),
        )
    if workload is not None:
        return workload
    if found.profiles or found.events:
        return f"the steady state has fewer than {MIN_STEPS} steps; run longer"
    return "the time to make a batch is unknown, since the loader could not be inspected"


def supply_s(found: Analysis) -> float:
    """Return the seconds per batch that the workers of loaders need that are read in turn with the judged one."""
    slowest_s = 0.0
    for key in found.others:
        num_workers = found.process.loaders[key].num_workers
        made = [one.made.total_ns for one in found.process.profiles if one.loader == key]
        if made and num_workers:
            slowest_s = max(slowest_s, float(np.mean(made)) * 1e-9 / num_workers)
    return slowest_s


def setup_of(loader: LoaderFacts, cores: float) -> Setup:
    """Return the setup of a torch loader."""
    num = loader.num_workers or 0
    delivery = Delivery.COMPLETION if loader.in_order is False else Delivery.ROUND_ROBIN
    return Setup(num, max(1, num * (loader.prefetch_factor or 2)), delivery, cores)


def _seconds(values: Any) -> Floats:
    return np.array([max(0, value) for value in values], np.float64) * 1e-9


def _making_ns(profile: BatchProfile, *, is_crowded: bool) -> int:
    """Return the time to make a batch. `is_crowded`: more workers than cores; excludes time without a core, which replay adds."""
    made = profile.made
    is_left_out = is_crowded and made.worker is not None
    return made.total_ns - (made.counters.queued_ns or 0 if is_left_out else 0)


def _mean_s(values: Iterable[int]) -> float:
    found = _seconds(values)
    return float(found.mean()) if len(found) else 0.0


def _whole_rounds(profiles: list[BatchProfile]) -> list[BatchProfile]:
    """Return the profiles from the first worker's first batch on: each n-th is then of the same worker."""
    for place, profile in enumerate(profiles):
        if profile.made.worker in (None, 0):
            return profiles[place:]
    return profiles


def _deliveries(profiles: list[BatchProfile]) -> Floats:
    """Return the caller's own part of `next()` after a batch has arrived."""
    found = []
    for profile in profiles:
        if profile.pinned is not None:
            here_ns = profile.pinned.end_ns
        elif profile.moved is not None:
            here_ns = profile.moved.open_start_ns
        else:
            here_ns = profile.taken_ns
        found.append(profile.taken_ns - max(profile.asked_ns, here_ns))
    return _seconds(found)


def _own_batches(found: Analysis) -> Floats:
    """Return (b,) seconds that the threads of a datapipe loader spent on each batch, in total."""
    sums: dict[tuple[int, int], int] = {}
    ends = _pass_ends(found)
    for event in found.events:
        if event.stage in MAKING:
            of_pass = int(np.searchsorted(ends, event.start_ns))
            sums[of_pass, event.step] = sums.get((of_pass, event.step), 0) + event.duration_ns
    return _seconds(sums[key] for key in sorted(sums))


def _pass_ends(found: Analysis) -> np.ndarray[Any, Any]:
    steps = found.steps
    firsts = [steps["start_ns"][steps["pass_id"] == number].min() for number in np.unique(steps["pass_id"])]
    return np.array(sorted(firsts)[1:], np.int64)
