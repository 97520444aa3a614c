"""Find the stage of a torch DataLoader at fault for the time its consumer waited. Pure.

The rule: a batch that was not finished when requested is late because of every stage that its worker's time went into: a
millisecond less in any of them is a millisecond less of waiting, whichever came last. So the wait is charged to all of them
in proportion, and for the time before its turn, to the batch that its worker was making instead. Moving the batch to the
consumer is one of them only as far as the worker had nothing to make meanwhile: a worker that is always busy is not made
faster by faster moves. If the batch had been finished, the wait is charged to the stage it was in at each moment. Batches
that arrived in time are charged nothing.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from datapipe.analysis.judge.breakdown import READ, Breakdown, Parts, SpanIndex, WorkSpan, charge
from datapipe.analysis.judge.breakdown import Stage as StageKey
from datapipe.analysis.judge.fault import IDLE, STARTUP, Fault, fault_of
from datapipe.core.observe import Stage, StageEvent
from datapipe.instruments.measure.observed import LockUse
from datapipe.instruments.torch_stages.profile import BatchProfile, Making

Wait: TypeAlias = tuple[int, int]  # start and end, on the profiles' clock

TRANSFER: StageKey = ("transfer", None)
PIN: StageKey = ("pin", None)
SAMPLER: StageKey = ("sampler", None)
# How often the training process takes the lock again for a batch, after calls that wait. Measured beside a thread that holds it
# always, and one that holds it for a third of the time: a transfer then takes 2 to 3 switch intervals longer.
_WAKE_UPS = {TRANSFER: 3, PIN: 1, SAMPLER: 1, IDLE: 1}
_READS = 3  # of a sample that the training process reads itself: open, read, close
_SLOW_WORKER = 1.5  # times the median of the others
_MOST = 0.5
_DATASET, _COLLATE, _MAKING, _CYCLE = "dataset", "collate", "making", "cycle"


def attribute(profiles: Sequence[BatchProfile], waits: Sequence[Wait] | None = None, lock: LockUse | None = None) -> Fault:
    """Return why a consumer waited for these batches, of one loader.

    `waits`: the consumer's, if they are known better than from the profiles, or if only some are to be explained (those of
    the steady state); by default all. Waits for batches without a profile are taken to be like the others. `lock`: what is known
    of Python's.
    """
    profiles = sorted(profiles, key=lambda profile: profile.taken_ns)
    breakdown = Breakdown(profiles)
    by_worker = _by_worker(profiles)
    made_by = {key: SpanIndex(_making_span(profile.made) for profile in of) for key, of in by_worker.items()}
    wait_ns: defaultdict[StageKey, float] = defaultdict(float)
    waited_for: list[tuple[Wait, BatchProfile]] = []
    taken = [profile.taken_ns for profile in profiles]
    all_ns = 0
    for wait in [(profile.asked_ns, profile.taken_ns) for profile in profiles] if waits is None else waits:
        place = bisect_right(taken, wait[0])
        if place == len(profiles):
            continue  # waited for the end of the pass
        profile = profiles[place]
        all_ns += wait[1] - wait[0]
        if profile.asked_ns > wait[1]:
            continue  # the batch was not looked into
        waited_for.append((wait, profile))
        key = _worker_key(profile.made)
        first_ns = by_worker[key][0].made.start_ns
        rest = STARTUP if wait[0] < first_ns and profile.made.worker is not None else IDLE
        way = _way_of(profile)
        if profile.made.ready_ns > profile.asked_ns:
            cycle = _Cycle(profile, made_by[key].end_before(profile.made.start_ns))
            way = [WorkSpan((_CYCLE, cycle), way[0].start_ns, way[-1].end_ns)]
        layers = [way, made_by[key].during(*wait)]
        for what, charged_ns in charge(*wait, layers, rest).items():
            _expand(wait_ns, what, charged_ns, breakdown)
    total_ns, head_of_line_ns = sum(wait_ns.values()), _head_of_line_ns(profiles, waited_for)
    num_reads = sum(_READS * (profile.made.num_samples or 1) for _, profile in waited_for if profile.made.worker is None)
    return fault_of(
        wait_ns,
        _work_ns(profiles, breakdown),
        wait_s=(all_ns if total_ns else 0) * 1e-9,
        lock=lock,
        num_wake_ups={stage: num * len(waited_for) for stage, num in _WAKE_UPS.items()} | {READ: num_reads},
        worker=_slow_worker(profiles, waited_for),
        head_of_line=None if head_of_line_ns is None else head_of_line_ns / (total_ns or 1),
    )


def _worker_key(made: Making) -> tuple[int, int]:
    return made.iterator[1], made.pid


def _by_worker(profiles: Sequence[BatchProfile]) -> dict[tuple[int, int], list[BatchProfile]]:
    """Return each worker's batches, in the order of making. Workers of different iterators count as different."""
    grouped: defaultdict[tuple[int, int], list[BatchProfile]] = defaultdict(list)
    for profile in profiles:
        grouped[_worker_key(profile.made)].append(profile)
    return {key: sorted(of, key=lambda profile: profile.made.start_ns) for key, of in grouped.items()}


