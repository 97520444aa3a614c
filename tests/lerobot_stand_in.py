"""A class that looks like lerobot's LeRobotDataset, with the samples that its code gives, for datasets of `lerobot_files`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.utils.data
from lerobot_files import CAMERAS, FPS, TASKS, decoded


class LeRobotDataset(torch.utils.data.Dataset[Any]):
    """The samples of a dataset, as of lerobot 0.4 and 0.6: a dict of tensors and `task` each."""

    def __init__(
        self,
        root: Path,
        *,
        episodes: list[int] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        image_transforms: Callable[[torch.Tensor], torch.Tensor] | None = None,
        return_uint8: bool = False,
    ) -> None:
        self.root, self.episodes, self.delta_timestamps, self.tolerance_s = root, episodes, delta_timestamps, tolerance_s
        self.image_transforms, self.fps, self._return_uint8 = image_transforms, FPS, return_uint8
        self.reader: Any = None
        tables = [pq.read_table(path) for path in sorted((root / "data").rglob("*.parquet"))]
        self._all = pa.concat_tables(tables).to_pylist()
        self._rows = [row for row in self._all if episodes is None or row["episode_index"] in episodes]
        self._frames = {camera: decoded(root, camera, len(self._all)) for camera in CAMERAS}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> dict[str, Any]:
        row = self._rows[position]
        item: dict[str, Any] = {name: torch.tensor(value) for name, value in row.items()}
        shown = {camera: [row["index"]] for camera in CAMERAS}
        alike = [one["index"] for one in self._all if one["episode_index"] == row["episode_index"]]
        for name, times in (self.delta_timestamps or {}).items():
            wanted = [row["index"] + round(time * FPS) for time in times]
            kept = [max(alike[0], min(alike[-1], one)) for one in wanted]
            item[f"{name}_is_pad"] = torch.BoolTensor([one < alike[0] or one > alike[-1] for one in wanted])
            if name in CAMERAS:
                shown[name] = kept
            else:
                item[name] = torch.stack([torch.tensor(self._all[one][name]) for one in kept])
        for camera, indices in shown.items():
            frames = torch.stack([torch.from_numpy(self._frames[camera][one]).permute(2, 0, 1) for one in indices])
            item[camera] = (frames if self._return_uint8 else (frames / 255.0).type(torch.float32)).squeeze(0)
            if self.image_transforms is not None:
                item[camera] = self.image_transforms(item[camera])
        item["task"] = TASKS[row["task_index"]]
        return item


LeRobotDataset.__module__ = "lerobot.datasets.lerobot_dataset"
