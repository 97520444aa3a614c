"""Stage `damaged`: what becomes of damaged files by each of DALI's ways to decode."""

from __future__ import annotations

from benchmarks.gpu.report import Report
from benchmarks.gpu.settings import Check, Deadline
from benchmarks.gpu.verdicts import BY_CPU, BY_ENGINES, BY_KERNELS, every_damage, measure_verdicts


def run(check: Check, report: Report, deadline: Deadline) -> None:
    """Compare each way's verdicts and pixels with the CPU path's."""
    ways = check.pick((BY_KERNELS, BY_CPU, BY_ENGINES), (BY_KERNELS,))
    measure_verdicts(check, report, deadline, every_damage(check), ways)
