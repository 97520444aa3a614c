"""What each remedy would bring, and whether any is worth it: predictions by replay, ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from datapipe.diagnostics.bootstrap import Interval
from datapipe.diagnostics.instruction import Instruction
from datapipe.diagnostics.replay import Floats, Replayed, replay
from datapipe.diagnostics.workload import Change, Workload, course_of
from datapipe.errors import OptionError

NOTHING = "change nothing"
NO_REMEDY = "no remedy known"  # in its place where the loop waits for data
_NUM_REPLICATES, _NUM_STEPS, _NUM_SETTLING = 32, 1500, 500
_RESOLUTION = 0.01  # of a step: what the replay leaves out, even where it repeats exactly what was measured
WORTH_IT = 0.02  # of a step: a smaller gain is not worth a change, however sure


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something a user can do."""

    name: str
    change: Change
    how: Instruction = field(default_factory=Instruction)
    changes_results: bool = False  # other pixels or other steps: for the user to weigh, and never the best by itself


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step with the remedy, in seconds per batch of the present size."""

    remedy: Remedy
    step_s: Interval
    starvation: Interval
    gain: Interval  # of the step's time, as a share: 0.3 is a step 30% shorter


@dataclass(frozen=True, slots=True)
class Ranking:
    """Best first; `best` is "change nothing" where no gain is surely worth it."""

    best: Prediction
    predictions: tuple[Prediction, ...]  # of all remedies
    now: Prediction  # with nothing changed
    measured_step_s: float | None  # None: not known
    replayed_s: float  # the step of what was measured, replayed: it should be as long, and is not quite

    @property
    def scale(self) -> float:
        """The measured step over the replayed one."""
        return 1.0 if self.measured_step_s is None else self.measured_step_s / self.replayed_s

    @property
    def misfit(self) -> float | None:
        """How far the replay of what was measured is from what was measured: 0.1 is 10% too long."""
        return None if self.measured_step_s is None else self.replayed_s / self.measured_step_s - 1


@dataclass(frozen=True, slots=True)
class _Replays:
    """One replay per change; a change that several remedies make is replayed once."""

    workload: Workload
    seed: int
    done: dict[Change, Replayed] = field(default_factory=dict)

    def of(self, change: Change) -> Replayed:
        if change not in self.done:
            course = course_of(self.workload, change, num_replicates=_NUM_REPLICATES, num_steps=_NUM_STEPS, seed=self.seed)
            self.done[change] = replay(course, change.setup or self.workload.setup, num_settling=_NUM_SETTLING)
        return self.done[change]


def rank_remedies(
    workload: Workload, remedies: Sequence[Remedy], *, measured_step_s: float | None = None, seed: int = 0
) -> Ranking:
    """Predict each remedy and order them by their step. Among those that cannot be told apart, the earlier one in
    `remedies` is best: list the easier ones first.

    `measured_step_s`: mean step of the measurement. Predictions are scaled by what it is of the replayed one, intervals grow
    by how far the two are apart, and a smaller gain than that is none. Raises OptionError if two remedies share a name.
    """
    names = [remedy.name for remedy in remedies]
    if len(set(names)) < len(names) or NOTHING in names:
        raise OptionError(f"remedies are {', '.join(names)}; each needs a name of its own, other than {NOTHING!r}")
    replays = _Replays(workload, seed)
    replayed_s = float(replays.of(Change()).step_s[0])
    scale = 1.0 if measured_step_s is None else measured_step_s / replayed_s
    doubt = max(_RESOLUTION, abs(1 / scale - 1))
    now = _predict(Remedy(NOTHING, Change()), replays, scale, doubt)
    predictions = [_predict(remedy, replays, scale, doubt) for remedy in remedies]
    ordered = tuple(sorted(predictions, key=lambda one: one.step_s.value))
    best, harmless = now, [one for one in predictions if not one.remedy.changes_results]
    if harmless:
        shortest = min(harmless, key=lambda one: one.step_s.value)
        if shortest.gain.low > 0 and shortest.gain.value >= max(WORTH_IT, doubt):
            best = next(one for one in harmless if one.step_s.value <= (1 + WORTH_IT) * shortest.step_s.value)
    return Ranking(best, ordered, now, measured_step_s, replayed_s)


def _predict(remedy: Remedy, replays: _Replays, scale: float, doubt: float) -> Prediction:
    """`doubt`: how far the replay of what was measured is off; a prediction may be as far off, either way."""
    now, then = replays.of(Change()), replays.of(remedy.change)
    each_s = then.step_s / remedy.change.batch_factor * scale
    step_s = _interval(each_s)
    step_s = Interval(step_s.value, step_s.low * (1 - doubt), step_s.high * (1 + doubt))
    return Prediction(remedy, step_s, _interval(then.starvation), _interval(1 - each_s / (now.step_s * scale)))


def _interval(values: Floats) -> Interval:
    """Of replicates: the first, which keeps the order that was measured, and what 95 of 100 are apart from their median.

    Order matters where every n-th batch is slow and meets the same worker each time.
    """
    low, middle, high = (float(value) for value in np.percentile(values, [2.5, 50, 97.5]))
    first = float(values[0])
    return Interval(first, first - (middle - low), first + (high - middle))
