"""Decoding on another machine's core: what is left for the trainer's core, how fast a worker's core is, and what a kill costs.

    python -m benchmarks.elsewhere              # 10 minutes on two cores
    python -m benchmarks.elsewhere --dry-run    # little of everything: does it run?

The trainer is held to one core and `datapipe serve` to another one of this machine; between them is the loopback. "Here" decodes
in a thread on the trainer's core, "elsewhere" on the worker's alone, "both" on both. CPU times are the trainer's.
Under "kills" the service is killed every ten seconds and begun again, while both decode. Needs two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import datapipe as dp
from benchmarks import harness
from benchmarks.ratios import ratio_of, rotated
from benchmarks.shown.machines_elsewhere import elsewhere
from benchmarks.video import write_videos
from datapipe import transforms as T
from datapipe.core.environment import importing_as_here
from datapipe.remote_workers.connection import Address, Connection
from datapipe.remote_workers.settings import addresses
from datapipe.testing.synthetic_images import make_image_folder

CROP: list[Any] = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
FLOATS: list[Any] = [T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
CONTRASTIVE: list[Any] = [
    *CROP, T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8), T.RandomGrayscale(0.2),
    T.RandomApply([T.GaussianBlur(23)], p=0.5),
]  # fmt: skip
PLACES = ("here", "elsewhere", "both")
CONNECTIONS = 10
_TRAINER, _WORKER = 0, 1  # cores
_START_S = 120.0
_KILL_EVERY_S = 10.0
_TOKEN = secrets.token_hex(16)

Open = Callable[..., Any]  # a loader with these `num_workers` and `workers`


class Service:
    """`datapipe serve` on a core of its own."""

    def __init__(self, top: Path, port: int = 0) -> None:
        command = [sys.executable, "-m", "datapipe", "serve", "--root", str(top), "--listen", f"127.0.0.1:{port}", "--cores", "1"]
        self.process = subprocess.Popen(
            command,
            env=importing_as_here() | {"DATAPIPE_TOKEN": _TOKEN, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {_core(_WORKER)}),
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> None:
    arguments = _parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        top, is_dry = Path(name), arguments.dry_run
        photos = make_image_folder(top / "photos", num_images=16 if is_dry else 512, num_classes=2)
        write_videos(top / "videos", 2 if is_dry else 12, 150 if is_dry else 300)
        os.sched_setaffinity(0, {_core(_TRAINER)})
        service = Service(top)
        workers = dp.Workers(service.url, token=_TOKEN)
        loaders = _loaders(photos, top / "videos", repeats=16 if is_dry else 6)
        cases = {case: _compared(opened, workers, arguments.rounds) for case, opened in loaders.items()}
        idle = _idle(workers, 0.2 if is_dry else 10.0)
        service.kill()
        kills = _killed(loaders["images"], top, 2.0 if is_dry else 60.0)
        os.sched_setaffinity(0, _CORES)  # those that were there
    settings = {"num_rounds": arguments.rounds, "batch_size": 64, "kill_every_s": _KILL_EVERY_S}
    result = {"settings": settings, "cases": cases, "idle": idle, "kills": kills}
    if not is_dry:
        harness.save("elsewhere", "benchmarks.elsewhere", result, results=arguments.results)
    print(elsewhere(result))


def _loaders(photos: Path, videos: Path, repeats: int) -> dict[str, Open]:
    """Return what opens a loader of each case. Passes are long: what begins one is no part of what is measured."""
    order = [*range(len(dp.Images(photos)))] * repeats
    common: dict[str, Any] = {"seed": 0, "drop_last": True, "device": "cpu"}
    clips = dp.Clips(videos, frames=8, stride=2, per_visit=1)

    def of_images(transform: list[Any], share: float = 1.0) -> Open:
        some = order[: int(share * len(order))]
        return lambda **options: dp.DataLoader(photos, 64, sampler=some, transform=transform, **common, **options)

    return {
        "images": of_images(CROP),
        "floats": of_images([*CROP, *FLOATS], 0.7),
        "contrastive": of_images(CONTRASTIVE, 0.4),
        "clips": lambda **options: dp.DataLoader(clips, 8, shuffle=True, transform=CROP, **common, **options),
    }


def _compared(opened: Open, workers: dp.Workers, num_rounds: int) -> dict[str, Any]:
    """Return CPU times and rates of the ways to decode, in alternated rounds."""
    loaders = {
        "here": opened(num_workers=1),
        "elsewhere": opened(num_workers=0, workers=workers),
        "both": opened(num_workers=1, workers=workers),
    }
    digests = {place: _digest(loader) for place, loader in loaders.items()}  # also opens files, and warms caches
    assert len({*digests.values()}) == 1, f"batches differ: {digests}"
    rounds: dict[str, list[tuple[float, float]]] = {place: [] for place in PLACES}
    for number in range(num_rounds):
        for place in rotated([*PLACES], number):
            rounds[place].append(_pass(loaders[place]))
    cpu = {place: [one[0] for one in found] for place, found in rounds.items()}
    rate = {place: [one[1] for one in found] for place, found in rounds.items()}
    return {
        "cpu_us": {place: round(statistics.median(found), 1) for place, found in cpu.items()},
        "rate": {place: round(statistics.median(found), 1) for place, found in rate.items()},
        "cpu_ratio": dataclasses.asdict(ratio_of(cpu["here"], cpu["elsewhere"])),
        "rate_ratio": dataclasses.asdict(ratio_of(rate["elsewhere"], rate["here"])),
        "both_ratio": dataclasses.asdict(ratio_of(rate["both"], rate["here"])),
    }


def _pass(loader: Any) -> tuple[float, float]:
    """Return the CPU time of this process for a sample, in µs, and samples/s, of a pass from its second batch on."""
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    began, used, num = time.perf_counter(), _used_s(), 0
    for batch in batches:
        num += len(_pixels(batch))
    took = time.perf_counter() - began
    return (_used_s() - used) / max(1, num) * 1e6, num / took


def _pixels(batch: Any) -> torch.Tensor:
    pixels: torch.Tensor = batch["video"] if isinstance(batch, dict) else batch[0]
    return pixels


def _bytes(batch: Any) -> memoryview:
    return memoryview(_pixels(batch).contiguous().numpy().reshape(-1).view(np.uint8).data)


def _digest(loader: Any) -> str:
    loader.set_epoch(0)
    digest = hashlib.sha256()
    for batch in loader:
        digest.update(_bytes(batch))
    return digest.hexdigest()


def _idle(workers: dp.Workers, for_s: float) -> dict[str, float]:
    """Return what open connections cost this process, in µs of CPU a second."""
    (url,) = addresses(workers.places)
    connections = [Connection(Address(url, _TOKEN)) for _ in range(CONNECTIONS)]
    for one in connections:
        one.hello(10)
    time.sleep(0.1)
    used = _used_s()
    time.sleep(for_s)
    return {"connections": CONNECTIONS, "cpu_us_per_s": round((_used_s() - used) / for_s * 1e6, 1)}


def _killed(opened: Open, top: Path, for_s: float) -> dict[str, Any]:
    """Return what is lost while a worker is killed again and again, beyond the share of its absence."""
    service = Service(top)
    workers = dp.Workers(service.url, token=_TOKEN)
    rates = {"here": _rate(opened(num_workers=1), for_s / 4), "both": _rate(opened(num_workers=1, workers=workers), for_s / 4)}
    there: list[tuple[float, float]] = []  # from when to when the service answered
    num_kills, stopped, loader = 0, threading.Event(), opened(num_workers=1, workers=workers)
    expected = _digest(opened(num_workers=1))

    def kill_again() -> None:
        nonlocal service, num_kills
        began = time.monotonic()
        while not stopped.wait(_KILL_EVERY_S if for_s > _KILL_EVERY_S else 0.5):
            service.kill()
            num_kills += 1
            there.append((began, time.monotonic()))
            service = Service(top, service.port)
            began = time.monotonic()
        there.append((began, time.monotonic()))

    began, num, num_passes = time.monotonic(), 0, 0
    killing = threading.Thread(target=kill_again)
    killing.start()
    while time.monotonic() - began < for_s:
        loader.set_epoch(0)
        digest = hashlib.sha256()
        for batch in loader:
            num += len(batch[1])
            digest.update(_bytes(batch))
        assert digest.hexdigest() == expected, "batches differ"
        num_passes += 1
    ended = time.monotonic()
    stopped.set()
    killing.join()
    service.kill()
    share = sum(min(end, ended) - start for start, end in there if start < ended) / (ended - began)
    reached, possible = num / (ended - began), share * rates["both"] + (1 - share) * rates["here"]
    return {
        "kills": num_kills,
        "passes": num_passes,
        "rates": {place: round(rate, 1) for place, rate in rates.items()},
        "share_there": round(share, 3),
        "rate": round(reached, 1),
        "lost": round(1 - reached / possible, 3),
    }


def _rate(loader: Any, for_s: float) -> float:
    """Return samples/s, digests included, as under kills."""
    began, num = time.monotonic(), 0
    while time.monotonic() - began < for_s:
        digest = hashlib.sha256()
        for batch in loader:
            num += len(batch[1])
            digest.update(_bytes(batch))
    return num / (time.monotonic() - began)


def _used_s() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def _core(number: int) -> int:
    """Return the n-th core that this process could use when it began."""
    return _CORES[number]


_CORES = sorted(os.sched_getaffinity(0))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elsewhere", description="Decoding on another machine's core.")
    arguments = harness.run_arguments(parser, rounds=7, scratch="photographs and videos of 100 MB")
    if len(_CORES) < 2:
        parser.error("needs two cores, one for the trainer and one for the worker")
    return arguments


if __name__ == "__main__":
    main()
