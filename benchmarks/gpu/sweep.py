"""Stage `sweep`: images per second onto the GPU, ours and the alternatives, over the settings that matter.

Phases, the most telling first; what the time does not suffice for is named as skipped:
 first     everybody as they come, one after the other in one process
 settings  as far as time is left for the rounds, one thing changed at a time: share of the JPEG engines, pipelines, threads,
           where Huffman codes are decoded
 combined  the best of each put together
 rounds    the best of ours and of the pipelines written by hand, and the CPU path, in three alternated rounds, for medians and
           ratios
 chosen    the backend that the loader chose itself
 kept      decoded images kept on the GPU, from the second epoch on; another recipe, which does not resample them
 taken     a Dataset of one's own taken over, made by DALI and by the workers; `first` has torch's loader over the same
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.gpu.earlier import BY_HAND, ON_CPU, OURS, SMOOTH, best_settings, decodes_regions
from benchmarks.gpu.job import run_job
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import photographs
from benchmarks.gpu.settings import Check, Deadline, num_cores
from benchmarks.ratios import ratio_of, rotated

Options = dict[str, Any]

_START_S = 90  # a job may take so long to begin; the loader's own choice measures for 30 s
_AROUND_S = 6  # the expected time of a job in addition to measuring
_BETWEEN_S = 1.5  # that a variant takes to begin
_NUM_ROUNDS = 3
_IN_ROUNDS = (OURS, SMOOTH, BY_HAND, ON_CPU)
TAKEN_OVER = ("gpu-from-torch-dali", "gpu-from-torch-cpu")
_LOADS = (0.0, 0.65, 1.0)  # shares of the JPEG engines; DALI's own is 0.65
_WHOLE: Options = {"decodes_regions": False}
_KERNELS: Options = {"dali": {"hybrid_huffman_threshold": 0}}  # the GPU decodes Huffman codes, of all images


def run(check: Check, report: Report, deadline: Deadline) -> None:
    sweep = Sweep(check, report, deadline, photographs(check))
    report.note(num_cores=num_cores(), data=str(sweep.root))
    sweep.together("first", sweep.as_they_come())
    before = dataclasses.replace(sweep, deadline=deadline.less(0 if check.is_dry else sweep.rounds_s))
    changed = zip_longest(*(sweep.changed(contender) for contender in (OURS, SMOOTH, BY_HAND)))
    before.together("settings", [variant for variants in changed for variant in variants if variant is not None])
    before.together("combined", [variant for contender in (OURS, BY_HAND, SMOOTH) for variant in sweep.combined(contender)])
    sweep.rounds()
    sweep.together("chosen", [dataclasses.replace(sweep.variant, contender="gpu-ours-auto")])
    sweep.together("kept", [dataclasses.replace(sweep.variant, contender="gpu-ours-kept")])
    sweep.together("taken", [dataclasses.replace(sweep.variant, contender=name) for name in TAKEN_OVER])


def axes(contender: str) -> list[list[Options]]:
    """What may be changed of a contender: for each thing, the options that change it alone."""
    cores = num_cores()
    threads = (max(1, cores // 2), 2 * cores)
    if contender == OURS:
        return [
            [_KERNELS],
            [merged(_KERNELS, {"fetching": num}) for num in (3, 4, 1)],
            [merged(_KERNELS, {"dali": {"num_pipelines": num}}) for num in (3, 1)],
            [merged(_KERNELS, {"dali": {"num_threads": num}}) for num in threads],
            [{"dali": {"hw_decoder_load": load}} for load in _LOADS[1:]],
        ]
    return [
        [{"hybrid_huffman_threshold": 0, "hw_decoder_load": load} for load in _LOADS],
        [{"hw_decoder_load": load} for load in _LOADS],
        [{"prefetch_queue_depth": num} for num in (1, 3)],
        [{"num_threads": num} for num in (*threads, 70)],  # 70: what NVIDIA's own tests use
        [{"affine": False}],  # as ours: threads are not pinned to cores
        [_WHOLE],
    ]


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> Options:
    """Both; of the second where they differ."""
    out = dict(first)
    for name, value in second.items():
        out[name] = merged(out.get(name, {}), value) if isinstance(value, Mapping) else value
    return out


@dataclass
class Sweep:
    """What to measure next, and where results go."""

    check: Check
    report: Report
    deadline: Deadline
    root: Path

    @property
    def seconds(self) -> float:
        """Measured per variant."""
        return float(self.check.pick(2.0, 0.06))

    @property
    def variant(self) -> Variant:
        """The base settings, which the others vary."""
        return Variant("", batch_size=self.check.pick(256, 16), num_threads=num_cores())

    @property
    def rounds_s(self) -> float:
        """What rounds take."""
        return self._needed_s(_NUM_ROUNDS * len(_IN_ROUNDS))

    def own(self, contender: str) -> Variant:
        """A contender as it comes, or as it has to be on this GPU."""
        is_whole = contender in (BY_HAND, SMOOTH) and not decodes_regions(self.check)
        return dataclasses.replace(self.variant, contender=contender, options=_WHOLE if is_whole else {})

    def as_they_come(self) -> list[Variant]:
        named = [self.own(name) for name in (*_IN_ROUNDS, "gpu-torch", "gpu-torchvision")]
        return [*named, dataclasses.replace(self.own(ON_CPU), options={"workers": "threads"})]

    def changed(self, contender: str) -> list[Variant]:
        """One thing changed at a time."""
        own = self.own(contender)
        changes = [options for axis in axes(contender) for options in axis if options != _WHOLE][:: self.check.pick(1, 7)]
        return [dataclasses.replace(own, options=merged(own.options, change)) for change in changes]

    def combined(self, contender: str) -> list[Variant]:
        """The best of each thing at once, where that was measured."""
        own = self.own(contender)
        rates: list[tuple[float, Options]] = [
            (float(result["images_per_s"]), result["options"])
            for result in self.report.measurements
            if result["phase"] in ("first", "settings") and result["contender"] == contender
        ]
        if not rates:
            return []
        as_it_comes = max((rate for rate, options in rates if options == own.options), default=0.0)
        options = dict(own.options)
        for axis in axes(contender):
            mine = [(rate, change) for rate, had in rates for change in axis if merged(own.options, change) == had]
            rate, change = max(mine, key=lambda entry: entry[0], default=(0.0, {}))
            if rate > as_it_comes:
                options = merged(options, change)
        return [dataclasses.replace(own, options=options)] if options != own.options else []

    def best(self) -> list[Variant]:
        """The fastest settings of each of those that matter, of those that ran."""
        best = best_settings(self.check)
        return [dataclasses.replace(self.variant, contender=name, options=best[name]) for name in _IN_ROUNDS if name in best]

    # -- phases ---------------------------------------------------------------------------------

    def together(self, phase: str, variants: Sequence[Variant], **about: Any) -> list[dict[str, Any]]:
        """One process for all; what they reached, in order."""
        results = self._measured(phase, variants, cores=about.get("cores", ()))
        for result in results:
            what = f"{phase} {result['contender']}"
            if "missing" in result:
                self.report.skip(what, result["missing"])
            elif "error" in result:
                self.report.fail(f"{what} {result['options']}", result["error"])
            else:
                self.report.add(what, {"phase": phase, **about, **result})
        return results

    def rounds(self) -> None:
        """Medians over alternated rounds, and our ratio to the others."""
        best = {variant.contender: variant for variant in self.best()}
        rates: dict[str, list[float]] = {contender: [] for contender in best}
        orders = [rotated(list(best), number) for number in range(self.check.pick(_NUM_ROUNDS, 1)) if best]
        for result in self.together("rounds", [best[contender] for order in orders for contender in order]):
            if "images_per_s" in result:
                rates[result["contender"]].append(float(result["images_per_s"]))
        num_whole = min((len(values) for values in rates.values()), default=0)
        if num_whole == 0:
            self.report.skip("rounds", "not one round in which all were measured")
            return
        rates = {contender: values[:num_whole] for contender, values in rates.items()}
        medians = {contender: round(statistics.median(values), 1) for contender, values in rates.items()}
        ratios = {
            f"{OURS} / {other}": dataclasses.asdict(ratio_of(rates[OURS], values))
            for other, values in rates.items()
            if other != OURS and OURS in rates
        }
        self.report.add("medians", {"phase": "medians", "medians": medians, "ratios": ratios})

    def on_fewer_cores(self, numbers: Sequence[int]) -> None:
        available = sorted(os.sched_getaffinity(0))
        for num in numbers:
            if num >= len(available):
                self.report.skip(f"{num} cores", f"there are {len(available)}")
                continue
            self.together("cores", [_on(variant, num) for variant in self.best()], cores=tuple(available[:num]), num_cores=num)

    # -- measuring ------------------------------------------------------------------------------

    def _needed_s(self, num_variants: int) -> float:
        return _AROUND_S + num_variants * (1.4 * self.seconds + _BETWEEN_S)

    def _num_that_fit(self) -> int:
        return max(0, int((self.deadline.left_s - _AROUND_S) // (self._needed_s(1) - _AROUND_S)))

    def _measured(self, what: str, variants: Sequence[Variant], *, cores: tuple[int, ...]) -> list[dict[str, Any]]:
        if not variants:
            self.report.skip(what, "nothing to measure: what it builds on failed, or is the best as it comes")
            return []
        warmup_s = 0.4 * self.seconds
        num = len(variants) if self.check.is_dry else self._num_that_fit()
        for variant in variants[num:]:
            self.report.skip(f"{what} {variant.contender} {dict(variant.options)}", "no time left")
        variants = variants[:num]
        if not variants:
            return []
        needed_s = self._needed_s(len(variants))
        arguments = {
            "data": str(self.root),
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
                results = results + self._measured(what, others, cores=cores)
        return results


def _on(variant: Variant, num_cores: int) -> Variant:
    """The same with a thread per core, whatever number of threads was best on all of them."""
    options = {name: value for name, value in variant.options.items() if name != "num_threads"}
    if "dali" in options:
        options["dali"] = {name: value for name, value in options["dali"].items() if name != "num_threads"}
    return dataclasses.replace(variant, options=options, num_threads=num_cores)
