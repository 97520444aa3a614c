"""Clips of videos and samples of robots' episodes, against torch's DataLoader with torchcodec and with LeRobot: CPU time. And how
fast files are indexed.

    python -m benchmarks.video --peers PATH/TO/bin/python --lerobot PATH/TO/bin/python    # with torchcodec, with lerobot, there
    python -m benchmarks.video --only episodes --lerobot PATH/TO/bin/python               # the clips are left out
    python -m benchmarks.video --dry-run                     # little of everything, without the peers: does it run?

Videos are like those of a camera that moves: a textured scene of 640 x 480 with grain, H.264 with a key frame every 60; of
episodes two cameras, AV1 with a key frame every 2. Contenders run once per round in fresh processes, in rotated order. The
index is that of copies of a small video.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import episode_contenders, harness, video_contenders
from benchmarks.episode_data import write_episodes
from benchmarks.ratios import ratio_of, rotated
from benchmarks.video_contenders import CONVERTED
from datapipe.kinds.clips.trial_data import wandering, write_video

KEY_EVERY = 60
# By group: the module of its contenders, and its tasks, the last argument of these.
GROUPS = {"clips": (video_contenders, ("resize", "crop")), "episodes": (episode_contenders, ("1", "2", "8"))}
# (task, contender, the least that the peer's CPU time over its may be)
BARS = (
    ("resize", "datapipe exact, per_visit 1", 1.3),
    ("resize", "datapipe exact, per_visit 4", 3.5),
    ("resize", "datapipe exact, per_visit 15", 9.0),
    ("crop", "datapipe exact, per_visit 4", 2.5),
)
# The same of converted videos, against clips of the source that are decoded each by itself.
CONVERTED_BARS = (("resize", f"{CONVERTED}, per_visit 1", 5.0), ("resize", f"{CONVERTED}, per_visit 15", 25.0))
OF_SOURCE = "datapipe exact, per_visit 1"
EPISODE_BARS = (  # the same, by the frames of each camera
    ("1", "datapipe, per_visit 1", 1.8),
    ("2", "datapipe, per_visit 1", 2.0),
    ("1", "datapipe, per_visit 32", 3.0),
    ("2", "datapipe, per_visit 32", 4.0),
    ("8", "datapipe, per_visit 32", 6.0),
)
MIN_FILES_PER_S = 5000
Rounds = dict[str, dict[str, list[dict[str, float]]]]  # task -> contender -> one measurement per round


def main() -> None:
    arguments = _parse()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        for group in GROUPS:
            if arguments.only in (None, group):
                result = _measured(group, Path(name), arguments)
                print("\n".join(as_lines(result)))
                if not arguments.dry_run:
                    of_group = "video" if group == "clips" else f"video-{group}"
                    harness.save(of_group, "benchmarks.video", result, results=arguments.results)


def _measured(group: str, scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the data of a group, and measure its contenders on it."""
    contenders, tasks = GROUPS[group]
    python = arguments.peers if group == "clips" else arguments.lerobot
    names = [one for one in contenders.CONTENDERS if python or one not in contenders.PEERS]
    directory, settings = _write_data(group, scratch, is_dry=arguments.dry_run)
    rounds: Rounds = {task: {one: [] for one in names} for task in tasks}
    for number in range(arguments.rounds):
        for task in tasks:
            for one in rotated(names, number):
                found: dict[str, float] = harness.run_contender(
                    one,
                    [contenders.__name__, one, str(directory), task],
                    python=python if one in contenders.PEERS else sys.executable,
                    limit_s=900,
                    environment={"XDG_CACHE_HOME": str(scratch / "cache"), "HF_HOME": str(scratch / "hub")},
                )
                rounds[task][one].append(found)
                print(f"round {number + 1}/{arguments.rounds}  {task:<7} {one:<28} {found['cpu_ms']:7.1f} CPU-ms", flush=True)
    result = {
        "settings": settings | {"num_rounds": arguments.rounds},
        "cpu_ms": _medians(rounds, "cpu_ms"),
        "wall_ms": _medians(rounds, "wall_ms"),
        "rounds": rounds,
        "speed": _speeds(rounds, contenders.PEERS[0], (*BARS, *EPISODE_BARS)),
    }
    if group == "clips":
        result["speed_of_converted"] = _speeds(rounds, OF_SOURCE, CONVERTED_BARS, only=CONVERTED)
        result["index"] = _index(scratch, 200 if arguments.dry_run else 10_000)
    return result


