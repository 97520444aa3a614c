"""Take over a torch loader of LeRobot's dataset: clips of its videos, as LeRobot's code and torch's collation would give them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler

from datapipe.adapt.loaders import (
    TorchDataLoader,
    has_collate_fn,
    is_in_order,
    is_plain_shuffle,
    length_of,
    rebuilt_loader,
    sampler_of,
)
from datapipe.datasets import EpisodeSource, episode_source
from datapipe.errors import DatapipeError, LifecycleError
from datapipe.kernel.pools import BatchMemory, SlabPool
from datapipe.kinds.clips.data import Clips
from datapipe.kinds.clips.decoding import clips_alone
from datapipe.kinds.loader import DataLoader

_COMPARED = 6  # samples, spread over all
_MOST_TASKS = 10  # of which a sample each is compared, too
_KEPT_BATCHES = 4  # whose memory waits to be used again


class FloatFrames:
    """Divides uint8 frames by 255, bit for bit as LeRobot does, in memory that is used again once nobody holds its batch.

    Thread-safe. A copy in another process has memory of its own.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[int, ...], BatchMemory] = {}  # by the shape of a row; two made at once do no harm

    def __reduce__(self) -> tuple[Any, ...]:
        return FloatFrames, ()

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        """Return frames (b, ..., 3, h, w) as float32 from 0 to 1, contiguous."""
        if not frames.is_cpu:
            return frames.contiguous() / torch.full((), 255.0, device=frames.device)  # by a number, GPUs would multiply
        out = self._leased(tuple(frames.shape))
        for row, found in zip(frames, out, strict=True):
            found.copy_(row).div_(255)  # a division that also transposes takes four times as long
        return out

    def _leased(self, shape: tuple[int, ...]) -> torch.Tensor:
        rows, *of_row = shape
        memory = self._memory.get(tuple(of_row))
        if memory is None:
            open_pool = functools.partial(SlabPool, max_free=_KEPT_BATCHES)
            memory = self._memory[tuple(of_row)] = BatchMemory(tuple(of_row), open_pool=open_pool)
        return memory.lease(rows, torch.float32)


@dataclass(frozen=True, slots=True)
class AsCollated:
    """Makes batches of clips what torch's default_collate makes of a LeRobotDataset's samples. A `batch_transform`.

    `names`: of the fields, in the dataset's order; `cameras`: those of them that are frames.
    """

    dataset: Any
    source: EpisodeSource
    names: tuple[str, ...]
    cameras: frozenset[str]
    dtype: torch.dtype  # of floating point numbers, to which Python's are converted
    num_compared: int  # samples that were made both ways, and are equal
    as_floats: FloatFrames = field(default_factory=FloatFrames)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch. Raises LifecycleError if the dataset reads something else by now."""
        now = episode_source(self.dataset)
        if now != self.source:
            what = now if isinstance(now, str) else f"it reads {now}, and read {self.source} when the loader was made"
            raise LifecycleError(f"LeRobotDataset has changed ({what}); make the loader (from_torch) after the change")
        return {name: self._field(name, batch[name]) for name in self.names}

    def _field(self, name: str, values: Any) -> Any:
        if not isinstance(values, torch.Tensor):
            return values
        if name not in self.cameras:
            of_integers = values.dtype if values.dtype is torch.bool else torch.int64
            return values.to(self.dtype if values.is_floating_point() else of_integers)
        if values.dim() == 5 and values.shape[1] == 1:
            values = values.squeeze(1)  # as LeRobot does where one moment is asked for
        is_finished = self.source.gives_uint8 or values.is_floating_point()  # as depth is
        return values.contiguous() if is_finished else self.as_floats(values)


def clip_batches(as_collated: AsCollated, size: int) -> Iterator[dict[str, Any]]:
    """Yield shuffled batches without end, made in the caller's thread when they are asked for, of `size` visits at a time."""
    data = clips_of(as_collated.source, lanes=size)
    settings: dict[str, Any] = {"seed": 0, "num_workers": 0, "device": "cpu", "batch_transform": as_collated}
    while True:
        yield from DataLoader(data, size, shuffle=True, drop_last=True, ranks=(0, 1), **settings)


