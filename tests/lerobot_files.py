"""Datasets as LeRobot writes them, versions 3.0 and 2.1, with what each sample of them should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from video_files import pictures

FPS = 10
LENGTHS = (23, 8, 40)
CAMERAS = ("observation.images.top", "observation.images.wrist")
TASKS = ("pick the cube", "open the drawer")


def write_lerobot(root: Path, version: str = "v3.0", *, codec: str = "libx264", lengths: tuple[int, ...] = LENGTHS) -> Path:
    """Write a dataset of two cameras; return its folder. In 3.0 all episodes of a camera lie in one file, or two."""
    total = sum(lengths)
    starts = np.cumsum([0, *lengths])
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": None},
        **{name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None} for name in
           ("timestamp", "frame_index", "episode_index", "index", "task_index")},
        **{name: {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]} for name in CAMERAS},
    }  # fmt: skip
    is_new = version == "v3.0"
    info = {
        "codebase_version": version, "fps": FPS, "features": features, "chunks_size": 1000,
        "total_episodes": len(lengths), "total_frames": total,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet" if is_new
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if is_new
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }  # fmt: skip
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(info))
    rows = table_of(lengths)
    if is_new:
        _write_v3(root, lengths, starts, rows)
    else:
        _write_v2(root, lengths, starts, rows)
    for camera, name in enumerate(CAMERAS):
        frames = scenes(camera, total)
        for path, first, end in video_spans(root, version, name, starts):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_lerobot_video(path, frames[first:end], codec)
    return root


def table_of(lengths: tuple[int, ...]) -> pa.Table:
    """The rows of all episodes."""
    rng = np.random.default_rng(0)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.concatenate([np.arange(length) for length in lengths])
    total = len(episode)
    return pa.table(
        {
            "observation.state": list(rng.normal(size=(total, 3)).astype(np.float32)),
            "action": list(rng.normal(size=(total, 2)).astype(np.float32)),
            "timestamp": (frame / FPS).astype(np.float32),
            "frame_index": frame,
            "episode_index": episode,
            "index": np.arange(total),
            "task_index": episode % len(TASKS),
        }
    )


def scenes(camera: int, num: int) -> list[np.ndarray]:
    return list(pictures(num, 64, 48, seed=100 + camera))


def video_spans(root: Path, version: str, name: str, starts: np.ndarray) -> list[tuple[Path, int, int]]:
    """The video files of a camera, and the rows that each shows."""
    if version == "v3.0":
        folder = root / "videos" / name / "chunk-000"
        return [(folder / "file-000.mp4", 0, int(starts[2])), (folder / "file-001.mp4", int(starts[2]), int(starts[-1]))]
    folder = root / "videos" / "chunk-000" / name
    pairs = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    return [(folder / f"episode_{episode:06d}.mp4", first, end) for episode, (first, end) in enumerate(pairs)]


def write_lerobot_video(path: Path, frames: list[np.ndarray], codec: str) -> None:
    options = {"g": "2", "crf": "23"}
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream(codec, rate=FPS, options=options)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        output.mux(stream.encode(None))


def decoded(root: Path, camera: str, num: int) -> list[np.ndarray]:
    """The `num` frames of a camera, (h, w, 3) each, of all episodes one after the other, by PyAV alone."""
    found = []
    for path in sorted((root / "videos").rglob("*.mp4")):
        if camera in str(path):
            with av.open(str(path)) as held:
                found += [frame.to_ndarray(format="rgb24") for frame in held.decode(video=0)]
    assert len(found) == num
    return found


def _write_v3(root: Path, lengths: tuple[int, ...], starts: np.ndarray, rows: pa.Table) -> None:
    num = len(lengths)
    file = [0 if episode < 2 else 1 for episode in range(num)]
    columns: dict[str, Any] = {
        "episode_index": list(range(num)), "length": list(lengths), "tasks": [[TASKS[episode % 2]] for episode in range(num)],
        "dataset_from_index": starts[:-1], "dataset_to_index": starts[1:],
        "data/chunk_index": [0] * num, "data/file_index": file,
        "stats/action/min": [[0.0, 0.0]] * num,
    }  # fmt: skip
    begin = [float(starts[episode] - starts[2 * (episode >= 2)]) / FPS for episode in range(num)]
    for name in CAMERAS:
        columns |= {
            f"videos/{name}/chunk_index": [0] * num,
            f"videos/{name}/file_index": file,
            f"videos/{name}/from_timestamp": begin,
            f"videos/{name}/to_timestamp": [0.0] * num,
        }
    folder = root / "meta" / "episodes" / "chunk-000"
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "file-000.parquet")
    tasks = pa.table({"task_index": list(range(len(TASKS))), "__index_level_0__": list(TASKS)})
    pq.write_table(tasks, root / "meta" / "tasks.parquet")
    (root / "data" / "chunk-000").mkdir(parents=True)
    split = int(starts[2])
    pq.write_table(rows.slice(0, split), root / "data" / "chunk-000" / "file-000.parquet")
    pq.write_table(rows.slice(split), root / "data" / "chunk-000" / "file-001.parquet")


def _write_v2(root: Path, lengths: tuple[int, ...], starts: np.ndarray, rows: pa.Table) -> None:
    lines = [{"episode_index": number, "tasks": [TASKS[number % 2]], "length": length} for number, length in enumerate(lengths)]
    (root / "meta" / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = [{"task_index": number, "task": task} for number, task in enumerate(TASKS)]
    (root / "meta" / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in tasks))
    (root / "data" / "chunk-000").mkdir(parents=True)
    for number, length in enumerate(lengths):
        pq.write_table(rows.slice(int(starts[number]), length), root / "data" / "chunk-000" / f"episode_{number:06d}.parquet")
