"""Stage `further`: less important measurements, if there is time. Uses the best settings that `sweep` found.

cores     the best of `sweep` on 8 and on 4 cores
by hand   networks fed by the pipeline that is written by hand in DALI
priority  networks fed by ours, with the copies on a stream of higher priority
"""

from __future__ import annotations

from benchmarks.gpu.earlier import BY_HAND, ON_CPU, OURS, best_settings
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import photographs
from benchmarks.gpu.settings import Check, Deadline
from benchmarks.gpu.sweep import Sweep
from benchmarks.gpu.train import RESIDENT, models, train, variant_of

_HIGH = -1  # torch's higher priority of two


def run(check: Check, report: Report, deadline: Deadline) -> None:
    root = photographs(check)
    best = best_settings(check)
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
