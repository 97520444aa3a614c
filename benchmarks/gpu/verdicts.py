"""Damaged files: DALI's results, for each share of the JPEG engines, compared with the CPU path's.

Without the engines every verdict must be the CPU path's. With them a damaged body may come out as pixels: how often it does
is told, and no failure. At any share an undamaged image must come out as it is, and no process may end.
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


def measure_verdicts(check: Check, report: Report, deadline: Deadline, cases: Sequence[Case], loads: Sequence[float]) -> None:
    """All cases at each load, a process for each load."""
    originals = sorted(some_files(check, check.pick(100, 8)).glob("*/*"))
    root = check.data / "damaged"
    laid_out = [
        lay_out(root / str(number), originals, case.how, case.places, case.num_samples) for number, case in enumerate(cases)
    ]
    for load in loads:
        _at_load(check, report, deadline, list(zip(cases, laid_out, strict=True)), load)
    shutil.rmtree(root, ignore_errors=True)


def _at_load(check: Check, report: Report, deadline: Deadline, cases: list[tuple[Case, DamagedFolder]], load: float) -> None:
    if not check.is_dry and deadline.left_s < 25:
        report.skip(f"damaged files at load {load:g}", f"25 s needed, {max(0, deadline.left_s):.0f} s left")
        return
    size = batch_size_of(check)
    asked = [{"data": str(folder.root), "damaged": folder.damaged, "policy": case.policy} for case, folder in cases]
    arguments = {"load": load, "batch_size": size, "cases": asked}
    outcome = run_job(check, "verdicts_job", arguments, limit_s=60 + 5 * len(cases))
    for (case, folder), found in zip(cases, outcome.results, strict=False):
        what = f"load {load:g}, {case.name}"
        report.add(what, {"load": load, "how": case.how, **found})
        _judge(report, what, folder, found, size, load)
    if outcome.problem is not None:
        culprit, *others = cases[len(outcome.results) :] or [cases[-1]]
        report.fail(f"load {load:g}, {culprit[0].name}", outcome.problem)
        if others:
            _at_load(check, report, deadline, others, load)


def _judge(report: Report, what: str, folder: DamagedFolder, found: dict[str, Any], batch_size: int, load: float) -> None:
    if found["policy"] == "raise":
        report.expect(what, found["raised"] == "DecodeError" or load > 0, f"it raised {found['raised']}")
        return
    worst, whole = found["worst_mean_difference"], found["bad_though_whole"]
    report.expect(what, worst <= _MAX_MEAN, f"an undamaged image differs by {worst} of 255 on average")
    report.expect(what, not whole, f"undamaged samples were called bad: {whole}")
    if load == 0:
        report.expect(what, found["same_verdict"], f"called bad by one backend alone: {found['verdicts_differ']}")
    if found["policy"] == "replace":
        full = folder.num_samples // batch_size
        report.expect(what, found["batch_sizes"] == [batch_size] * full, f"batches of {found['batch_sizes']}")
