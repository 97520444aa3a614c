"""Stage `train`: ResNet-50 and ResNet-18 in bf16, fed by each of the paths, and by resident data for comparison.

Three figures matter: images/s end to end; the share of time in which the device stood still for data; and how much
longer its computing took than over resident data (decoding on the GPU takes SMs and bandwidth from the network).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.earlier import ON_CPU, OURS, best_settings
from benchmarks.gpu.job import run_job
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import photographs
from benchmarks.gpu.settings import Check, Deadline, num_cores

RESIDENT = "gpu-synthetic"
MODELS = ("resnet50", "resnet18")
_DRY_MODELS = ("shufflenet_v2_x0_5",)  # a network that a CPU gets through
_FEEDS = (RESIDENT, OURS, ON_CPU, "gpu-torch")
_NUM_ROUNDS = 2
_AROUND_S, _START_S = 12, 90


def run(check: Check, report: Report, deadline: Deadline) -> None:
    root = photographs(check)
    best = best_settings(check)
    for number in range(check.pick(_NUM_ROUNDS, 1)):
        for model in models(check):
            feeds = [variant_of(check, feed, best.get(feed, {})) for feed in check.pick(_FEEDS, _FEEDS[:2])]
            if model == models(check)[0] and not check.is_dry:
                feeds.append(variant_of(check, ON_CPU, {"workers": "threads"}))
            train(check, report, deadline, model, feeds[:1] + feeds[:0:-1] if number % 2 else feeds, root, round=number)


def models(check: Check) -> tuple[str, ...]:
    """The networks that are trained."""
    chosen: tuple[str, ...] = check.pick(MODELS, _DRY_MODELS)
    return chosen


def variant_of(check: Check, contender: str, options: dict[str, Any]) -> Variant:
    """A contender as it feeds a network."""
    return Variant(contender, options, batch_size=check.pick(256, 2), num_threads=num_cores())


def train(
    check: Check, report: Report, deadline: Deadline, model: str, feeds: Sequence[Variant], root: Path, **about: Any
) -> None:
    """One network fed by each, a process each; where resident data is the first, steps are held to its."""
    resident_ms = 0.0
    for variant in feeds:
        what = f"{model} {variant.contender}" + (f" {variant.options}" if variant.options else "")
        seconds = float(check.pick(5.0, 0.05))
        if not check.is_dry and deadline.left_s < seconds + _AROUND_S:
            report.skip(what, f"{seconds + _AROUND_S:.0f} s needed, {max(0, deadline.left_s):.0f} s left")
            continue
        arguments = {
            "variant": variant.to_json(),
            "data": str(root),
            "model": model,
            "seconds": seconds,
            "warmup_s": float(check.pick(2.0, 0.0)),
        }
        outcome = run_job(check, "train_job", arguments, limit_s=_START_S + 2 * seconds)
        if "missing" in outcome.last:
            report.skip(what, outcome.last["missing"])
            continue
        if outcome.problem is not None or not outcome.results:
            report.fail(what, outcome.problem or "no result")
            continue
        found: dict[str, Any] = {**about, **outcome.last}
        resident_ms = found["compute_ms"] if variant.contender == RESIDENT else resident_ms
        if resident_ms:
            found["compute_against_resident"] = round(found["compute_ms"] / resident_ms, 4)
        report.add(what, found)
        report.expect(what, found["is_loss_finite"], "the loss is not finite: are batches what they should be?")