def _making_span(made: Making) -> WorkSpan:
    return WorkSpan((_MAKING, made), made.start_ns, made.ready_ns)


def _parts_of_making(made: Making) -> list[WorkSpan]:
    return [
        WorkSpan((_DATASET, made), made.start_ns, made.collate_start_ns),
        WorkSpan((_COLLATE, made), made.collate_start_ns, made.ready_ns),
    ]


def _way_of(profile: BatchProfile) -> list[WorkSpan]:
    """Return the stages of one batch until it was handed out, in order."""
    made, moved, pinned = profile.made, profile.moved, profile.pinned
    spans = _parts_of_making(made)
    if moved is None:  # made by the consumer: the time before and after belongs to the sampler and handing out
        arrived_ns = made.ready_ns
        spans.insert(0, WorkSpan(SAMPLER, min(profile.asked_ns, made.start_ns), made.start_ns))
    else:
        arrived_ns = moved.open_end_ns
        spans.append(WorkSpan(TRANSFER, made.ready_ns, arrived_ns))
    if pinned is not None:
        spans.append(WorkSpan(PIN, arrived_ns, pinned.end_ns))
        arrived_ns = pinned.end_ns
    spans.append(WorkSpan(SAMPLER, arrived_ns, profile.taken_ns))
    return spans


@dataclass(frozen=True, slots=True)
class _Cycle:
    """What a worker's time went into from one batch to the next."""

    profile: BatchProfile
    before_ns: int | None  # when the worker had finished its batch before; None: there was none

    def lengths_ns(self) -> dict[Hashable, float]:
        """Return the length of each stage; of those outside the worker, together at most as long as it had nothing to make."""
        made = self.profile.made
        making = _lengths_ns(_parts_of_making(made))
        rest = {what: length for what, length in _lengths_ns(_way_of(self.profile)).items() if what not in making}
        if made.worker is not None and self.before_ns is not None and (total_ns := sum(rest.values())):
            share = min(1.0, (made.start_ns - self.before_ns) / total_ns)
            rest = {what: length * share for what, length in rest.items()}
        return making | rest


def _lengths_ns(spans: Sequence[WorkSpan]) -> dict[Hashable, float]:
    lengths: defaultdict[Hashable, float] = defaultdict(float)
    for span in spans:
        lengths[span.what] += span.end_ns - span.start_ns
    return lengths


def _expand(into: defaultdict[StageKey, float], what: Hashable, nanoseconds: float, breakdown: Breakdown) -> None:
    """Charge the stages that a span consists of."""
    assert isinstance(what, tuple)
    kind, detail = what
    if kind in (_CYCLE, _MAKING):
        lengths = detail.lengths_ns() if isinstance(detail, _Cycle) else _lengths_ns(_parts_of_making(detail))
        total_ns = sum(lengths.values())
        for part, length_ns in lengths.items():
            _expand(into, part, nanoseconds * length_ns / total_ns, breakdown)
    elif isinstance(detail, Making):
        parts: Parts = breakdown.of_dataset(detail) if kind == _DATASET else breakdown.of_collate(detail)
        for stage, share in parts.items():
            into[stage] += nanoseconds * share
    else:
        into[kind, detail] += nanoseconds


def _work_ns(profiles: Sequence[BatchProfile], breakdown: Breakdown) -> Mapping[StageKey, float]:
    """Return the time spent making and moving batches; time in transit or in a queue is not work."""
    work: defaultdict[StageKey, float] = defaultdict(float)
    for profile in profiles:
        made, moved, pinned = profile.made, profile.moved, profile.pinned
        _expand(work, (_DATASET, made), made.dataset_ns, breakdown)
        _expand(work, (_COLLATE, made), made.collate_ns, breakdown)
        if moved is not None:
            work[TRANSFER] += moved.pickle_end_ns - moved.pickle_start_ns + moved.open_end_ns - moved.open_start_ns
        if pinned is not None:
            work[PIN] += pinned.end_ns - pinned.start_ns
    return work


