"""Stage `correct`: are the GPU's pixels right, idle and busy; do captures and scripts end well?

What later stages need to know is noted: whether DALI decodes regions on this GPU without taking its process down.
"""

from __future__ import annotations

import shutil

from benchmarks.gpu import look, parity
from benchmarks.gpu.capture import capture
from benchmarks.gpu.job import run_job
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import photographs, some_files
from benchmarks.gpu.settings import Check, Deadline

_MAX_MEAN = 2.0  # of 255, of one image against Pillow's
_LEFT_FOR_OTHERS_S = 90  # that comparing pixels leaves to what comes after it
_ENDS_IN_S = 60
_LOADS = (0.0, 1.0)  # share of the JPEG engines


def run(check: Check, report: Report, deadline: Deadline) -> None:
    with report.attempt("machine"):
        look.tell_machine(check, report)
    with report.attempt("regions"):
        report.note(decodes_regions=_regions(check, report))
    with report.attempt("parity"):
        parity.run(check, report, deadline.less(0 if check.is_dry else _LEFT_FOR_OTHERS_S))
    with report.attempt("capture"):
        capture(check, report, deadline)
    with report.attempt("end"):
        _ends(check, report, deadline)
    with report.attempt("decoders"):
        look.tell_decoders(check, report)
    shutil.rmtree(check.data / "some-files", ignore_errors=True)


def _regions(check: Check, report: Report) -> bool:
    """Try what may take a process down, each in one of its own: regions and whole images, without the JPEG engines and with."""
    works = {}
    data = str(some_files(check, check.pick(32, 6)))
    for of in ("regions", "whole images"):
        for load in _LOADS:
            what = f"DALI decodes {of}, {'with' if load else 'without'} the JPEG engines"
            arguments = {"data": data, "of": of, "load": load, "batch_size": check.pick(64, 4)}
            outcome = run_job(check, "regions_job", arguments, limit_s=60)
            if outcome.last:
                report.add(what, {"of": of, **outcome.last})
                worst = outcome.last["worst_mean_difference"]
                report.expect(what, worst <= _MAX_MEAN, f"an image differs from Pillow's by {worst} of 255 on average")
            if outcome.problem is not None:
                report.fail(what, outcome.problem)
            works[of, load] = outcome.problem is None
    return all(works["regions", load] for load in _LOADS)


def _ends(check: Check, report: Report, deadline: Deadline) -> None:
    """A normal end of the interpreter, in the midst of an epoch and after the iterator was closed."""
    data = str(photographs(check))
    ways = [("gpu-ours-dali", False), ("gpu-ours-dali", True), ("gpu-ours-cpu", False)]
    for contender, is_closed in ways[: check.pick(3, 1)]:
        what = f"end of a script, {contender}, iterator {'closed' if is_closed else 'left'}"
        if not check.is_dry and deadline.left_s < 20:
            report.skip(what, f"20 s needed, {max(0, deadline.left_s):.0f} s left")
            continue
        arguments = {"data": data, "contender": contender, "batch_size": check.pick(64, 4), "is_closed": is_closed}
        outcome = run_job(check, "exit_job", arguments, limit_s=_ENDS_IN_S, environment={}, ends_normally=True)
        if outcome.problem is not None:
            report.fail(what, outcome.problem)
        report.add(
            what, {"contender": contender, "ended_well": outcome.problem is None, **outcome.last, "wall_s": outcome.wall_s}
        )
