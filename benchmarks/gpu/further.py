"""Stage `further`: less important measurements, if there is time. Uses the best settings that `sweep` found.

capture   CUDA graphs captured beside a running loader, in both error modes
cores     the best of `sweep` on 8 and on 4 cores
by hand   networks fed by the pipeline that is written by hand in DALI
priority  networks fed by ours, with the copies on a stream of higher priority
"""

from __future__ import annotations

from benchmarks.gpu.earlier import BY_HAND, ON_CPU, OURS, best_settings
from benchmarks.gpu.job import run_job
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import photographs
from benchmarks.gpu.settings import Check, Deadline
from benchmarks.gpu.sweep import Sweep
from benchmarks.gpu.train import RESIDENT, models, train, variant_of

_HIGH = -1  # torch's higher priority of two


def run(check: Check, report: Report, deadline: Deadline) -> None:
    root = photographs(check)
    best = best_settings(check)
    with report.attempt("capture"):
        _capture(check, report, deadline)
    with report.attempt("cores"):
        Sweep(check, report, deadline, root).on_fewer_cores((8, 4) if not check.is_dry else (1,))
    resident = variant_of(check, RESIDENT, {})
    with report.attempt("by hand"):
        for model in models(check):
            feeds = [resident, variant_of(check, BY_HAND, best.get(BY_HAND, {}))]
            train(check, report, deadline, model, feeds, root, phase="by hand")
    with report.attempt("priority"):
        for model in models(check)[:1]:
            for contender in (OURS, ON_CPU)[: check.pick(2, 1)]:
                own = best.get(contender, {"dali": {}} if contender == OURS else {})
                feeds = [variant_of(check, contender, {**own, "copy_priority": priority}) for priority in (0, _HIGH)]
                train(check, report, deadline, model, [resident, *feeds], root, phase="priority")


def _capture(check: Check, report: Report, deadline: Deadline) -> None:
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