def _write_data(group: str, scratch: Path, *, is_dry: bool) -> tuple[Path, dict[str, Any]]:
    """Return the directory of the data, and what they are."""
    directory = scratch / group
    if group == "episodes":
        lengths = [60, 60] if is_dry else [240] * 16
        write_episodes(directory, lengths, wandering)
        return directory, {"lengths": lengths}
    num_videos, num_frames = (2, 90) if is_dry else (12, 600)
    write_videos(directory, num_videos, num_frames)
    settings = {"num_videos": num_videos, "num_frames": num_frames}
    return directory, settings | convert_small(directory, directory.with_name("converted"))


def _medians(rounds: Rounds, what: str) -> dict[str, dict[str, float]]:
    return {
        task: {one: round(statistics.median(found[what] for found in values), 2) for one, values in of_task.items() if values}
        for task, of_task in rounds.items()
    }


def _speeds(rounds: Rounds, peer: str, bars: tuple[tuple[str, str, float], ...], *, only: str = "") -> dict[str, Any]:
    """How many times the CPU time of others the peer's is, with what the bars ask; `only`: how their names begin."""
    asked = {(task, ours): bar for task, ours, bar in bars}
    return {
        f"{task}: {ours}": {
            **dataclasses.asdict(
                ratio_of([found["cpu_ms"] for found in of_task[peer]], [found["cpu_ms"] for found in of_task[ours]])
            ),
            "bar": asked.get((task, ours)),
        }
        for task, of_task in rounds.items()
        if peer in of_task
        for ours in of_task
        if ours != peer and ours.startswith(only)
    }


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = []
    for name, ratio in [*result["speed"].items(), *result.get("speed_of_converted", {}).items()]:
        bar = ratio["bar"]
        verdict = "" if bar is None else f", bar {bar:g}x {'holds' if ratio['ratio'] >= bar else 'MISSED'}"
        lines.append(f"{name}: {ratio['ratio']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]{verdict}")
    if (index := result.get("index")) is not None:
        lines.append(
            f"index: {index['files_per_s']:,} files/s of {index['files']:,}, bar {MIN_FILES_PER_S:,}; {index['grown_mb']} MB"
        )
    return lines


# -- data ------------------------------------------------------------------------------------------


def write_videos(directory: Path, num_videos: int, num_frames: int) -> None:
    directory.mkdir(parents=True)
    for number in range(num_videos):
        write_video(directory / f"{number:03d}.mp4", wandering(number, num_frames), key_every=KEY_EVERY, preset="medium")


def convert_small(directory: Path, converted: Path) -> dict[str, float]:
    """Convert the videos to small ones with key frames close together; return how many MB both have."""
    from converters import ConvertOptions, convert

    convert(ConvertOptions(directory, converted, video_size=256, video_keyframes=16, num_workers=2))
    nbytes = [sum(path.stat().st_size for path in found) for found in (directory.glob("*.mp4"), converted.glob("*.tar"))]
    return dict(zip(("source_mb", "converted_mb"), (round(one / 1e6, 2) for one in nbytes), strict=True))


def _index(scratch: Path, num_files: int) -> dict[str, Any]:
    """How fast an index of many small videos is made, and how much memory grows for it."""
    from datapipe.index.media import MediaSource
    from datapipe.opening.videos.indexing import open_videos

    write_videos(scratch / "one", 1, 60)
    files = scratch / "files"
    files.mkdir()
    for number in range(num_files):
        shutil.copyfile(scratch / "one" / "000.mp4", files / f"{number}.mp4")
    os.environ["XDG_CACHE_HOME"] = str(scratch / "index")
    sources = [MediaSource(str(path)) for path in sorted(files.iterdir())]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    open_videos(sources, where=str(files))
    made = time.perf_counter()
    open_videos(sources, where=str(files))
    opened = time.perf_counter()
    return {
        "files": num_files,
        "files_per_s": round(num_files / (made - started)),
        "reopened_per_s": round(num_files / (opened - made)),
        "grown_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1),
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.video", description="Clips of videos, samples of episodes, and the index."
    )
    parser.add_argument("--only", choices=[*GROUPS], help="one of the groups; default: all")
    parser.add_argument("--lerobot", help="a Python with lerobot and torchcodec")
    parser.add_argument("--peers", help="a Python with torchcodec; see README.md")
    return harness.run_arguments(parser, rounds=3, scratch="the data (2 GB)")


if __name__ == "__main__":
    main()
