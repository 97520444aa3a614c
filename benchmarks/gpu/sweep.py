"""Stage `sweep`: images per second onto the GPU, ours beside what else one could do, over the settings that matter.

Phases, the most telling first; what the time does not suffice for is named as skipped:
 first    everybody as they come, one after the other in one process
 settings hw_decoder_load, pipelines, threads: of ours and of the pipeline written by hand
 rounds   the best of both and the CPU path again, in alternated rounds of fresh processes, for medians and ratios
 cores    the same on 1, 2, 4, 8 cores
 batch    the same with batches of 64
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.job import run_job
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import NAMES, image_set
from benchmarks.gpu.settings import Check, Deadline, num_cores
from benchmarks.ratios import ratio_of, rotated

_START_S = 60  # a job may take so long to begin; the loader's own choice measures for 20 s
_AROUND_S = 6  # what a job is expected to take beside measuring
_NUM_ROUNDS = 3

OURS, BY_HAND, ON_CPU = "gpu-ours-dali", "gpu-dali", "gpu-ours-cpu"


def run(check: Check, report: Report, deadline: Deadline) -> None:
    sweep = Sweep(check, report, deadline)
    names = NAMES[: check.pick(2, 1)]
    roots = {name: image_set(check, name) for name in names}
    report.note(num_cores=num_cores(), sets={name: str(root) for name, root in roots.items()})
    for name, root in roots.items():
        sweep.together("first", name, root, sweep.as_they_come())
    for name, root in roots.items():
        sweep.together("settings", name, root, [*sweep.settings(OURS), *sweep.settings(BY_HAND)])
    for name, root in roots.items():
        sweep.rounds(name, root)
    for name, root in roots.items():
        sweep.on_fewer_cores(name, root)
        small = check.pick(64, 8)
        best = [dataclasses.replace(variant, batch_size=small) for variant in sweep.best(name)]
        sweep.together("batch", name, root, best)


@dataclass
class Sweep:
    """What was measured so far, and what to do next."""

    check: Check
    report: Report
    deadline: Deadline
    found: dict[tuple[str, str], list[dict[str, Any]]] = field(
        default_factory=dict
    )  # (set, contender) -> at full batch and cores

    @property
    def seconds(self) -> float:
        """Measured per variant."""
        return float(self.check.pick(2.0, 0.06))

    @property
    def variant(self) -> Variant:
        """What others are changes of."""
        return Variant("", batch_size=self.check.pick(256, 16), num_threads=num_cores())

    def as_they_come(self) -> list[Variant]:
        advised = {"hw_decoder_load": 0.12, "num_threads": 70}  # what NVIDIA's own tests on this kind of GPU use
        return [
            *(dataclasses.replace(self.variant, contender=name) for name in (OURS, BY_HAND, ON_CPU)),
            dataclasses.replace(self.variant, contender=BY_HAND, options=advised),
            *(dataclasses.replace(self.variant, contender=name) for name in ("gpu-torch", "gpu-torchvision")),
        ]

    def settings(self, contender: str) -> list[Variant]:
        """The neighbourhood of the defaults, one thing changed at a time."""
        cores = num_cores()
        loads = [{"hw_decoder_load": load} for load in (0.0, 0.12, 0.35, 0.9, 1.0)]
        few, many = {"num_threads": max(1, cores // 2)}, {"num_threads": 2 * cores}
        if contender == OURS:
            changes = [*loads, {"num_pipelines": 1}, {"num_pipelines": 3}, few, many, {"num_pipelines": 4, **few}]
            options: list[dict[str, Any]] = [{"dali": change} for change in changes]
        else:
            fancy = {"jpeg_fancy_upsampling": True}
            options = [*loads, few, many, fancy, {"affine": False}, {"prefetch_queue_depth": 3}]
        options = options[:: self.check.pick(1, 5)]
        return [dataclasses.replace(self.variant, contender=contender, options=chosen) for chosen in options]

    def best(self, name: str) -> list[Variant]:
        """The fastest settings of each of the three that matter, of those that ran."""
        best = []
        for contender in (OURS, BY_HAND, ON_CPU):
            ran = [result for result in self.found.get((name, contender), []) if "images_per_s" in result]
            if ran:
                fastest = max(ran, key=lambda result: float(result["images_per_s"]))
                best.append(dataclasses.replace(self.variant, contender=contender, options=fastest["options"]))
        return best

    # -- phases ---------------------------------------------------------------------------------

    def together(self, phase: str, name: str, root: Path, variants: Sequence[Variant], **about: Any) -> list[dict[str, Any]]:
        """One process for all; what they reached, in order."""
        results = self._measured(f"{phase} {name}", root, variants, cores=about.get("cores", ()))
        for result in results:
            what = f"{phase} {name} {result['contender']}"
            if "missing" in result:
                self.report.skip(what, result["missing"])
                continue
            if "error" in result:
                self.report.fail(what, result["error"])
                continue
            self.report.add(what, {"phase": phase, "set": name, **about, **result})
            if phase in ("first", "settings"):
                self.found.setdefault((name, result["contender"]), []).append(result)
        return results

    def rounds(self, name: str, root: Path) -> None:
        """Medians over alternated rounds, and our ratio to the others."""
        best = {variant.contender: variant for variant in self.best(name)}
        rates: dict[str, list[float]] = {contender: [] for contender in best}
        for number in range(self.check.pick(_NUM_ROUNDS, 1)):
            order = [best[contender] for contender in rotated(list(best), number)] if best else []
            for group in [order] if self.check.is_dry else [[variant] for variant in order]:
                for result in self.together("rounds", name, root, group, round=number):
                    if "images_per_s" in result:
                        rates[result["contender"]].append(float(result["images_per_s"]))
        num_whole = min((len(values) for values in rates.values()), default=0)
        if num_whole == 0:
            self.report.skip(f"rounds {name}", "not one round in which all were measured")
            return
        rates = {contender: values[:num_whole] for contender, values in rates.items()}
        medians = {contender: round(statistics.median(values), 1) for contender, values in rates.items()}
        ratios = {
            f"{OURS} / {other}": dataclasses.asdict(ratio_of(rates[OURS], values))
            for other, values in rates.items()
            if other != OURS and OURS in rates
        }
        self.report.add(f"medians {name}", {"phase": "medians", "set": name, "medians": medians, "ratios": ratios})

    def on_fewer_cores(self, name: str, root: Path) -> None:
        available = sorted(os.sched_getaffinity(0))
        for num in (8, 4, 2, 1):
            if num >= len(available):
                continue
            variants = [_on(variant, num) for variant in self.best(name)]
            self.together("cores", name, root, variants, cores=tuple(available[:num]), num_cores=num)

    # -- measuring ------------------------------------------------------------------------------

    def _measured(self, what: str, root: Path, variants: Sequence[Variant], *, cores: tuple[int, ...]) -> list[dict[str, Any]]:
        if not variants:
            self.report.skip(what, "nothing to measure: what it builds on failed")
            return []
        warmup_s = 0.4 * self.seconds
        needed_s = _AROUND_S + len(variants) * (self.seconds + warmup_s + 1)
        if self.deadline.left_s < (0 if self.check.is_dry else needed_s):
            contenders = ", ".join(sorted({variant.contender for variant in variants}))
            self.report.skip(f"{what} {contenders}", f"{needed_s:.0f} s needed, {max(0, self.deadline.left_s):.0f} s left")
            return []
        arguments = {
            "data": str(root),
            "variants": [variant.to_json() for variant in variants],
            "seconds": self.seconds,
            "warmup_s": warmup_s,
        }
        outcome = run_job(self.check, "rates", arguments, limit_s=_START_S + 2 * needed_s, cores=cores)
        results = outcome.results
        if outcome.problem is not None:
            culprit, *others = variants[len(results) :] or [variants[-1]]
            self.report.fail(f"{what}, at {culprit.contender} {dict(culprit.options)}", outcome.problem)
            if others:
                results = results + self._measured(what, root, others, cores=cores)
        return results


def _on(variant: Variant, num_cores: int) -> Variant:
    """The same with a thread per core, whatever number of threads was best on all of them."""
    options = {name: value for name, value in variant.options.items() if name != "num_threads"}
    if "dali" in options:
        options["dali"] = {name: value for name, value in options["dali"].items() if name != "num_threads"}
    return dataclasses.replace(variant, options=options, num_threads=num_cores)
