"""Episodes of a robot as LeRobot writes them (version 3.0): two cameras, AV1 with a key frame every 2, states, actions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

CAMERAS = ("observation.images.top", "observation.images.wrist")
FPS = 30
_INDEX = {  # pandas' own, by which LeRobot finds the text of a task
    "index_columns": ["task"],
    "column_indexes": [],
    "columns": [
        {"name": name, "field_name": name, "pandas_type": of_pandas, "numpy_type": of_numpy, "metadata": None}
        for name, of_pandas, of_numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ],
    "pandas_version": "2.2.0",
}
Pictures = Callable[[int, int], Iterable[NDArray[np.uint8]]]  # of a number, so many: (h, w, 3) each


def write_episodes(root: Path, lengths: list[int], pictures: Pictures) -> None:
    """Write episodes of so many frames; all frames of a camera lie in one file."""
    total, starts = sum(lengths), np.cumsum([0, *lengths])
    size = _write_videos(root, total, pictures)
    frame = np.concatenate([np.arange(length) for length in lengths])
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "observation.state": list(rng.normal(size=(total, 14)).astype(np.float32)),
        "action": list(rng.normal(size=(total, 14)).astype(np.float32)),
        "timestamp": (frame / FPS).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "index": np.arange(total),
        "task_index": np.zeros(total, np.int64),
    }
    episodes: dict[str, Any] = {
        "episode_index": np.arange(len(lengths)),
        "tasks": [["move the cube"]] * len(lengths),
        "length": lengths,
        "dataset_from_index": starts[:-1],
        "dataset_to_index": starts[1:],
    }
    places = ("data", "meta/episodes", *(f"videos/{camera}" for camera in CAMERAS))
    episodes |= {f"{what}/{which}_index": np.zeros(len(lengths), np.int64) for what in places for which in ("chunk", "file")}
    for camera in CAMERAS:
        episodes |= {f"videos/{camera}/from_timestamp": starts[:-1] / FPS, f"videos/{camera}/to_timestamp": starts[1:] / FPS}
    tasks = pa.table({"task_index": [0], "task": ["move the cube"]}).replace_schema_metadata({"pandas": json.dumps(_INDEX)})
    for name, table in (
        ("data/chunk-000/file-000", pa.table(columns)),
        ("meta/episodes/chunk-000/file-000", pa.table(episodes)),
        ("meta/tasks", tasks),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, root / f"{name}.parquet")
    (root / "meta" / "info.json").write_text(json.dumps(_info(columns, lengths, size)))


def _info(columns: dict[str, Any], lengths: list[int], size: tuple[int, int]) -> dict[str, Any]:
    numbers = {
        name: {"dtype": "float32", "shape": [14], "names": None}
        if name in ("observation.state", "action")
        else {"dtype": str(values.dtype), "shape": [1], "names": None}
        for name, values in columns.items()
    }
    of_cameras = {"dtype": "video", "shape": [*size, 3], "names": ["height", "width", "channels"], "info": {"video.fps": FPS}}
    return {
        "codebase_version": "v3.0",
        "robot_type": "aloha",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": FPS,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": numbers | dict.fromkeys(CAMERAS, of_cameras),
    }


@contextmanager
def same_priority() -> Iterator[None]:
    """Give the thread its own priority back at the end: SVT-AV1 takes a real-time one for who opens an encoder, if root does."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def _write_videos(root: Path, total: int, pictures: Pictures) -> tuple[int, int]:
    """Write the videos; return the height and the width of their frames."""
    import av

    size = (0, 0)
    for number, camera in enumerate(CAMERAS):
        path = root / "videos" / camera / "chunk-000" / "file-000.mp4"
        path.parent.mkdir(parents=True)
        with same_priority(), av.open(str(path), "w") as output:
            stream: Any = output.add_stream("libsvtav1", rate=FPS, options={"g": "2", "crf": "30", "preset": "10"})
            stream.pix_fmt = "yuv420p"
            for place, frame in enumerate(pictures(number, total)):
                if not place:
                    stream.height, stream.width = size = (frame.shape[0], frame.shape[1])
                for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                    output.mux(packet)
            for packet in stream.encode(None):
                output.mux(packet)
    return size
