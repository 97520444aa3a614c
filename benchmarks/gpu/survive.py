"""Stage `survive`: abandoned iterators, batches that are kept, read late, or not waited for, and further damaged files.

Each question has a process of its own: a crash is an answer.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.job import run_job
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import photographs
from benchmarks.gpu.settings import Check, Deadline
from benchmarks.gpu.verdicts import BY_ENGINES, BY_KERNELS, every_damage, measure_verdicts, other_policies

_MAX_GROWTH = {"threads": 0, "tasks": 8, "files": 4, "host_mb": 150, "device_mb": 100}
_MAX_MEANS_APART = 0.02  # of normalised images: another decoder's rounding, never another image


def run(check: Check, report: Report, deadline: Deadline) -> None:
    with report.attempt("damaged files"):
        measure_verdicts(check, report, deadline, other_policies(check), (BY_KERNELS,))
    for question in _questions(check, str(photographs(check) / "shards")):
        _ask(check, report, deadline, question)
    if not check.is_dry:
        measure_verdicts(check, report, deadline, every_damage(check), (BY_ENGINES,))


def _questions(check: Check, data: str) -> list[dict[str, Any]]:
    common = {"data": data, "batch_size": check.pick(64, 8)}
    dali: dict[str, Any] = {**common, "dali": {"hw_decoder_load": 0.0}}  # each image always by the same decoder
    on_cpu: dict[str, Any] = {**common, "dali": None}
    poison = {"question": "poisoned", "num": check.pick(200, 4)}
    side = {"question": "late", "num": check.pick(100, 4), "delay_ms": check.pick(30.0, 1.0)}
    asked = [
        {**dali, "question": "abandoned", "num": check.pick(200, 10)},
        {**dali, "question": "kept", "num": check.pick(300, 12), "num_kept": check.pick(30, 3)},
        {**dali, **side},
        {**dali, **poison},
        {**on_cpu, **side},
        {**on_cpu, **poison},
        {**on_cpu, "question": "abandoned", "num": check.pick(200, 10)},
        {**on_cpu, "question": "kept", "num": check.pick(300, 12), "num_kept": check.pick(30, 3)},
        {**dali, "question": "ahead", "num": 60, "hold_ms": check.pick(3000.0, 5.0)},
        {**on_cpu, "question": "ahead", "num": 60, "hold_ms": check.pick(3000.0, 5.0)},
    ]
    return [question for number, question in enumerate(asked) if not check.is_dry or number in (0, 1, 2, 5, 8)]


def _ask(check: Check, report: Report, deadline: Deadline, question: dict[str, Any]) -> None:
    way = "images_cpu" if question["dali"] is None else "DALI"
    what = f"{question['question']}, {way}"
    if _is_late(check, report, deadline, what):
        return
    outcome = run_job(check, "lifetimes_job", question, limit_s=90)
    if outcome.problem is not None:
        report.fail(what, outcome.problem)
        return
    found = outcome.last
    report.add(what, {"way": way, **found})
    if "num_changed" in found:
        report.expect(what, found["num_changed"] == 0, f"{found['num_changed']} batches changed in the user's hands")
    if "worst_difference" in found:
        worst = found["worst_difference"]
        report.expect(what, worst <= _MAX_MEANS_APART, f"means of images differ by up to {worst}")
    if question["question"] == "abandoned" and not check.is_dry:
        for name, most in _MAX_GROWTH.items():
            grown = found[f"{name}_grown"]
            report.expect(what, grown <= most, f"{name} grew by {grown} over abandoned iterators, at most {most} was meant")


def _is_late(check: Check, report: Report, deadline: Deadline, what: str) -> bool:
    if check.is_dry or deadline.left_s > 25:
        return False
    report.skip(what, f"25 s needed, {max(0, deadline.left_s):.0f} s left")
    return True
