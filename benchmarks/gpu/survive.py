"""Stage `survive`: bad files, abandoned iterators, batches that are kept, read late, or not waited for.

Each question has a process of its own: a crash is an answer.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from benchmarks.gpu.damage import DAMAGES, DamagedFolder, lay_out, places_in_batches
from benchmarks.gpu.job import run_job
from benchmarks.gpu.parity import some_files
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import image_set
from benchmarks.gpu.settings import Check, Deadline

_MAX_MEAN = 2.0  # of 255, of one image: another image's pixels would be tens away
_MAX_GROWTH = {"threads": 0, "tasks": 8, "files": 4, "host_mb": 150, "device_mb": 100}
_MAX_MEANS_APART = 0.02  # of normalised images: another decoder's rounding, never another image


def run(check: Check, report: Report, deadline: Deadline) -> None:
    root = image_set(check, "photos")
    originals = sorted(some_files(check, root / "folder", check.pick(100, 8)).glob("*/*"))
    _bad_files(check, report, deadline, originals)
    for question in _questions(check, str(root / "shards")):
        _ask(check, report, deadline, question)


def _bad_files(check: Check, report: Report, deadline: Deadline, originals: list[Path]) -> None:
    batch_size = check.pick(64, 6)
    places, num_samples = places_in_batches(batch_size)
    work = [(how, "skip", places, num_samples) for how in DAMAGES]
    work += [("cut", "raise", places, num_samples), ("text", "replace", places, num_samples)]
    ten = [(7 + 97 * number) % check.pick(1000, 60) for number in range(10)]
    work += [(how, "skip", ten, check.pick(1000, 60)) for how in ("text", "cut")]
    for how, policy, where, num in [work[number] for number in (0, 4, 8, 9)] if check.is_dry else work:
        what = f"{how}, {policy}, {len(where)} of {num}"
        if _is_late(check, report, deadline, what):
            continue
        folder = lay_out(check.data / "damaged", originals, how, where, num)
        arguments = {"data": str(folder.root), "damaged": folder.damaged, "batch_size": batch_size, "policy": policy}
        outcome = run_job(check, "survive_job", arguments, limit_s=60)
        if outcome.problem is not None:
            report.fail(what, outcome.problem)
            continue
        report.add(what, {"how": how, **outcome.last})
        _judge_bad_files(report, what, how, folder, outcome.last, batch_size)
    shutil.rmtree(check.data / "damaged", ignore_errors=True)


def _judge_bad_files(report: Report, what: str, how: str, folder: DamagedFolder, found: dict[str, Any], batch_size: int) -> None:
    if found["policy"] == "raise":
        report.expect(what, found["raised"] == "DecodeError", f"it raised {found['raised']}")
        return
    worst, whole = found["worst_mean_difference"], found["bad_though_whole"]
    report.expect(what, worst <= _MAX_MEAN, f"an undamaged image differs by {worst} of 255 on average")
    report.expect(what, not whole, f"undamaged samples were called bad: {whole}")
    if "flipped" not in how:  # a flipped bit may leave an image that one decoder takes and another does not: the report tells
        report.expect(what, found["same_verdict"], f"called bad by one backend alone: {found['verdicts_differ']}")
    if found["policy"] == "replace":
        full = folder.num_samples // batch_size
        report.expect(what, found["batch_sizes"] == [batch_size] * full, f"batches of {found['batch_sizes']}")


def _questions(check: Check, data: str) -> list[dict[str, Any]]:
    common = {"data": data, "batch_size": check.pick(64, 8)}
    dali: dict[str, Any] = {**common, "dali": {}}
    steady: dict[str, Any] = {**common, "dali": {"hw_decoder_load": 0.0}}  # each image always by the same decoder
    on_cpu: dict[str, Any] = {**common, "dali": None}
    poison = {"question": "poisoned", "num": check.pick(200, 4)}
    side = {"question": "late", "num": check.pick(100, 4), "delay_ms": check.pick(30.0, 1.0)}
    asked = [
        {**dali, "question": "abandoned", "num": check.pick(200, 10)},
        {**dali, "question": "kept", "num": check.pick(300, 12), "num_kept": check.pick(30, 3)},
        {**steady, **side},
        {**steady, **poison},
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