def clips_of(source: EpisodeSource, **settings: Any) -> Clips:
    """Return the samples of a LeRobotDataset. `settings`: of `Clips`, such as `lanes`. Raises what opening them raises."""
    return Clips(
        source.root,
        delta_timestamps=source.delta_timestamps,
        episodes=source.episodes,
        tolerance_s=source.tolerance_s,
        **settings,
    )


def compared_episodes(loader: TorchDataLoader) -> tuple[Clips, AsCollated] | str:
    """Return the samples of a loader of LeRobot's dataset, and what makes batches of them the loader's; or why that is unknown.

    Samples are made both ways and compared; LeRobot's code runs where it would run, in a worker if the loader has any.
    """
    source = episode_source(loader.dataset)
    if not isinstance(source, EpisodeSource):
        return source or "it is none of LeRobot's"
    if (why := _why_not_ours(loader)) is not None:
        return why
    try:
        data = clips_of(source)
        if len(data) != length_of(loader.dataset):
            return f"its files have {len(data)} samples, and the dataset {length_of(loader.dataset)}"
        samples = _to_compare(data)
        ours = clips_alone(data.index, data.settings, samples)
    except DatapipeError as exc:
        return f"datapipe cannot read its files: {exc}"
    try:
        theirs = _collated(loader, samples)
    except Exception as exc:
        told = str(exc).strip().rpartition("\n")[2]  # after the traceback of a worker
        return f"its own code failed for a sample that was compared ({type(exc).__name__}: {told:.200})"
    cameras = frozenset(camera.name for camera in data.index.cameras)
    if not isinstance(theirs, dict) or theirs.keys() != ours.keys():
        odd = sorted(map(str, {*theirs} ^ {*ours})) if isinstance(theirs, dict) else [type(theirs).__qualname__]
        return f"its samples have other fields than datapipe's clips: {', '.join(odd)[:200]}"
    as_collated = AsCollated(loader.dataset, source, tuple(theirs), cameras, torch.get_default_dtype(), len(samples))
    made = as_collated(ours)
    for name, values in theirs.items():
        if (how := _difference(made[name], values)) is not None:
            return f"{name} of samples that were made both ways {how}"
    return data, as_collated


def _why_not_ours(loader: TorchDataLoader) -> str | None:
    """Return what in a loader clips do not have; None: nothing."""
    if loader.batch_sampler is None:
        return "batch_size=None asks for single samples"
    if type(loader.batch_sampler) is not BatchSampler or not (is_plain_shuffle(loader) or is_in_order(loader)):
        return f"a {type(sampler_of(loader)).__qualname__} decides the order, and clips that share their decoding have their own"
    if has_collate_fn(loader):
        return "its collate_fn is custom Python code"
    return None


def _to_compare(data: Clips) -> NDArray[np.int64]:
    """Return the samples that are made both ways: some spread over all, and the first ones of tasks."""
    spread = np.linspace(0, len(data) - 1, min(_COMPARED, len(data))).round().astype(np.int64)
    if "task_index" not in data.index.columns:
        return np.unique(spread)
    tasks = data.index.values("task_index", np.arange(len(data), dtype=np.int64))
    firsts = np.unique(tasks, return_index=True)[1][:_MOST_TASKS]
    return np.unique(np.concatenate([spread, firsts.astype(np.int64)]))


def _collated(loader: TorchDataLoader, samples: NDArray[np.int64]) -> Any:
    """Return the batch of some samples by the dataset's own code, as a pass over the loader would make it."""
    changes: dict[str, Any] = {"pin_memory": False, "persistent_workers": False}
    changes["generator"] = torch.Generator()  # the training draws from its own
    if loader.num_workers:
        changes["num_workers"] = 1
    (batch,) = rebuilt_loader(loader, dataset=loader.dataset, batch_sampler=[samples.tolist()], changes=changes)
    return batch


def _difference(ours: Any, theirs: Any) -> str | None:
    """Return how two fields of a batch differ; None: they are equal, NaN to NaN."""
    if not isinstance(theirs, torch.Tensor) or not isinstance(ours, torch.Tensor):
        return None if ours == theirs else "differ"
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"is {tuple(theirs.shape)} {theirs.dtype}, and would be {tuple(ours.shape)} {ours.dtype}"
    if np.array_equal(ours.numpy(), theirs.numpy(), equal_nan=theirs.is_floating_point()):
        return None
    return f"differ by up to {float((ours.double() - theirs.double()).abs().max()):.3g}"
