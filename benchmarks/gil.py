"""How long the loader holds Python's global lock per image: what bounds it on many cores.

    python -m benchmarks.gil

Two measurements, of the CPU path and of what the loader's threads do for DALI (read, parse headers, gate, draw, feed).

*At most*: the CPU time that one thread needs per image where images are so small (16 x 16 pixels, cut to 8 x 8) that
what runs outside the lock, decoding, resizing and arithmetic, takes next to no time. What is left is Python's own work
and the fixed cost of each call. No more than that can be under the lock, and the calls release it for a part of that.
`calls_us` is that fixed cost for the two largest calls, decode and resize, measured alone. Tiny images leave Python's own
memory in the core's caches, as real ones do not.

*Held*: the share of looks at which the lock was held (`diagnostics.ceilings.lock_watch`), times the time per image; on the
same tiny images, and on images of 500 x 375 pixels cut to 224 x 224, after whose decoding Python's memory is cold; and on
clips of video, by one thread alone and by one that has a worker process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.environment import ROOT
from datapipe.diagnostics.ceilings.lock_watch import offer, report_span, watch

BACKENDS = ("images_cpu", "dali")
WORKERS = ("threads", "processes")  # that decode clips
_NUM_EPOCHS = 5  # measured in each process, after one that is not
_NUM_VIDEOS, _NUM_FRAMES = 6, 300


@dataclass(frozen=True)
class Images:
    """Generated JPEGs, and what the loader makes of them."""

    name: str
    num: int
    height: int  # pixels
    width: int
    crop: int  # pixels, of each side
    grain: int  # pixels that share a colour, so that bytes are as many as a photograph's


TINY = Images("tiny", 4096, 16, 16, crop=8, grain=1)
PHOTOS = Images("photo-sized", 512, 375, 500, crop=224, grain=8)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gil")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--once", nargs=3, metavar=("DATA", "CROP", "HOW"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        offer()
        data, crop, how = arguments.once
        for epoch in measure_clips(Path(data), int(crop), how) if how in WORKERS else measure(Path(data), int(crop), how):
            report_span(**epoch)
        return
    rounds: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        made = {images: make_shards(Path(scratch) / images.name, images) for images in (TINY, PHOTOS)}
        videos = make_videos(Path(scratch) / "videos")
        for _ in range(arguments.rounds):
            for how in WORKERS:
                rounds.setdefault(("clips", how), []).append(_run(videos, PHOTOS.crop, how))
            for images, shards in made.items():
                for backend in BACKENDS:
                    rounds.setdefault((images.name, backend), []).append(_run(shards, images.crop, backend))
    medians = {f"{images}, {backend}": _median(found) for (images, backend), found in rounds.items()}
    cpu, dali = (rounds[TINY.name, backend] for backend in BACKENDS)
    result: dict[str, Any] = {
        "settings": {
            "num_images": TINY.num,
            "side": TINY.height,
            "crop": TINY.crop,
            "num_threads": 1,
            "num_rounds": arguments.rounds,
        },
        "median": _bound(cpu),
        "median_dali": _bound(dali),
        "held_us_per_image": _of_images(medians, "held_us"),
        "cpu_us_per_image": _of_images(medians, "cpu_us"),
        "held_us_per_clip": {how: medians[f"clips, {how}"]["held_us"] for how in WORKERS},
        "cpu_us_per_clip": {how: medians[f"clips, {how}"]["cpu_us"] for how in WORKERS},
        "rounds": {f"{images}, {backend}": found for (images, backend), found in rounds.items()},
    }
    harness.save("gil", "benchmarks.gil", result, results=arguments.results)
    for backend, bound in zip(BACKENDS, (result["median"], result["median_dali"]), strict=True):
        print(f"{backend}: at most {bound['at_most_us_per_image']:.1f} us per image")
    for name, held_us in result["held_us_per_image"].items():
        print(f"{name}: held for {held_us:.1f} us per image")
    for how, held_us in result["held_us_per_clip"].items():
        print(f"clips by {how}: held for {held_us:.1f} us per clip")


def _of_images(medians: dict[str, dict[str, float]], key: str) -> dict[str, float]:
    return {name: median[key] for name, median in medians.items() if not name.startswith("clips")}


def make_shards(directory: Path, images: Images, num: int | None = None) -> Path:
    """Shards of JPEGs of noise."""
    import numpy as np
    from PIL import Image

    from converters import ConvertOptions, convert

    folder, shards = directory / "folder" / "noise", directory / "shards"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(num or images.num):
        pixels = rng.integers(0, 256, (images.height // images.grain, images.width // images.grain, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((images.width, images.height), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:05d}.jpg")
    convert(ConvertOptions(folder.parent, shards))
    return shards


def make_videos(folder: Path, num: int = _NUM_VIDEOS, num_frames: int = _NUM_FRAMES) -> Path:
    """A folder of videos of 640 x 480 pixels, with a key frame every 60."""
    from datapipe.kinds.clips.trial_data import wandering, write_video

    folder.mkdir(parents=True)
    for number in range(num):
        write_video(folder / f"{number}.mp4", wandering(number, num_frames))
    return folder


def _run(data: Path, crop: int, how: str) -> dict[str, float]:
    """The least of each time over the epochs of a process: other processes only add to it."""
    command = [sys.executable, "-m", "benchmarks.gil", "--once", str(data), str(crop), how]
    epochs = watch(command, {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, cwd=ROOT)
    # Elsewhere the thread waits: for DALI's own, for a decoder, for a process. On images it always runs, or would if it could.
    of = "cpu_us" if how == "images_cpu" else "wall_us"
    for epoch in epochs:
        epoch["held_us"] = epoch["held"] * epoch[of]
    return {name: round(min(epoch[name] for epoch in epochs), 2) for name in epochs[0] if name.endswith("_us")}


def _median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in rounds), 2) for name in rounds[0]}


def _bound(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The upper bound first, then its parts."""
    median = _median(rounds)
    return {"at_most_us_per_image": median.pop("cpu_us"), **median}


