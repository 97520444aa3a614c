"""Stage `overlap`: does loading continue during computation, and how long does the compute stream wait in `next()`?"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.earlier import BY_HAND, ON_CPU, OURS, best_settings
from benchmarks.gpu.job import run_job
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import photographs
from benchmarks.gpu.settings import Check, Deadline, num_cores

_MAX_IDLE = 0.02  # of the time, where computing takes twice as long as a batch: DESIGN's aim is 1% in training


def run(check: Check, report: Report, deadline: Deadline) -> None:
    root, best = photographs(check), best_settings(check)
    for contender in (OURS, ON_CPU, BY_HAND)[: check.pick(3, 2)]:
        if not check.is_dry and deadline.left_s < 45:
            report.skip(contender, f"45 s needed, {max(0, deadline.left_s):.0f} s left")
            continue
        arguments = {
            "variant": Variant(
                contender, best.get(contender, {}), batch_size=check.pick(256, 16), num_threads=num_cores()
            ).to_json(),
            "data": str(root),
            "seconds": check.pick(4.0, 0.1),
            "hold_ms": check.pick(1000.0, 5.0),
        }
        outcome = run_job(check, "overlap_job", arguments, limit_s=120)
        if outcome.problem is not None:
            report.fail(contender, outcome.problem)
        for found in outcome.results:
            what = f"{contender} {found['question']}"
            report.add(what, {"contender": contender, **found})
            if not check.is_dry and contender != BY_HAND:
                _judge(report, what, found)


def _judge(report: Report, what: str, found: dict[str, Any]) -> None:
    """What a CPU's stand-in cannot tell."""
    if found["question"] == "hold":
        report.expect(what, found["returned_before_its_end"], "next() waited for the compute stream: something synchronises")
    # Beside matrix products DALI's kernels are slower too, and may starve for good reason: that is reported alone.
    if found["question"] == "idle" and found["load"] == "asleep" and found["demand"] > 1:
        share = found["idle_share"]
        report.expect(
            what, share <= _MAX_IDLE, f"the device stood still for {share:.1%} of the time, at most {_MAX_IDLE:.0%} was meant"
        )
