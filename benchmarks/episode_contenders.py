"""One contender of `benchmarks.video` over robots' episodes, in its own process: CPU and wall milliseconds per sample, as JSON.

    python -m benchmarks.episode_contenders NAME DIRECTORY FRAMES

A sample has so many frames of each of two cameras, the state, the action and the rest of what LeRobot gives. Batches of 32,
shuffled, on two threads or workers. "floats" are the batches of LeRobot, cameras as float32; without that they are uint8.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterable
from typing import Any

from benchmarks.episode_data import CAMERAS, FPS
from benchmarks.video_contenders import BATCH_SIZE, WORKERS, print_cost

LEROBOT = "lerobot"
CONTENDERS = (LEROBOT, *(f"datapipe, per_visit {each}" for each in (1, 4, 32)), "datapipe floats, per_visit 4")
PEERS = (LEROBOT,)  # in a Python of their own
PEER_BATCHES = 20  # of an epoch: each sample costs it the same


def deltas_of(frames: int) -> dict[str, list[float]]:
    """Return which moments of each camera a sample shows: the latest ones; {}: the moment itself."""
    return {} if frames == 1 else {camera: [(place - frames + 1) / FPS for place in range(frames)] for camera in CAMERAS}


def of_datapipe(name: str, directory: str, frames: int) -> Iterable[dict[str, Any]]:
    """Return a loader of clips."""
    import torch

    import datapipe as dp
    from datapipe.adapt.episodes import FloatFrames

    of_frames = FloatFrames()

    def as_floats(batch: dict[str, Any]) -> dict[str, Any]:
        return batch | {camera: of_frames(batch[camera]) for camera in CAMERAS}

    torch.set_num_threads(1)  # as in torch's workers
    data = dp.Clips(directory, delta_timestamps=deltas_of(frames), per_visit=int(name.rpartition(" ")[2]))
    transform = as_floats if "floats" in name else None
    return dp.DataLoader(data, BATCH_SIZE, shuffle=True, seed=0, num_workers=WORKERS, batch_transform=transform)


def of_lerobot(name: str, directory: str, frames: int) -> Iterable[dict[str, Any]]:
    """Return batches of torch's DataLoader over LeRobotDataset."""
    import torch

    from benchmarks.contenders.torchvision_transforms import import_torchvision

    import_torchvision()  # whose compiled part need not fit this torch
    importlib.import_module("torchcodec.decoders")  # or each worker would
    lerobot: Any = importlib.import_module("lerobot.datasets.lerobot_dataset")
    torch.manual_seed(0)
    dataset = lerobot.LeRobotDataset("benchmarks/episodes", root=directory, delta_timestamps=deltas_of(frames) or None)
    loader = torch.utils.data.DataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=WORKERS)
    return itertools.islice(loader, PEER_BATCHES)


def main() -> None:
    name, directory, frames = sys.argv[1:4]
    loader = (of_lerobot if name in PEERS else of_datapipe)(name, directory, int(frames))  # not timed
    print_cost(len(batch["index"]) for batch in loader)


if __name__ == "__main__":
    main()
