"""Stage `train`: ResNet-18 and ResNet-50 in bf16, fed by each of the paths, beside data that is there already.

Three figures matter: images/s end to end; the share of time in which the device stood still for data; and how much
longer its computing took than over resident data (decoding on the GPU takes SMs and bandwidth from the network).
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.job import run_job
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.report import Report, read_reports
from benchmarks.gpu.sets import image_set
from benchmarks.gpu.settings import Check, Deadline, num_cores
from benchmarks.gpu.sweep import BY_HAND, ON_CPU, OURS

BASELINE = "gpu-synthetic"
_CHOSEN = "gpu-ours-auto"
_FEEDS = (BASELINE, OURS, ON_CPU, "gpu-torch", BY_HAND, _CHOSEN, "gpu-cached", "gpu-torchvision")
_FEW = (BASELINE, OURS, ON_CPU, "gpu-torch", _CHOSEN)
_WORK = (("resnet18", "photos", _FEEDS), ("resnet50", "photos", _FEW), ("resnet18", "256", _FEW))
_DRY = (("shufflenet_v2_x0_5", "photos", (BASELINE, _CHOSEN)),)  # a network that a CPU gets through
_AROUND_S, _START_S = 12, 90


def run(check: Check, report: Report, deadline: Deadline) -> None:
    for model, name, feeds in check.pick(_WORK, _DRY):
        root = image_set(check, name)
        best = best_settings(check, name)
        baseline_ms = 0.0
        for feed in feeds:
            what = f"{model} {name} {feed}"
            seconds = float(check.pick(7.0, 0.05))
            if not check.is_dry and deadline.left_s < seconds + _AROUND_S:
                report.skip(what, f"{seconds + _AROUND_S:.0f} s needed, {max(0, deadline.left_s):.0f} s left")
                continue
            variant = Variant(feed, best.get(feed, {}), batch_size=check.pick(256, 2), num_threads=num_cores())
            arguments = {
                "variant": variant.to_json(),
                "data": str(root),
                "model": model,
                "seconds": seconds,
                "warmup_s": float(check.pick(3.0, 0.0)),
            }
            outcome = run_job(check, "train_job", arguments, limit_s=_START_S + 2 * seconds)
            if "missing" in outcome.last:
                report.skip(what, outcome.last["missing"])
                continue
            if outcome.problem is not None or not outcome.results:
                report.fail(what, outcome.problem or "no result")
                continue
            found: dict[str, Any] = {"set": name, **outcome.last}
            baseline_ms = found["compute_ms"] if feed == BASELINE else baseline_ms
            if baseline_ms:
                found["compute_against_resident"] = round(found["compute_ms"] / baseline_ms, 4)
            report.add(what, found)
            report.expect(what, found["is_loss_finite"], "the loss is not finite: are batches what they should be?")


def best_settings(check: Check, name: str) -> dict[str, Any]:
    """contender -> the options that were fastest in `sweep`, if it ran before; else the contender's own."""
    found: dict[str, tuple[float, Any]] = {}
    for result in read_reports(check.out).get("sweep", {}).get("measurements", []):
        if result.get("phase") in ("first", "settings") and result["set"] == name:
            rate = float(result["images_per_s"])
            if rate > found.get(result["contender"], (0.0, None))[0]:
                found[result["contender"]] = (rate, result["options"])
    return {contender: options for contender, (_, options) in found.items()}
