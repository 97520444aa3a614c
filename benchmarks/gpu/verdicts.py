"""Damaged files: DALI's results, by each of its ways to decode, compared with the CPU path's.

Without the JPEG engines every verdict must be the CPU path's. With them a damaged body may come out as pixels: how often it does
is told, and no failure. In any way an undamaged image must come out as it is, and no process may end.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.damage import DAMAGES, DamagedFolder, lay_out, places_in_batches
from benchmarks.gpu.job import run_job
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import some_files
from benchmarks.gpu.settings import Check, Deadline

BY_CPU, BY_KERNELS, BY_ENGINES = "Huffman codes on the CPU", "Huffman codes on the GPU", "JPEG engines"
WAYS: dict[str, dict[str, Any]] = {  # to decode by DALI: its settings
    BY_CPU: {},
    BY_KERNELS: {"hybrid_huffman_threshold": 0},
    BY_ENGINES: {"hw_decoder_load": 1.0},
}
_MAX_MEAN = 2.0  # of 255, of one image: another image's pixels would be tens away


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of damage in known places, and what is to be done with it."""

    how: str
    policy: str
    places: list[int]
    num_samples: int

    @property
    def name(self) -> str:
        return f"{self.how}, {self.policy}, {len(self.places)} of {self.num_samples}"


def batch_size_of(check: Check) -> int:
    """Of the batches among which damage is placed."""
    size: int = check.pick(64, 6)
    return size


def every_damage(check: Check) -> list[Case]:
    """Each kind, skipped: at the first, the middle and the last place of a batch, and a whole batch of it."""
    places, num_samples = places_in_batches(batch_size_of(check))
    chosen = check.pick(list(DAMAGES), ["text", "cut", "bit flipped early", "zeros in the body"])
    return [Case(how, "skip", places, num_samples) for how in chosen]


def other_policies(check: Check) -> list[Case]:
    """Raising, replacing, and a few bad ones in many."""
    places, num_samples = places_in_batches(batch_size_of(check))
    num_many = check.pick(1000, 60)
    ten = [(7 + 97 * number) % num_many for number in range(10)]
    return [
        Case("cut", "raise", places, num_samples),
        Case("text", "replace", places, num_samples),
        Case("zeros in the body", "replace", places, num_samples),
        *(Case(how, "skip", ten, num_many) for how in ("text", "cut")),
    ]


def measure_verdicts(check: Check, report: Report, deadline: Deadline, cases: Sequence[Case], ways: Sequence[str]) -> None:
    """All cases in each of these of `WAYS`, a process for each."""
    originals = sorted(some_files(check, check.pick(100, 8)).glob("*/*"))
    root = check.data / "damaged"
    laid_out = [
        lay_out(root / str(number), originals, case.how, case.places, case.num_samples) for number, case in enumerate(cases)
    ]
    for way in ways:
        _by_way(check, report, deadline, list(zip(cases, laid_out, strict=True)), way)
    shutil.rmtree(root, ignore_errors=True)


def _by_way(check: Check, report: Report, deadline: Deadline, cases: list[tuple[Case, DamagedFolder]], way: str) -> None:
    if not check.is_dry and deadline.left_s < 25:
        report.skip(f"damaged files, {way}", f"25 s needed, {max(0, deadline.left_s):.0f} s left")
        return
    size = batch_size_of(check)
    asked = [{"data": str(folder.root), "damaged": folder.damaged, "policy": case.policy} for case, folder in cases]
    arguments = {"dali": WAYS[way], "batch_size": size, "cases": asked}
    outcome = run_job(check, "verdicts_job", arguments, limit_s=60 + 5 * len(cases))
    for (case, folder), found in zip(cases, outcome.results, strict=False):
        what = f"{way}, {case.name}"
        report.add(what, {"way": way, "how": case.how, **found})
        _judge(report, what, folder, found, size, has_engines=way == BY_ENGINES)
    if outcome.problem is not None:
        culprit, *others = cases[len(outcome.results) :] or [cases[-1]]
        report.fail(f"{way}, {culprit[0].name}", outcome.problem)
        if others:
            _by_way(check, report, deadline, others, way)


def _judge(
    report: Report, what: str, folder: DamagedFolder, found: dict[str, Any], batch_size: int, *, has_engines: bool
) -> None:
    if found["policy"] == "raise":
        report.expect(what, found["raised"] == "DecodeError" or has_engines, f"it raised {found['raised']}")
        return
    worst, whole = found["worst_mean_difference"], found["bad_though_whole"]
    report.expect(what, worst <= _MAX_MEAN, f"an undamaged image differs by {worst} of 255 on average")
    report.expect(what, not whole, f"undamaged samples were called bad: {whole}")
    if not has_engines:
        report.expect(what, found["same_verdict"], f"called bad by one backend alone: {found['verdicts_differ']}")
    if found["policy"] == "replace":
        full = folder.num_samples // batch_size
        report.expect(what, found["batch_sizes"] == [batch_size] * full, f"batches of {found['batch_sizes']}")
