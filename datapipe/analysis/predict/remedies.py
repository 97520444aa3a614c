"""Predict the effect of remedies by replay, rank them, and decide if any is worth it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from datapipe.analysis.judge.bootstrap import Interval
from datapipe.analysis.predict.instructions import Instruction
from datapipe.analysis.predict.replay import Floats, Replayed, replay
from datapipe.analysis.predict.workload import Change, Workload, course_of, fills_cores
from datapipe.errors import OptionError

NOTHING = "change nothing"
NO_REMEDY = "no remedy known"  # replaces NOTHING if the loop waits for data
_NUM_REPLICATES, _NUM_STEPS, _NUM_SETTLING = 32, 1500, 500
_RESOLUTION = 0.01  # share of a step: the replay's error even when it repeats exactly what was measured
# Standard deviation by which the mean step of one run differs from that of the next, as a share, beyond what resampling the steps
# of one run shows. In the proof in real time the 90th percentile of errors was 8% (benchmarks/results/diagnostics-real.json).
RUN_TO_RUN = 0.04
# The same where workers that compute take every core, the training's too: how the scheduler divides these differs more between
# runs. Such predictions missed by 4 to 12%.
RUN_TO_RUN_ON_FULL_CORES = 0.08
_NORMAL_95 = 1.96
WORTH_IT = 0.02  # share of a step: a smaller gain is not worth a change, however certain


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that a user can make."""

    name: str
    change: Change
    how: Instruction = field(default_factory=Instruction)
    # The user must decide, and it is never chosen as best:
    changes_results: bool = False  # other pixels or other steps
    needs_machines: bool = False  # others than this one

    @property
    def is_free(self) -> bool:
        """Whether it costs nothing but the change."""
        return not (self.changes_results or self.needs_machines)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step with the remedy, in seconds per batch of the present size."""

    remedy: Remedy
    step_s: Interval
    starvation: Interval
    gain: Interval  # as a share of the step's time: 0.3 is a step 30% shorter
    # Its lower bound if both runs were on the same day, and workers did not wait for each other: decides whether there is a gain.
    least_gain: float

    @property
    def expected_s(self) -> float:
        """The step by which remedies are ordered: halfway to the worst case if it is unknown how workers scale."""
        is_known = self.remedy.change.worst_stall_added_s is None
        return self.step_s.value if is_known else (self.step_s.value + self.step_s.high) / 2


@dataclass(frozen=True, slots=True)
class Ranking:
    """Predictions, best first; `best` is "change nothing" if no gain is certainly worth a change."""

    best: Prediction
    predictions: tuple[Prediction, ...]  # of all remedies
    worth_it: tuple[Prediction, ...]  # those of them whose gain is sure, and large enough
    now: Prediction  # with nothing changed
    measured_step_s: float | None  # None: unknown
    replayed_s: float  # the replayed step of the unchanged workload; close to the measured one, but not equal

    @property
    def scale(self) -> float:
        """The measured step over the replayed one."""
        return 1.0 if self.measured_step_s is None else self.measured_step_s / self.replayed_s

    @property
    def misfit(self) -> float | None:
        """The relative error of the unchanged workload's replay: 0.1 is 10% too long."""
        return None if self.measured_step_s is None else self.replayed_s / self.measured_step_s - 1


def rank_remedies(workload: Workload, remedies: Sequence[Remedy], *, measured_step_s: float | None = None) -> Ranking:
    """Predict each remedy and order them by their step.

    Among those that cannot be distinguished, the earlier one in `remedies` is best: list the easier ones first.
    `measured_step_s`: mean step of the measurement. Predictions are scaled by its ratio to the replayed step, and intervals
    grow by the difference of the two; a smaller gain counts as none. Raises OptionError if two remedies share a name.
    """
    names = [remedy.name for remedy in remedies]
    if len(set(names)) < len(names) or NOTHING in names:
        raise OptionError(f"remedies are {', '.join(names)}; each needs a unique name, other than {NOTHING!r}")

    @functools.cache  # several remedies may be the same change
    def replayed(change: Change) -> Replayed:
        course = course_of(workload, change, num_replicates=_NUM_REPLICATES, num_steps=_NUM_STEPS)
        return replay(course, change.setup or workload.setup, num_settling=_NUM_SETTLING)

    replayed_s = float(replayed(Change()).step_s[0])
    scale = 1.0 if measured_step_s is None else measured_step_s / replayed_s
    # The relative error of the unchanged replay; predictions may have it too, either way.
    doubt = max(_RESOLUTION, abs(1 / scale - 1))
    floor_s = min(workload.floor_s, replayed_s * scale)  # because of other loaders, no remedy leads to a shorter step

    def predicted(remedy: Remedy) -> Prediction:
        now, then = replayed(Change()), replayed(remedy.change)
        each_s = np.maximum(then.step_s / remedy.change.batch_factor * scale, floor_s)
        step_s, gain = _interval(each_s), _interval(1 - each_s / (now.step_s * scale))
        least_gain = gain.low
        if (worst_s := remedy.change.worst_stall_added_s) is not None:
            worst = replayed(replace(remedy.change, stall_added_s=worst_s, worst_stall_added_s=None)).step_s[0]
            step_s = replace(step_s, high=max(step_s.high, float(worst) * scale))
            gain = replace(gain, low=min(gain.low, float(1 - worst / now.step_s[0])))
        run_to_run = RUN_TO_RUN_ON_FULL_CORES if fills_cores(workload, remedy.change) else RUN_TO_RUN
        step_s = _with_run_to_run(step_s, run_to_run * step_s.value)
        gain = _with_run_to_run(gain, run_to_run * (1 - gain.value))
        step_s = Interval(step_s.value, step_s.low * (1 - doubt), step_s.high * (1 + doubt))
        return Prediction(remedy, step_s, _interval(then.starvation), gain, least_gain)

    now = predicted(Remedy(NOTHING, Change()))
    predictions = [predicted(remedy) for remedy in remedies]
    ordered = tuple(sorted(predictions, key=lambda one: one.expected_s))
    worth_it = tuple(one for one in ordered if one.least_gain > 0 and one.gain.value >= max(WORTH_IT, doubt))
    best, harmless = now, [one for one in predictions if one in worth_it and one.remedy.is_free]
    if harmless:
        shortest_s = min(one.expected_s for one in harmless)
        best = next(one for one in harmless if one.expected_s <= (1 + WORTH_IT) * shortest_s)
    return Ranking(best, ordered, worth_it, now, measured_step_s, replayed_s)


def _with_run_to_run(found: Interval, deviation: float) -> Interval:
    """Return the interval with the run-to-run part added, independent of the rest. `deviation`: its standard deviation."""
    own = _NORMAL_95 * deviation
    low, high = math.hypot(found.value - found.low, own), math.hypot(found.high - found.value, own)
    return Interval(found.value, found.value - low, found.value + high)


def _interval(values: Floats) -> Interval:
    """Return the first replicate, which keeps the measured order, with the distances of the 95% bounds from the median.

    Order matters if every n-th batch is slow and always meets the same worker.
    """
    low, middle, high = (float(value) for value in np.percentile(values, [2.5, 50, 97.5]))
    first = float(values[0])
    return Interval(first, first - (middle - low), first + (high - middle))
