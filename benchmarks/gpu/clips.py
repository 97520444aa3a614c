"""Stage `clips`: frames by the GPU's video engines against the CPU's, clips per second by each, and a network fed by each."""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.gpu.clips_job import ON_CPU, ON_ENGINES, RESIDENT
from benchmarks.gpu.job import ask_job
from benchmarks.gpu.report import Report
from benchmarks.gpu.settings import Check, Deadline, num_cores
from datapipe.kinds.clips.trial_data import wandering, write_video

_NUM_ROUNDS = 2
_FEW = 4  # cores that decode, where a machine has few for each GPU


class VideoSet(NamedTuple):
    """Videos of one kind."""

    name: str
    encoder: Literal["libx264", "libx265"]
    height: int
    width: int
    num: int
    num_frames: int


SETS = (
    VideoSet("h264-480", "libx264", 480, 640, 16, 300),
    VideoSet("h264-1080", "libx264", 1080, 1920, 16, 120),
    VideoSet("hevc-480", "libx265", 480, 640, 16, 180),
)


def run(check: Check, report: Report, deadline: Deadline) -> None:
    folders = {one.name: videos(check, one) for one in SETS[: check.pick(None, 1)]}
    for name, folder in folders.items():
        arguments = {"question": "parity", "folder": str(folder)}
        found = ask_job(check, report, deadline, f"parity, {name}", "clips_job", arguments, seconds=10, set=name)
        if found:
            report.expect(f"parity, {name}", found["num_different"] == 0, f"clips by engines are not the CPU's: {found}")
            report.expect(f"parity, {name}", found["num_frames_of_engines"] > 0, "engines decoded no frame")
    seconds, warmup_s = check.pick((3.0, 2.0), (0.02, 0.0))
    timed = {"seconds": seconds, "warmup_s": warmup_s}
    for number in range(check.pick(_NUM_ROUNDS, 1)):
        feeds = [ON_CPU, ON_ENGINES][:: -1 if number % 2 else 1]
        name, folder = next(iter(folders.items()))
        for feed in (RESIDENT, *feeds):
            arguments = {"question": "train", "folder": str(folder), "feed": feed, **timed}
            found = ask_job(check, report, deadline, f"train, {feed}", "clips_job", arguments, set=name, round=number)
            if found:
                report.expect(f"train, {feed}", found["is_loss_finite"], "the loss is not finite: are batches right?")
        for num_workers, (name, folder), feed in itertools.product((num_cores(), _FEW), folders.items(), feeds):
            arguments = {"question": "rate", "folder": str(folder), "feed": feed, **timed} | {"num_workers": num_workers}
            what = f"rate, {name}, {feed}, {num_workers} workers"
            ask_job(check, report, deadline, what, "clips_job", arguments, set=name, round=number)


def videos(check: Check, of: VideoSet) -> Path:
    """The folder of the generated videos, made on all cores if they are not there."""
    folder = check.data / "clips" / of.name
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:02d}.mp4" for number in range(check.pick(of.num, 2))]
    missing = [path for path in paths if not path.exists()]
    num_frames = check.pick(of.num_frames, 24)
    with ProcessPoolExecutor(num_cores(), mp_context=get_context("fork" if check.is_dry else "spawn")) as pool:
        list(pool.map(_write, missing, [of._replace(num_frames=num_frames)] * len(missing)))
    return folder


def _write(path: Path, of: VideoSet) -> None:
    part = path.with_name(f"part-{path.name}")
    frames: Any = wandering(int(path.stem), of.num_frames, of.height, of.width)
    write_video(part, frames, encoder=of.encoder)
    part.rename(path)
