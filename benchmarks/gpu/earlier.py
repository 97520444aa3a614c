"""What earlier stages found, for later ones: from their result files."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.report import read_reports
from benchmarks.gpu.settings import Check

OURS, BY_HAND, SMOOTH, ON_CPU = "gpu-ours-dali", "gpu-dali", "gpu-dali-smooth", "gpu-ours-cpu"
_OF_ALL_CORES = ("first", "settings", "combined")


def decodes_regions(check: Check) -> bool:
    """Whether DALI decodes regions on this GPU; assumed if `correct` did not run. Ours finds out by itself."""
    return bool(read_reports(check.out).get("correct", {}).get("decodes_regions", True))


def best_settings(check: Check) -> dict[str, Any]:
    """contender -> the options that were fastest in `sweep`, so far; else the contender's own."""
    found: dict[str, tuple[float, Any]] = {}
    for result in read_reports(check.out).get("sweep", {}).get("measurements", []):
        if result.get("phase") in _OF_ALL_CORES:
            rate = float(result["images_per_s"])
            if rate > found.get(result["contender"], (0.0, None))[0]:
                found[result["contender"]] = (rate, result["options"])
    best = {contender: options for contender, (_, options) in found.items()}
    return best if decodes_regions(check) else {name: {"decodes_regions": False} for name in (BY_HAND, SMOOTH)} | best
