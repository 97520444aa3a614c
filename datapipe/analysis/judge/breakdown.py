"""Break down the time to make a batch, and charge waits to its parts. Pure.

The dataset's time D is divided into

- cores: ready to run, but without a core (run-queue delay; if the kernel does not report it, it is in `read`),
- transforms T, by name,
- decode and dataset: the rest, as far as it kept a core busy: the work of `__getitem__` outside its transforms. Sampled moments
  say how much of it is reading and decoding files; what else is `dataset`, by the function that computed,
- read: the remainder: waiting, for storage, the network or a lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from datapipe.instruments.torch_stages.profile import BatchProfile, Making, SampledCall

Stage = tuple[str, str | None]  # its kind, and the name of a transform, or of a function of the Dataset's own code
Parts = dict[Stage, float]  # shares that add up to 1

CORES: Stage = ("cores", None)
READ: Stage = ("read", None)
DECODE: Stage = ("decode", None)
COLLATE: Stage = ("collate", None)
OWN = "dataset"  # the kind of stages of the Dataset's own code
_LEAST_CALLS = 16  # seen, for shares to mean something
_NAMED = 0.05  # of what was seen, from which a call is named, and not the function of the user's that makes it


class Breakdown:
    """The breakdown of one loader's batches. The split between transforms, and their CPU share, are sampled over all batches."""

    def __init__(self, profiles: Sequence[BatchProfile]) -> None:
        wall_ns: defaultdict[str, float] = defaultdict(float)
        for profile in profiles:
            for transform in profile.made.transforms or ():
                wall_ns[transform.name] += max(0, transform.wall_ns)
        total = sum(wall_ns.values())
        self._names = {name: value / total for name, value in wall_ns.items()} if total else {}
        timed = [profile.made for profile in profiles if profile.made.transform_ns is not None]
        cpu_ns = sum(transform.cpu_ns for made in timed for transform in made.transforms or ())
        self._cpu_share = min(1.0, cpu_ns / total) if total else 0.0
        self._typical_ns = sum(made.transform_ns or 0 for made in timed) / len(timed) if timed else 0.0
        calls = [call for profile in profiles for call in profile.made.calls]
        self._own = Counter(filter(None, own_stages(calls))) if len(calls) >= _LEAST_CALLS else Counter[Stage]()
        self._num_calls = len(calls)

    def of_dataset(self, made: Making) -> Parts:
        """Return the parts of the dataset's time."""
        dataset_ns = made.dataset_ns
        if dataset_ns <= 0:
            return {READ: 1.0}
        cpu_ns = min(made.dataset_cpu_ns, dataset_ns)
        queued = min(_queued_share(made), 1 - cpu_ns / dataset_ns)
        transform_ns = self._typical_ns if made.transform_ns is None else made.transform_ns
        transforms = min(1.0, transform_ns / dataset_ns if self._names else 0.0) * (1 - queued)
        rest = 1 - queued - transforms
        decode = min(max(0.0, cpu_ns / dataset_ns - transforms * self._cpu_share) + _helpers_share(made), rest)
        own = {stage: decode * num / self._num_calls for stage, num in self._own.items()}
        parts = own | {CORES: queued, DECODE: decode - sum(own.values()), READ: rest - decode}
        return parts | {("transform", name): transforms * share for name, share in self._names.items()}

    def of_collate(self, made: Making) -> Parts:
        """Return the parts of the time of collating."""
        collate_ns = max(1, made.collate_ns)
        queued = min(_queued_share(made), max(0.0, 1 - made.collate_cpu_ns / collate_ns))
        return {CORES: queued, COLLATE: 1 - queued}


def own_stages(calls: Sequence[SampledCall]) -> list[Stage | None]:
    """Return the stage of each call that is the Dataset's own code; None for those that read or decode files."""
    num_of = Counter((call.function, call.name) for call in calls)

    def stage(call: SampledCall) -> Stage | None:
        if call.decodes:
            return None
        is_named = call.name is not None and num_of[call.function, call.name] >= _NAMED * len(calls)
        return OWN, call.name if is_named else call.function

    return [stage(call) for call in calls]


def places_of(profiles: Sequence[BatchProfile]) -> dict[str, str]:
    """Return the place in the Dataset's own code of each of its stages, as file:line (function), by kind and name."""
    calls = [call for profile in profiles for call in profile.made.calls]
    num_at = Counter((stage, f"{call.where} ({call.function})") for call, stage in zip(calls, own_stages(calls), strict=True))
    return {f"{OWN} {stage[1]}": where for (stage, where), _ in reversed(num_at.most_common()) if stage is not None}


def _helpers_share(made: Making) -> float:
    """Return the CPU time of other threads of the worker, which the thread making the batch may have waited for, as a share."""
    return made.helpers_cpu_ns / made.total_ns if made.total_ns > 0 else 0.0


def _queued_share(made: Making) -> float:
    """Return the share of the whole making; the kernel's count cannot be divided further."""
    queued_ns = made.counters.queued_ns
    return 0.0 if queued_ns is None or made.total_ns <= 0 else min(1.0, queued_ns / made.total_ns)


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """A piece of work. Times on one clock."""

    what: Hashable
    start_ns: int
    end_ns: int


class SpanIndex:
    """Spans, indexed by time."""

    def __init__(self, spans: Iterable[WorkSpan]) -> None:
        self._spans = sorted(spans, key=attrgetter("start_ns"))
        self._starts = [span.start_ns for span in self._spans]
        self._longest_ns = max((span.end_ns - span.start_ns for span in self._spans), default=0)

    def end_before(self, start_ns: int) -> int | None:
        """Return the end of the latest span that starts before this time; None if none does."""
        place = bisect_left(self._starts, start_ns)
        return self._spans[place - 1].end_ns if place else None

    def during(self, start_ns: int, end_ns: int) -> list[WorkSpan]:
        """Return the spans that overlap an interval."""
        first = bisect_left(self._starts, start_ns - self._longest_ns)
        return [span for span in self._spans[first : bisect_right(self._starts, end_ns)] if span.end_ns > start_ns]


def charge(start_ns: int, end_ns: int, layers: Sequence[Sequence[WorkSpan]], rest: Hashable) -> dict[Hashable, float]:
    """Return the nanoseconds of the interval by the work done then; they add up to the interval.

    A moment is charged to the spans of the first layer that has any at that time, in equal parts, and to `rest` if none has.
    """
    charged: defaultdict[Hashable, float] = defaultdict(float)
    left = [(start_ns, end_ns)] if end_ns > start_ns else []
    for layer in layers:
        left = [gap for start, end in left for gap in _charge_layer(charged, start, end, layer)]
    for start, end in left:
        charged[rest] += end - start
    return charged


def _charge_layer(
    charged: defaultdict[Hashable, float], start_ns: int, end_ns: int, spans: Sequence[WorkSpan]
) -> list[tuple[int, int]]:
    """Charge one layer's spans within an interval; return the parts of it without any."""
    edges: list[tuple[int, int, Hashable]] = []
    for span in spans:
        first, last = max(span.start_ns, start_ns), min(span.end_ns, end_ns)
        if last > first:
            edges += [(first, 1, span.what), (last, -1, span.what)]
    edges.sort(key=itemgetter(0))
    gaps, active, num_active, now = [], Counter[Hashable](), 0, start_ns
    for time_ns, step, what in [*edges, (end_ns, 0, None)]:
        if time_ns > now:
            if num_active:
                for other, num in active.items():
                    if num:
                        charged[other] += (time_ns - now) * num / num_active
            else:
                gaps.append((now, time_ns))
            now = time_ns
        active[what] += step
        num_active += step
    return gaps
