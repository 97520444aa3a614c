"""CUDA graphs captured beside a running loader, in both error modes: part of the stage `correct`."""

from __future__ import annotations

from benchmarks.gpu.earlier import ON_CPU, OURS
from benchmarks.gpu.job import run_job
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import photographs
from benchmarks.gpu.settings import Check, Deadline
from benchmarks.gpu.train import variant_of


def capture(check: Check, report: Report, deadline: Deadline) -> None:
    """Capture, replay, compare; the loader must go on."""
    for contender in (ON_CPU, OURS):
        for mode in ("thread_local", "global"):
            what = f"capture, {contender}, {mode}"
            if not check.is_dry and deadline.left_s < 20:
                report.skip(what, f"20 s needed, {max(0, deadline.left_s):.0f} s left")
                continue
            arguments = {
                "variant": variant_of(check, contender, {}).to_json(),
                "data": str(photographs(check)),
                "mode": mode,
                "num": check.pick(20, 2),
                "wait_s": check.pick(0.05, 0.001),
            }
            outcome = run_job(check, "capture_job", arguments, limit_s=60)
            if outcome.problem is not None:
                report.fail(what, outcome.problem)
                continue
            found = outcome.last
            report.add(what, {"phase": "capture", **found})
            # DALI's threads are its own: where a capture must not see them, the user has to say so.
            if contender == ON_CPU or mode == "thread_local":
                why = found["first_error"] or found["loader_error"]
                report.expect(what, not found["num_failed"] and not found["loader_error"], why)
