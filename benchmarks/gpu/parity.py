"""The same seed by every backend and device: the same samples, the same crops, nearly the same pixels.

Differences are of 255, over all values of all photographs. Which ways are compared, and how far apart they may be, is in
`ways`. "Busy" is a device on which another stream computes meanwhile, and batches are read late: what is written to memory
that is still being read, or read before it is written, shows there.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.job import run_job
from benchmarks.gpu.parity_job import RECIPES, SEED
from benchmarks.gpu.references import reference
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import some_files
from benchmarks.gpu.settings import Check, Deadline
from benchmarks.task import IMAGENET_STD
from datapipe.kinds.images.dali.settings import HUFFMAN_THRESHOLD


@dataclass(frozen=True, slots=True)
class Bound:
    """The greatest differences allowed, of 255: of any value, of 99.9% of them, on average."""

    largest: float
    p999: float
    mean: float


EXACT = Bound(0, 0, 0)
ROUNDINGS = Bound(0.01, 0.01, 0.001)  # the same float32 arithmetic by another unit
RESIZE = Bound(2, 1, 0.1)  # torch's integer resize against Pillow's
DECODER = Bound(64, 4, 0.5)  # another inverse cosine transform and resize; single values differ more where chroma is steep

OURS = "images_cpu on the CPU"
BY_HAND = {"pillow": "Pillow", "torchvision": "torchvision's tensor functions"}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the pixels."""

    name: str
    backend: str
    device: str
    bound: Bound  # against OURS
    dali: dict[str, Any] | None = None
    older_nvjpeg: bool = False
    is_busy: bool = False


def ways(device: str) -> list[Way]:
    """The most telling first: OURS, to which the others are held, and then DALI by the share of the JPEG engines."""

    def dali(load: float, huffman: int = HUFFMAN_THRESHOLD, **about: Any) -> Way:
        words = {"is_busy": "busy", "older_nvjpeg": "whole images"}
        name = f"DALI, load {load:g}" + ", Huffman on the GPU" * (not huffman) + "".join(f", {words[word]}" for word in about)
        return Way(name, "dali", device, DECODER, {"hw_decoder_load": load, "hybrid_huffman_threshold": huffman}, **about)

    return [
        Way(OURS, "images_cpu", "cpu", EXACT),
        dali(0.65, is_busy=True),
        dali(0.0, is_busy=True),
        dali(0.0, 0, is_busy=True),
        dali(1.0, is_busy=True),
        dali(0.0, older_nvjpeg=True),
        Way("images_cpu, pixels on the device, busy", "images_cpu", device, ROUNDINGS, is_busy=True),
        dali(0.0),
        dali(1.0),
        dali(1.0, older_nvjpeg=True, is_busy=True),
        Way("DALI on the CPU", "dali", "cpu", DECODER, {}),
    ]


def run(check: Check, report: Report, deadline: Deadline) -> None:
    """Compare until the deadline."""
    folder = some_files(check, check.pick(128, 6))
    scratch = check.data / "parity-pixels"
    made: dict[str, dict[str, dict[str, Any]]] = {}  # way -> recipe -> what the job said
    chosen = ways(check.device)
    for number, way in enumerate([chosen[number] for number in (0, 2, 3, 6, 7)] if check.is_dry else chosen):
        if not check.is_dry and deadline.left_s < 30:
            report.skip(way.name, f"30 s needed, {max(0, deadline.left_s):.0f} s left")
            continue
        arguments = {
            **{name: getattr(way, name) for name in ("backend", "device", "dali", "older_nvjpeg", "is_busy")},
            "data": str(folder),
            "out": str(scratch / str(number)),
            "recipes": list(RECIPES),
            "batch_size": check.pick(16, 2),
            "delay_ms": check.pick(20.0, 1.0),
        }
        outcome = run_job(check, "parity_job", arguments, limit_s=120)
        if outcome.problem is not None:
            report.fail(way.name, outcome.problem)
        made[way.name] = {result["recipe"]: result for result in outcome.results if "recipe" in result}
        for result in outcome.results:
            if "libraries" in result:
                report.add(f"{way.name}: libraries", {"way": way.name, **result})
        if way.name != OURS:
            compare_ways(report, made.get(OURS, {}), made.pop(way.name), way)
            shutil.rmtree(scratch / str(number), ignore_errors=True)
    if check.is_dry or deadline.left_s > 15:
        _compare_references(check, report, made.get(OURS, {}), folder)
    else:
        report.skip("comparison with torchvision and Pillow", f"15 s needed, {max(0, deadline.left_s):.0f} s left")
    shutil.rmtree(scratch, ignore_errors=True)


def compare_ways(report: Report, ours: dict[str, Any], theirs: dict[str, Any], way: Way) -> None:
    """Hold what a job of `way` made to what one of OURS made: recipe -> the job's result."""
    for recipe, first in ours.items():
        if recipe not in theirs:
            continue
        second = theirs[recipe]
        what = f"{recipe}: {OURS} - {way.name}"
        same = {key: first[key] == second[key] for key in ("ids", "labels", "dtype")}
        report.expect(what, all(same.values()), f"not the same: {[key for key, holds in same.items() if not holds]}")
        difference = np.load(first["file"]).astype(np.float32) - np.load(second["file"])
        _judge(report, what, recipe, way.name, difference * _unit(first["dtype"]), way.bound)


def _compare_references(check: Check, report: Report, ours: dict[str, Any], folder: Path) -> None:
    """Some of them: each is made by hand."""
    files = sorted(folder.glob("*/*"), key=lambda path: (os.fsencode(path.parent.name), os.fsencode(path.name)))
    for recipe, made in ours.items():
        pixels = np.load(made["file"])
        for by, name in BY_HAND.items():
            what = f"{recipe}: {OURS} - {name}"
            rows = range(0, len(files), check.pick(4, 1))
            try:
                expected = [reference(files[made["ids"][row]], made["ids"][row], RECIPES[recipe], SEED, by=by) for row in rows]
            except ImportError as exc:
                report.skip(what, str(exc))
                continue
            found = torch.from_numpy(pixels[list(rows)])
            difference = (found.float() - torch.stack(expected).float()).numpy() * _unit(made["dtype"])
            bound = RESIZE if by == "pillow" else EXACT if made["dtype"] == "torch.uint8" else ROUNDINGS
            _judge(report, what, recipe, name, difference, bound)


def _unit(dtype: str) -> Any:
    """What turns a difference into one of 255: per channel where images are normalised."""
    return 1.0 if dtype == "torch.uint8" else np.array(IMAGENET_STD, np.float32).reshape(1, 3, 1, 1) * 255


def _judge(report: Report, what: str, recipe: str, against: str, difference: Any, bound: Bound) -> None:
    sizes = np.abs(difference)
    largest = round(float(sizes.max()), 4)
    p999 = round(float(np.quantile(sizes, 0.999)), 4)
    mean = round(float(sizes.mean(dtype=np.float64)), 5)
    is_within = largest <= bound.largest and p999 <= bound.p999 and mean <= bound.mean
    found = {
        "recipe": recipe,
        "against": against,
        "max": largest,
        "p99.9": p999,
        "mean": mean,
        "bias": round(float(difference.mean(dtype=np.float64)), 5),
        "share_equal": round(float((sizes == 0).mean()), 5),
        "num_images": len(sizes),
        "bound": dataclasses.asdict(bound),
        "is_within": is_within,
    }
    report.add(what, found)
    report.expect(what, is_within, f"max {largest}, p99.9 {p999}, mean {mean}, more than {bound}")