def seconds_by_stage(profiles: Sequence[BatchProfile], events: Sequence[StageEvent]) -> dict[str, float]:
    """Return the mean seconds of work on a batch by the kind of stage, waited for or not; empty if nothing is known.

    `profiles`: torch's batches, or `events`: the stages of a datapipe loader's.
    """
    work: defaultdict[str, float] = defaultdict(float)
    for (kind, _), spent_ns in _work_ns(profiles, Breakdown(profiles)).items():
        work[kind] += spent_ns * 1e-9 / len(profiles)
    if not profiles:
        num_batches = max(1, sum(event.stage is Stage.WAIT for event in events))
        for event in events:
            if event.stage is not Stage.WAIT:
                work[event.stage.value] += event.duration_ns * 1e-9 / num_batches
    return dict(work)


def _slow_worker(profiles: Sequence[BatchProfile], waited_for: Sequence[tuple[Wait, BatchProfile]]) -> int | None:
    """Return the worker that takes much longer than the others, if most of the waiting is for it."""
    times: defaultdict[int, list[int]] = defaultdict(list)
    waits: defaultdict[int, int] = defaultdict(int)
    for profile in profiles:
        if profile.made.worker is not None:
            times[profile.made.worker].append(profile.made.total_ns)
    for (start_ns, end_ns), profile in waited_for:
        if profile.made.worker is not None:
            waits[profile.made.worker] += end_ns - start_ns
    if len(times) < 2 or not waits:
        return None
    typical = {worker: statistics.median(of) for worker, of in times.items()}
    slowest = max(typical, key=lambda worker: typical[worker])
    others = statistics.median(value for worker, value in typical.items() if worker != slowest)
    is_slow = typical[slowest] > _SLOW_WORKER * others and waits[slowest] >= _MOST * sum(waits.values())
    return slowest if is_slow else None


def _head_of_line_ns(profiles: Sequence[BatchProfile], waited_for: Sequence[tuple[Wait, BatchProfile]]) -> int | None:
    """Return how long a later batch of the pass was ready while the next one was not. None without workers."""
    if not any(profile.moved for profile in profiles):
        return None
    soonest: dict[tuple[int, int], int] = {}  # pass, step -> when the first batch after that step was ready
    last: dict[int, tuple[int, int]] = {}
    for profile in sorted(profiles, key=lambda profile: (profile.pass_id, -profile.step)):
        at = last.get(profile.pass_id)
        if at is not None:
            soonest[profile.pass_id, profile.step] = at[1]
        last[profile.pass_id] = (profile.step, min(profile.made.ready_ns, at[1] if at else profile.made.ready_ns))
    total = 0
    for (start_ns, end_ns), profile in waited_for:
        later_ns = soonest.get((profile.pass_id, profile.step))
        if later_ns is not None:
            total += max(0, min(end_ns, profile.made.ready_ns) - max(start_ns, later_ns))
    return total


def attribute_events(passes: Iterable[Sequence[StageEvent]], lock: LockUse | None = None) -> Fault:
    """Return why the consumer of these passes over a datapipe loader waited.

    A wait is charged to the work on the awaited batch, in equal parts if several blocks were in progress at once. If there
    was none, it is charged to the threads' work on other batches at that time.
    """
    wait_ns: defaultdict[StageKey, float] = defaultdict(float)
    work_ns: defaultdict[StageKey, float] = defaultdict(float)
    num_waits = 0
    for events in passes:
        work = [event for event in events if event.stage is not Stage.WAIT and event.duration_ns > 0]
        of_step: defaultdict[int, list[WorkSpan]] = defaultdict(list)
        for event in work:
            of_step[event.step].append(_span(event))
            work_ns[event.stage.value, None] += event.duration_ns
        of_all = SpanIndex(_span(event) for event in work)
        for wait in (event for event in events if event.stage is Stage.WAIT):
            start_ns, end_ns = wait.start_ns, wait.start_ns + wait.duration_ns
            layers = [of_step[wait.step], of_all.during(start_ns, end_ns)]
            for what, charged_ns in charge(start_ns, end_ns, layers, IDLE).items():
                assert isinstance(what, tuple)
                wait_ns[what[0], what[1]] += charged_ns
            num_waits += 1
    total_s = sum(wait_ns.values()) * 1e-9
    return fault_of(wait_ns, work_ns, wait_s=total_s, lock=lock, num_wake_ups={IDLE: num_waits})


def _span(event: StageEvent) -> WorkSpan:
    return WorkSpan((event.stage.value, None), event.start_ns, event.start_ns + event.duration_ns)
