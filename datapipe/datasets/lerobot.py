"""LeRobot's dataset of robots' episodes, by its attributes: where it lies, and what its samples have. Nothing imports lerobot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Subset

_MODULES = ("lerobot.datasets.lerobot_dataset", "lerobot.common.datasets.lerobot_dataset")
_NAME = "LeRobotDataset"
_ATTRIBUTES = ("root", "episodes", "delta_timestamps", "tolerance_s", "fps")
_NOT_EQUAL = ("timestamp", "task_index")  # of which LeRobot's code takes one value, so that several fail there
_MOST_TOLERANCE = 0.25  # of the time from one frame to the next: at most one is as near as that


@dataclass(frozen=True, slots=True)
class EpisodeSource:
    """What a LeRobotDataset reads: the arguments of `datapipe.Clips` that mean the same."""

    root: str
    episodes: tuple[int, ...] | None  # None: all
    delta_timestamps: Mapping[str, tuple[float, ...]]
    tolerance_s: float
    gives_uint8: bool  # whether its frames are left as they are decoded; else they are float32 from 0 to 1


def episode_source(dataset: Any) -> EpisodeSource | str | None:
    """Return what a LeRobotDataset reads, the reason if only its own code can give its samples; None for others."""
    if type(dataset) is Subset:
        inner = episode_source(dataset.dataset)
        return None if inner is None else "a Subset of a LeRobotDataset; datapipe takes whole episodes: pass episodes=[...]"
    if not any(kind.__module__ in _MODULES and kind.__qualname__ == _NAME for kind in type(dataset).__mro__):
        return None
    if type(dataset).__qualname__ != _NAME or type(dataset).__module__ not in _MODULES:
        return f"{type(dataset).__qualname__} is a subclass of LeRobotDataset, and may give other samples"
    reader = getattr(dataset, "reader", None)  # that has a part of the attributes since lerobot 0.5
    missing = [name for name in _ATTRIBUTES if not hasattr(dataset, name)]
    if missing:
        return f"this LeRobotDataset has no attribute {missing[0]}, by which datapipe would know what it reads"
    for holder in (dataset, reader):
        for name in ("image_transforms", "_image_transforms"):
            if getattr(holder, name, None) is not None:
                return (
                    "its image_transforms are called with each camera's float frames; pass datapipe's to a DataLoader over Clips"
                )
    try:
        deltas = {str(name): tuple(map(float, values)) for name, values in (dataset.delta_timestamps or {}).items()}
        episodes = None if dataset.episodes is None else tuple(map(int, dataset.episodes))
        tolerance_s = float(dataset.tolerance_s)
        root, fps = os.fspath(dataset.root), float(dataset.fps)
    except (TypeError, ValueError, AttributeError) as exc:
        return f"the attributes of this LeRobotDataset are not those that datapipe knows ({exc})"
    if episodes is not None and list(episodes) != sorted({*episodes}):
        return "its episodes are not in ascending order, each once"
    if tolerance_s * fps > _MOST_TOLERANCE:
        return f"its tolerance_s is {tolerance_s:g}, and with {fps:g} frames a second several may be as near as that"
    several = [name for name in _NOT_EQUAL if name in deltas]
    if several:
        return f"its delta_timestamps name {several[0]}"
    return EpisodeSource(root, episodes, deltas, tolerance_s, bool(getattr(reader, "_return_uint8", False)))
