"""Clips of videos: how much CPU time a clip takes, against torch's DataLoader with torchcodec; and how fast files are indexed.

    python -m benchmarks.video --peers PATH/TO/bin/python    # with torchcodec, installed there
    python -m benchmarks.video --dry-run                     # little of everything, without the peer: does it run?

Videos are like those of a camera that moves: a textured scene of 640 x 480 with grain, H.264 with a key frame every 60.
Contenders run once per round in fresh processes, in rotated order. The last figure is that of the index, over copies of a small
video.
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

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.ratios import ratio_of, rotated
from benchmarks.video_contenders import CONTENDERS, CONVERTED, PEERS

HEIGHT, WIDTH, KEY_EVERY = 480, 640, 60
# (cut, contender, the least that torchcodec's CPU time over its may be)
BARS = (
    ("resize", "datapipe exact, per_visit 1", 1.3),
    ("resize", "datapipe exact, per_visit 4", 3.5),
    ("resize", "datapipe exact, per_visit 15", 9.0),
    ("crop", "datapipe exact, per_visit 4", 2.5),
)
# (cut, converted contender, the least that the CPU time of clips of the source, each by itself, over its may be)
CONVERTED_BARS = (("resize", f"{CONVERTED}, per_visit 1", 5.0), ("resize", f"{CONVERTED}, per_visit 15", 25.0))
OF_SOURCE = "datapipe exact, per_visit 1"
MIN_FILES_PER_S = 5000
CUTS = ("resize", "crop")


def main() -> None:
    arguments = _parse()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        directory = Path(name) / "videos"
        num_videos, num_frames = (2, 90) if arguments.dry_run else (12, 600)
        _write_videos(directory, num_videos, num_frames)
        storage = _convert(directory, directory.with_name("converted"))
        names = [one for one in CONTENDERS if arguments.peers or one not in PEERS]
        rounds: dict[str, dict[str, list[dict[str, float]]]] = {cut: {one: [] for one in names} for cut in CUTS}
        for number in range(arguments.rounds):
            for cut in CUTS:
                for one in rotated(names, number):
                    found = _run(one, directory, cut, arguments)
                    rounds[cut][one].append(found)
                    print(f"round {number + 1}/{arguments.rounds}  {cut:<7} {one:<28} {found['cpu_ms']:7.1f} CPU-ms", flush=True)
        index = _index(Path(name), 200 if arguments.dry_run else 10_000)
    result = {
        "settings": {"num_videos": num_videos, "num_frames": num_frames, "num_rounds": arguments.rounds},
        "cpu_ms": _medians(rounds, "cpu_ms"),
        "wall_ms": _medians(rounds, "wall_ms"),
        "rounds": rounds,
        "speed": _speeds(rounds, "torchcodec", BARS),
        "speed_of_converted": _speeds(rounds, OF_SOURCE, CONVERTED_BARS, only=CONVERTED),
        "storage": storage,
        "index": index,
    }
    print("\n".join(as_lines(result)))
    if not arguments.dry_run:
        harness.save("video", "benchmarks.video", result, results=arguments.results)


def _medians(rounds: dict[str, dict[str, list[dict[str, float]]]], what: str) -> dict[str, dict[str, float]]:
    return {
        cut: {one: round(statistics.median(found[what] for found in values), 2) for one, values in of_cut.items() if values}
        for cut, of_cut in rounds.items()
    }


def _speeds(
    rounds: dict[str, dict[str, list[dict[str, float]]]], base: str, bars: tuple[tuple[str, str, float], ...], *, only: str = ""
) -> dict[str, Any]:
    """How many times the CPU time of others that of `base` is, with what the bars ask; `only`: how their names begin."""
    asked = {(cut, other): bar for cut, other, bar in bars}
    return {
        f"{cut}: {other}": {
            **dataclasses.asdict(
                ratio_of([found["cpu_ms"] for found in of_cut[base]], [found["cpu_ms"] for found in of_cut[other]])
            ),
            "bar": asked.get((cut, other)),
        }
        for cut, of_cut in rounds.items()
        if base in of_cut
        for other in of_cut
        if other != base and other.startswith(only)
    }


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = []
    for name, ratio in [*result["speed"].items(), *result["speed_of_converted"].items()]:
        bar = ratio["bar"]
        verdict = "" if bar is None else f", bar {bar:g}x {'holds' if ratio['ratio'] >= bar else 'MISSED'}"
        lines.append(f"{name}: {ratio['ratio']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]{verdict}")
    storage = result["storage"]
    lines.append(f"storage: {storage['source_mb']} MB, converted {storage['converted_mb']} MB")
    index = result["index"]
    lines.append(
        f"index: {index['files_per_s']:,} files/s of {index['files']:,}, bar {MIN_FILES_PER_S:,}; {index['grown_mb']} MB"
    )
    return lines


def _run(name: str, directory: Path, cut: str, arguments: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = harness.run_contender(
        name,
        ["benchmarks.video_contenders", name, str(directory), cut],
        python=arguments.peers if name in PEERS else sys.executable,
        limit_s=900,
        environment={"XDG_CACHE_HOME": str(directory.parent / "cache")},
    )
    return found


# -- data ------------------------------------------------------------------------------------------


def _scene(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return (960, 1280, 3) texture: noise of several sizes, as a landscape has."""
    found = np.zeros((960, 1280, 3))
    for size in (4, 8, 16, 32, 64, 128):
        coarse = rng.normal(size=(960 // size + 2, 1280 // size + 2, 3))
        rows, columns = np.arange(960) / size, np.arange(1280) / size
        top, left = rows.astype(int), columns.astype(int)
        y, x = (rows - top)[:, None, None], (columns - left)[None, :, None]
        upper = coarse[top][:, left] * (1 - x) + coarse[top][:, left + 1] * x
        lower = coarse[top + 1][:, left] * (1 - x) + coarse[top + 1][:, left + 1] * x
        found += (upper * (1 - y) + lower * y) * size**0.6
    pixels: NDArray[np.uint8] = np.clip(128 + 40 * found / found.std(), 0, 255).astype(np.uint8)
    return pixels


def _write_videos(directory: Path, num_videos: int, num_frames: int) -> None:
    import av

    directory.mkdir(parents=True)
    for number in range(num_videos):
        rng = np.random.default_rng(number)
        scene = _scene(rng).astype(np.int16)
        with av.open(str(directory / f"{number:03d}.mp4"), "w") as output:
            stream: Any = output.add_stream("libx264", rate=30)
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            keys = f"keyint={KEY_EVERY}:min-keyint={KEY_EVERY}:scenecut=0"
            stream.options = {"x264-params": keys, "preset": "medium", "crf": "23"}
            for time_number in range(num_frames):
                left = int(320 + 300 * np.sin(time_number / 40 + number))
                top = int(240 + 200 * np.cos(time_number / 55))
                grain = rng.normal(0, 3, (HEIGHT, WIDTH, 1)).astype(np.int16)
                pixels = np.clip(scene[top : top + HEIGHT, left : left + WIDTH] + grain, 0, 255).astype(np.uint8)
                for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                    output.mux(packet)
            for packet in stream.encode(None):
                output.mux(packet)


def _convert(directory: Path, converted: Path) -> dict[str, float]:
    """Convert the videos to small ones with key frames close together; return how many MB both have."""
    from converters import ConvertOptions, convert

    convert(ConvertOptions(directory, converted, video_size=256, video_keyframes=16, num_workers=2))
    nbytes = [sum(path.stat().st_size for path in found) for found in (directory.glob("*.mp4"), converted.glob("*.tar"))]
    return dict(zip(("source_mb", "converted_mb"), (round(one / 1e6, 2) for one in nbytes), strict=True))


def _index(scratch: Path, num_files: int) -> dict[str, Any]:
    """How fast an index of many small videos is made, and how much memory grows for it."""
    from datapipe.containers.videos.indexing import open_videos
    from datapipe.index.videos import VideoSource

    _write_videos(scratch / "one", 1, 60)
    files = scratch / "files"
    files.mkdir()
    for number in range(num_files):
        shutil.copyfile(scratch / "one" / "000.mp4", files / f"{number}.mp4")
    os.environ["XDG_CACHE_HOME"] = str(scratch / "index")
    sources = [VideoSource(str(path)) for path in sorted(files.iterdir())]
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.video", description="Clips of videos, and their index.")
    parser.add_argument("--peers", help="a Python with torchcodec; see README.md")
    return harness.run_arguments(parser, rounds=3, scratch="the data (2 GB)")


if __name__ == "__main__":
    main()
