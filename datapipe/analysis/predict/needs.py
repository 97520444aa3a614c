"""Estimate how much faster a stage must be for the loop to stop waiting, by replays with less of that stage.

This bounds the effect of any remedy for that stage, whether or not one is known. For what can only be done by hand there is
advice: what usually makes such a stage faster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.analysis.judge.fault import Fault, StageOfWait
from datapipe.analysis.judge.verdict import MODERATE
from datapipe.analysis.predict.replay import Delivery, replay
from datapipe.analysis.predict.workload import Change, Workload, course_of
from datapipe.instruments.torch_stages.profile import BatchProfile

_DELIVERY = ("transfer", "pin", "sampler", "lock")  # the training process's own work for a batch
_NOT_WORK = ("startup", "idle", "cores")  # stages that cannot be made faster
_MOST = 3  # stages to report
_LEAST = 0.05  # share of waiting needed to be reported
_NUM_STEPS, _NUM_SETTLING = 1000, 300
_FASTEST = 64.0  # beyond that a stage counts as free
_NUM_HALVINGS = 7
_SMALL = 8 << 10  # bytes of a sample below which fixed costs per sample prevail
_UINT8 = "a quarter of the bytes if the batch is float32"
_OF_VIDEOS = (
    "read the videos by datapipe.Clips in place of {}: it decodes a stretch once for several clips (docs/video.md); its "
    "gain was not measured, as only the Dataset's code knows which frames a clip has"
)
_ALWAYS = {
    "pin": f"return uint8 from __getitem__ and convert on the device: {_UINT8}",
    "copy": f"copy uint8 to the device and convert there: {_UINT8}",
    "transform": "run it on the device over the whole batch, or use a form of it that works on tensors",
    "augment": "run it on the device over the whole batch",
    "dataset": "do it once and store the result (datapipe convert --resize), or on the device over the whole batch",
    "lock": "move what that thread does to a process of its own, or to code that gives up the lock while it computes",
}


@dataclass(frozen=True, slots=True)
class Need:
    """One stage, and the effect of making it faster."""

    stage: str  # as in `fault.MEANINGS`
    name: str | None  # of the transform
    where: str | None  # the user's code: file:line and its name
    # The step if the stage took no time, the limit of any remedy for it. None: a replay of the run does not wait as the run did.
    step_s: float | None
    times_faster: float | None  # for the loop to wait less than 5%; None: speeding up this stage alone is not enough
    gain: float | None = None  # the most that any remedy for this stage can gain, as a share of the step
    advice: str | None = None  # what usually makes it faster


@dataclass(frozen=True, slots=True)
class LoaderSituation:
    """Facts about a loader on which the advice depends."""

    num_workers: int = 0
    sample_nbytes: float | None = None  # mean size of a sample in a batch; None: unknown
    has_own_sampler: bool = False
    workers_wait: bool = False  # for each other
    video_library: str | None = None  # by which the Dataset's own code decodes videos


def sample_nbytes_of(profiles: Sequence[BatchProfile]) -> float | None:
    """Return the mean size of a sample in these batches; None: unknown."""
    sizes = [one.made.nbytes / one.made.num_samples for one in profiles if one.made.nbytes is not None and one.made.num_samples]
    return float(np.mean(sizes)) if sizes else None


def needs_of(
    workload: Workload,
    fault: Fault,
    places: Mapping[str, str],
    *,
    situation: LoaderSituation | None = None,
    scale: float = 1.0,
) -> list[Need]:
    """Return the stages that the loop waits for most, how much faster each must be, and what may help.

    `places`: the user's code by "dataset", "collate", "sampler" and names of transforms. `scale`: measured over replayed
    step, by which times are multiplied.
    """
    works = {stage: value for stage in fault.stages if (value := stage.work_share) and stage.name not in _NOT_WORK}
    made = sum(value for stage, value in works.items() if stage.name not in _DELIVERY)
    blamed = sorted(fault.stages, key=lambda stage: -(stage.share or 0.0))
    chosen = [stage for stage in blamed if (stage.share or 0.0) >= _LEAST and stage.name not in _NOT_WORK]
    if not chosen:  # waiting for a core means waiting for the work of others
        chosen = sorted((stage for stage in works if stage.name not in _DELIVERY), key=lambda stage: -works[stage])[:1]
    if any(stage.name == "lock" for stage in chosen):  # what else delivers a batch waits for it too
        chosen = [stage for stage in chosen if stage.name not in _DELIVERY or stage.name == "lock"]
    needs = []
    now_s, starvation_now = _replayed(workload, 0.0, 1.0)
    is_replayed = starvation_now >= MODERATE
    for stage in chosen[:_MOST]:
        is_fixed = stage.name == "collate" and workload.setup.delivery is Delivery.SHARED  # datapipe's loader collates itself
        advice = None if is_fixed else advice_for(stage.name, situation or LoaderSituation())
        need = Need(stage.name, stage.transform, _place(stage, places), None, None, advice=advice)
        if is_replayed:
            part = None if stage.name in _DELIVERY else (stage.work_share or 0.0) / made if made else 0.0
            step_s, starvation = _replayed(workload, part, 0.0)
            times = _times_faster(workload, part) if starvation < MODERATE else None
            gain = max(0.0, 1 - step_s / now_s)
            need = dataclasses.replace(need, step_s=step_s * scale, times_faster=times, gain=gain)
        needs.append(need)
    return needs


def _times_faster(workload: Workload, part: float | None) -> float:
    """Return how many times faster a stage must be, if some speed of it is enough."""
    slow, fast = 1.0, _FASTEST
    for _ in range(_NUM_HALVINGS):
        middle = (slow * fast) ** 0.5
        if _replayed(workload, part, 1 / middle)[1] < MODERATE:
            fast = middle
        else:
            slow = middle
    return fast


def _replayed(workload: Workload, part: float | None, left: float) -> tuple[float, float]:
    """Return (step in seconds, starvation) with `left` of a stage that is `part` of making batches; None: of their delivery."""
    factor = 1.0 if part is None else max(1e-6, 1 - part * (1 - left))
    change = Change(production_factor=factor, delivery_factor=left if part is None else 1.0)
    course = course_of(workload, change, num_replicates=1, num_steps=_NUM_STEPS)
    found = replay(course, workload.setup, num_settling=_NUM_SETTLING)
    return float(found.step_s[0]), float(found.starvation[0])


def _place(stage: StageOfWait, places: Mapping[str, str]) -> str | None:
    return places.get("dataset" if stage.name in ("read", "decode") else stage.detail or stage.name)


def advice_for(stage: str, situation: LoaderSituation) -> str | None:
    """Return what to try for a stage at fault; None if there is no general advice."""
    is_small = situation.sample_nbytes is not None and situation.sample_nbytes < _SMALL
    match stage:
        case "sampler" if situation.has_own_sampler:
            return "draw the order of an epoch as one array (torch.randperm, torch.multinomial), and yield its values"
        case "sampler":
            return "return fewer, larger arrays per batch, and let go of a batch before asking for the next one"
        case "collate" if not situation.num_workers:
            return "collate in a worker (num_workers=1); make arrays of one shape in __getitem__, so that it is one torch.stack"
        case "collate":
            return "make arrays of one shape in __getitem__, so that collating is one torch.stack"
        case "transfer" if is_small:
            return "return fewer, larger arrays: each tensor of a batch costs a message and a file descriptor, whatever its size"
        case "transfer":
            return f"return uint8 from the workers and convert on the device: {_UINT8}"
        case "read" if situation.workers_wait:
            return "give each worker a file, connection or lock of its own; a saturated disk needs fewer bytes per sample"
        case "decode" if situation.video_library is not None:
            return _OF_VIDEOS.format(situation.video_library)
        case "read" | "decode" | "dataset" if is_small:
            return "fewer, larger reads: fetch a whole batch in __getitems__, or store many samples per file (datapipe convert)"
        case "read":
            return "keep the data on a faster disk, or in larger files that are read in order (datapipe convert)"
        case "decode":
            return "store images at about the size that is trained on (datapipe convert --resize)"
        case _:
            return _ALWAYS.get(stage)