def measure(shards: Path, crop: int, backend: str) -> list[dict[str, float]]:
    """Of each epoch but the first: its span, and microseconds per image, all told and by stage, in the caller's thread."""
    import torch

    import datapipe as dp
    from datapipe import transforms as T
    from datapipe.core.observe import StageTotals

    recipe = [T.RandomResizedCrop(crop), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)]
    recipe.append(T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD))
    how: Any = dp.Dali() if backend == "dali" else backend
    loader = dp.DataLoader(
        shards, batch_size=128, shuffle=True, seed=0, num_workers=0, transform=recipe, device="cpu", backend=how
    )
    totals = StageTotals()
    loader.observe(totals)
    for _ in loader:
        pass
    epochs = []
    calls_us = _calls_us(loader, crop)
    for _ in range(_NUM_EPOCHS):
        totals.duration_ns.clear()
        start_s, thread_s = time.perf_counter(), time.thread_time()
        num_images = sum(len(images) for images, _ in loader)
        thread_s, end_s = time.thread_time() - thread_s, time.perf_counter()
        times_s = {"cpu_us": thread_s, "wall_us": end_s - start_s}
        times_s |= {f"{name}_us": totals.duration_ns[name] / 1e9 for name in ("plan", "read", "decode", "augment")}
        per_image = {name: seconds / num_images * 1e6 for name, seconds in times_s.items()}
        epochs.append({"start_s": start_s, "end_s": end_s, **per_image, "calls_us": calls_us})
    return epochs


def measure_clips(folder: Path, crop: int, workers: str) -> list[dict[str, float]]:
    """Of each epoch but the first: its span, and microseconds per clip of 8 frames: of this process, and that pass."""
    import datapipe as dp
    from datapipe import transforms as T
    from datapipe.kernel.processes import await_launcher
    from datapipe.kinds.clips.process_workers import IMPORTS

    os.environ["DATAPIPE_WORKERS"] = workers
    await_launcher(IMPORTS, 1)
    data = dp.Clips(folder, frames=8, stride=4, step=4)
    loader = dp.DataLoader(data, 16, True, seed=0, num_workers=1, transform=[T.RandomResizedCrop(crop)])
    epochs = []
    for number in range(1 + _NUM_EPOCHS):
        start_s, cpu_s = time.perf_counter(), time.process_time()
        num_clips = sum(len(batch["video"]) for batch in loader)
        cpu_s, end_s = time.process_time() - cpu_s, time.perf_counter()
        times_us = {"cpu_us": cpu_s / num_clips * 1e6, "wall_us": (end_s - start_s) / num_clips * 1e6}
        if number:
            epochs.append({"start_s": start_s, "end_s": end_s, **times_us})
    return epochs


def _calls_us(loader: Any, crop: int) -> float:
    """What decoding one image and resizing as many pixels as there are in it takes, called alone."""
    import torch
    from torch.nn.functional import interpolate

    from datapipe.codecs.decode import open_decoder
    from datapipe.codecs.probe import probe
    from datapipe.fetch.local import LocalFiles

    index = loader.dataset.index
    entries = index.look_up(index.ids(torch.zeros(1, dtype=torch.int64).numpy()), "image")
    data = LocalFiles().read(entries.extents, 0)
    header, decoder = probe(data), open_decoder()
    image = torch.zeros((1, header.height, header.width, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    size = (crop, crop)
    decode_us = _best_us(lambda: decoder(data, header))
    return decode_us + _best_us(lambda: interpolate(image, size=size, mode="bilinear", antialias=True))


def _best_us(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(100):
            call()
        best = min(best, (time.perf_counter() - started) * 1e4)
    return best


if __name__ == "__main__":
    main()
