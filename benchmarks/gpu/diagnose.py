"""Stage `diagnose`: what `datapipe diagnose` costs a step on a GPU, and how right it is about a delay of known size.

The truth is no reading of the device's clock: it is how much longer a step takes with batches held up than without.
With the loss waited for at each step that is the delay itself; else the part of it that computing does not hide.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu.job import run_job
from benchmarks.gpu.report import Report
from benchmarks.gpu.settings import Check, Deadline

_DELAYS_MS = (2.0, 5.0, 20.0)
_ERROR_MS, _ERROR_SHARE = 0.5, 0.05  # that the diagnosis promises
_NUM_ROUNDS = 3
_NEEDED_S = 20


def run(check: Check, report: Report, deadline: Deadline) -> None:
    with report.attempt("accuracy"):
        for is_synced in check.pick((True, False), (True,)):
            _accuracy(check, report, deadline, is_synced=is_synced)
    with report.attempt("overhead"):
        _overhead(check, report, deadline)


def _accuracy(check: Check, report: Report, deadline: Deadline, *, is_synced: bool) -> None:
    """Delays of several sizes in steps of several milliseconds, diagnosed."""
    options = [*check.pick(["--steps", "150"], ["--steps", "60", "--width", "64", "--layers", "2"]), *["--sync"] * is_synced]
    mode = "loss waited for" if is_synced else "host ahead"
    undelayed = _ran(check, report, deadline, f"no delay, {mode}", options, is_diagnosed=False)
    for delay_ms in check.pick(_DELAYS_MS, (5.0,)) if undelayed else ():
        what = f"delay of {delay_ms:g} ms, {mode}"
        found = _ran(check, report, deadline, what, [*options, "--delay-ms", str(delay_ms)], is_diagnosed=True)
        if not found:
            continue
        if found["data_s"] is None:
            report.fail(what, f"the diagnosis measured nothing: {found}")
            continue
        true_ms = max(0.0, found["step_ms"] - undelayed["step_ms"])
        told_ms = 1e3 * found["data_s"]
        error_ms = told_ms - true_ms
        about = {"question": "accuracy", "is_synced": is_synced, "delay_ms": delay_ms, "undelayed_ms": undelayed["step_ms"]}
        report.add(what, {**about, "true_ms": true_ms, "told_ms": told_ms, "error_ms": error_ms, **found})
        if not check.is_dry:
            allowed = max(_ERROR_MS, _ERROR_SHARE * true_ms)
            report.expect(
                what, abs(error_ms) <= allowed, f"it says {told_ms:.2f} ms of {true_ms:.2f}, +-{allowed:.2f} is promised"
            )
            report.expect(what, found["basis"] == "device", f"it measured by the {found['basis']}, not by the device")


def _overhead(check: Check, report: Report, deadline: Deadline) -> None:
    """A step that takes the host next to nothing, alone and diagnosed, in alternated rounds."""
    options = check.pick(
        ["--steps", "2000", "--width", "64", "--layers", "2"], ["--steps", "100", "--width", "8", "--layers", "1"]
    )
    step_us: dict[bool, list[float]] = {False: [], True: []}
    for number in range(check.pick(_NUM_ROUNDS, 1)):
        for is_diagnosed in (False, True) if number % 2 == 0 else (True, False):
            what = f"overhead, {'diagnosed' if is_diagnosed else 'alone'}"
            found = _ran(check, report, deadline, what, options, is_diagnosed=is_diagnosed)
            if found:
                step_us[is_diagnosed].append(1e3 * found["step_ms"])
    if not all(step_us.values()):
        report.skip("overhead", "not one whole round")
        return
    alone, diagnosed = (statistics.median(step_us[key]) for key in (False, True))
    report.add("overhead", {"question": "overhead", "alone_us": alone, "diagnosed_us": diagnosed, "cost_us": diagnosed - alone,
                            "rounds": {"alone": step_us[False], "diagnosed": step_us[True]}})  # fmt: skip


def _ran(
    check: Check, report: Report, deadline: Deadline, what: str, options: list[str], *, is_diagnosed: bool
) -> dict[str, Any]:
    """What the script found; empty where it was not run, or failed."""
    if not check.is_dry and deadline.left_s < _NEEDED_S:
        report.skip(what, f"{_NEEDED_S} s needed, {max(0, deadline.left_s):.0f} s left")
        return {}
    outcome = run_job(check, "diagnose_job", {"options": options, "is_diagnosed": is_diagnosed}, limit_s=60)
    if outcome.problem is not None:
        report.fail(what, outcome.problem)
        return {}
    return outcome.last
