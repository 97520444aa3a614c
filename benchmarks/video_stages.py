"""Where the CPU time of a clip goes, by the parts of its decoding, in one thread; and that of an index of many videos.

    python -m benchmarks.video_stages

Videos of 640 x 480 pixels with a key frame every 60, and the same after `datapipe convert --video-size 256 --video-keyframes 16`;
clips of 8 frames, stride 4, resized to 224.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import datapipe as dp
from benchmarks import harness
from benchmarks.gil import make_videos
from benchmarks.video import convert_small
from datapipe import transforms as T
from datapipe.codecs.video.conversion import FrameConverter
from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.transforms.execute import cut_through

_PER_VISIT = (1, 15)
_NUM_VIDEOS, _NUM_FRAMES = 8, 300
_NUM_FILES = 2000  # of the index


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.video_stages")
    arguments = harness.run_arguments(parser, rounds=5, scratch="the videos")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        num_videos, num_frames, num_files = (1, 90, 20) if arguments.dry_run else (_NUM_VIDEOS, _NUM_FRAMES, _NUM_FILES)
        source, converted = make_videos(Path(scratch) / "source", num_videos, num_frames), Path(scratch) / "converted"
        convert_small(source, converted)
        sets = {"source": source, "converted": converted}
        rounds = [
            {f"{name}, per_visit {each}": measure(path, each) for name, path in sets.items() for each in _PER_VISIT}
            for _ in range(arguments.rounds)
        ]
        index = measure_index(Path(scratch), source, num_files)
    median = {
        name: {part: round(statistics.median(one[name][part] for one in rounds), 2) for part in parts}
        for name, parts in rounds[0].items()
    }
    result = {
        "settings": {"num_videos": _NUM_VIDEOS, "num_frames": _NUM_FRAMES, "num_rounds": arguments.rounds, "num_threads": 1},
        "median_ms_per_clip": median,
        "index_us_per_file": index,
    }
    if not arguments.dry_run:
        harness.save("video-stages", "benchmarks.video_stages", result, results=arguments.results)
    for name, parts in median.items():
        print(f"{name:<26}", ", ".join(f"{part} {value} ms" for part, value in parts.items()))
    print("a file of the index:", ", ".join(f"{part} {value} us" for part, value in index.items()))


def measure(path: Path, per_visit: int) -> dict[str, float]:
    """Milliseconds of CPU time per clip, of an epoch after another one: in all, and by parts."""
    data = dp.Clips(path, frames=8, stride=4, step=4, per_visit=per_visit)
    loader = dp.DataLoader(data, 32, True, seed=0, num_workers=0, device="cpu", transform=[T.Resize((224, 224))])
    took = dict.fromkeys(("decode", "colour", "resize"), 0.0)

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*arguments: Any, **options: Any) -> Any:
            started = time.thread_time()
            made = call(*arguments, **options)
            took[part] += time.thread_time() - started
            return made

        return timing

    decode = VideoDecoder.decode

    def decoded(*arguments: Any) -> Iterator[Any]:
        frames = decode(*arguments)
        following = timed("decode", lambda: next(frames, None))
        while (frame := following()) is not None:
            yield frame

    for _ in loader:
        pass
    with (
        mock.patch.object(VideoDecoder, "decode", decoded),
        mock.patch.object(FrameConverter, "convert", timed("colour", FrameConverter.convert)),
        mock.patch("datapipe.kinds.clips.decoding.cut_through", timed("resize", cut_through)),
    ):
        started = time.thread_time()
        num_clips = sum(len(next(iter(batch.values()))) for batch in loader)
        whole = time.thread_time() - started
    took["the rest"] = whole - sum(took.values())
    return {part: seconds / num_clips * 1e3 for part, seconds in {**took, "in all": whole}.items()}


def measure_index(scratch: Path, source: Path, num_files: int) -> dict[str, float]:
    """Microseconds per file of making an index: in the kernel, which opens and reads files, and in Python; in all."""
    from datapipe.index.media import MediaSource
    from datapipe.opening.videos.indexing import open_videos

    files = scratch / "files"
    files.mkdir()
    for number in range(num_files):
        shutil.copyfile(source / "0.mp4", files / f"{number}.mp4")
    sources = [MediaSource(str(path)) for path in sorted(files.iterdir())]
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(scratch / "index")}):
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        open_videos(sources, where=str(files))
        after, ended = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    seconds = {
        "kernel": after.ru_stime - before.ru_stime,
        "Python": after.ru_utime - before.ru_utime,
        "in all, by the clock": ended - started,
    }
    return {part: round(value / num_files * 1e6, 1) for part, value in seconds.items()}


if __name__ == "__main__":
    main()
