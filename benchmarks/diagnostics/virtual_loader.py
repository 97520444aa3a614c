"""A loader in virtual time: workers that stall, share cores, and are blocked by a full buffer.

It shares nothing with the replay that it is to prove: here every piece of work is moved along from event to
event, with the cores shared out exactly.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmarks.diagnostics.devices import VirtualWorld
from datapipe.analysis.judge.breakdown import COLLATE, CORES, DECODE, READ, Stage
from datapipe.analysis.predict.replay import Delivery, Setup

_TINY = 1e-12
Store: TypeAlias = Literal["lock", "bandwidth"]  # what reads share: they take turns, or all proceed at a share of the speed


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Seconds, with the cores to itself. A batch is read, decoded, transformed and collated, in this order."""

    read_s: float  # waiting, not on a core
    decode_s: float
    delivery_s: float  # the caller's part
    transforms_s: tuple[tuple[str, float], ...] = ()
    collate_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        return self.decode_s + sum(taken_s for _, taken_s in self.transforms_s) + self.collate_s

    def joined(self) -> BatchCost:
        """The same with all that is computed in one piece: it takes as long, and is sooner simulated."""
        return BatchCost(self.read_s, self.cpu_s, self.delivery_s)

    def phases(self) -> list[tuple[Stage, float]]:
        """What making it consists of, in order."""
        transforms = [(("transform", name), taken_s) for name, taken_s in self.transforms_s]
        return [(READ, self.read_s), (DECODE, self.decode_s), *transforms, (COLLATE, self.collate_s)]


@dataclass(frozen=True, slots=True)
class Work:
    """One phase of one batch, done."""

    stage: Stage
    start_s: float
    end_s: float
    cpu_s: float


@dataclass(slots=True)
class _Piece:
    """A batch, or a worker's part of one."""

    batch: int
    phases: list[tuple[Stage, float]]  # to come, the next one last
    stage: Stage = READ  # the phase under way,
    stage_began: float = math.nan
    needs_s: float = 0.0  # in all,
    left_s: float = 0.0  # and still

    def take_up(self, now: float) -> bool:
        """Begin the next phase; whether there is one."""
        if not self.phases:
            return False
        self.stage, self.needs_s = self.phases.pop()
        self.stage_began, self.left_s = now, self.needs_s
        return True

    @property
    def is_stalled(self) -> bool:
        return self.stage == READ


@dataclass(slots=True)
class Profile:
    """What the loader itself knows of where the time went: per batch, and of the waiting."""

    work: list[list[Work]]  # in order
    waited_s: defaultdict[Stage, float]  # the caller, by what the worker that it waited for did at each moment


class VirtualLoader:
    """One pass of `num_batches`. `cost_of(k)`: what batch k costs. `slow`: how many times as long worker 0 takes."""

    def __init__(
        self,
        world: VirtualWorld,
        setup: Setup,
        cost_of: Callable[[int], BatchCost],
        *,
        num_batches: int,
        store: Store | None = None,
        slow: float = 1.0,
    ) -> None:
        self.profile = Profile([[] for _ in range(num_batches)], defaultdict(float))
        self.windows: list[tuple[float, float]] = []  # of the host in next(), by the loader's own count
        self.numbers: list[int] = []  # of the batches, in the order in which they were handed out
        self.made_by = [0] * num_batches  # the worker of each batch
        self._world, self._setup, self._num_batches = world, setup, num_batches
        self._store, self._slow = store, slow
        self._waiting: set[int] = set()  # issued, and not handed out
        self._costs = [cost_of(number) for number in range(num_batches)]
        self._num_handed_out = self._num_issued = self._turn = 0
        self._left = [0] * num_batches  # pieces still to be made
        self._own: list[deque[_Piece]] = [deque() for _ in range(max(1, setup.num_workers))]
        self._common: deque[_Piece] = deque()
        self._at: list[_Piece | None] = [None] * setup.num_workers
        self._time = world.now

    @property
    def num_workers(self) -> int:
        return self._setup.num_workers

    def num_ready(self) -> int:
        """Batches that are ready, in order."""
        self._advance(self._world.now, host=1.0)
        if self._is_free:
            return sum(not self._left[number] for number in self._waiting)
        number = self._num_handed_out
        while number < self._num_issued and not self._left[number]:
            number += 1
        return number - self._num_handed_out

    def __iter__(self) -> Iterator[int]:
        for number in range(self._num_batches):
            entered = self._world.now
            if self._setup.num_workers:
                self._issue()
                self._advance(entered, host=1.0)
                number = self._make(number)
                self._waiting.discard(number)
                self._num_handed_out += 1
                self._world.spend(self._costs[number].delivery_s)
                self._advance(self._world.now, host=1.0)
                self._issue()
            else:
                self._num_handed_out += 1
                self._make_here(number)
                self._world.spend(self._costs[number].delivery_s)
            self.windows.append((entered, self._world.now))
            self.numbers.append(number)
            yield number

    @property
    def _is_free(self) -> bool:
        """Whether batches are handed out in the order in which they are done."""
        return self._setup.delivery is Delivery.COMPLETION

    def _issue(self) -> None:
        """Ask for as many batches as may be in the making."""
        num_workers, is_shared = self._setup.num_workers, self._setup.delivery is Delivery.SHARED
        while self._num_issued < min(self._num_batches, self._num_handed_out + self._setup.depth):
            number = self._num_issued
            worker = self._next_with_room() if self._is_free else number % num_workers
            if worker is None:
                break
            cost = self._costs[number]
            num_pieces = num_workers if is_shared else 1
            self._left[number] = num_pieces
            for _ in range(num_pieces):
                phases = [(stage, taken_s / num_pieces) for stage, taken_s in reversed(cost.phases()) if taken_s]
                piece = _Piece(number, phases)
                (self._common if is_shared else self._own[worker]).append(piece)
            self._waiting.add(number)
            self.made_by[number] = worker
            self._num_issued += 1
        self._take_up()

    def _next_with_room(self) -> int | None:
        """The next worker, in turn, that may be asked for another batch."""
        num_workers = self._setup.num_workers
        for worker in range(self._turn, self._turn + num_workers):
            asked_for = sum(self.made_by[number] == worker % num_workers for number in self._waiting)
            if asked_for < max(1, self._setup.depth // num_workers):
                self._turn = worker + 1
                return worker % num_workers
        return None

    def _take_up(self) -> None:
        for worker, piece in enumerate(self._at):
            if piece is None:
                queue = self._own[worker] or self._common
                if queue:
                    taken = self._at[worker] = queue.popleft()
                    self.made_by[taken.batch] = worker
                    if worker == 0 and self._slow != 1.0:
                        taken.phases = [(stage, taken_s * self._slow) for stage, taken_s in taken.phases]
                    taken.take_up(self._time)

    def _make_here(self, number: int) -> None:
        """The host makes the batch itself."""
        cost, now = self._costs[number], self._world.now
        for stage, taken_s in cost.phases():
            self._note_work(number, Work(stage, now, now + taken_s, 0.0 if stage == READ else taken_s))
            self.profile.waited_s[stage] += taken_s
            now += taken_s
        self._world.spend(cost.read_s + cost.cpu_s)

    def _make(self, number: int) -> int:
        """The host waits until the batch is there, or the first one that is; which one it was."""
        while (there := self._next_there(number)) is None:
            span = self._until_next(host=0.0)
            self._note_waiting(number, span)
            self._advance(self._time + span, host=0.0)
        self._world.now = max(self._world.now, self._time)
        return there

    def _next_there(self, number: int) -> int | None:
        if self._is_free:
            return min((one for one in self._waiting if not self._left[one]), default=None)
        return None if self._left[number] else number

    def _note_waiting(self, number: int, span: float) -> None:
        """Of workers that take turns: what the one whose turn it is does meanwhile, without a core as far as it shares one."""
        piece = next((one for one in self._at if one is not None and one.batch == number), None)
        piece = piece or self._at[number % self._setup.num_workers]
        if piece is not None:
            pace = 1.0 if piece.is_stalled else self._pace(0.0)
            self.profile.waited_s[piece.stage] += span * pace
            self.profile.waited_s[CORES] += span * (1 - pace)

    def _note_work(self, number: int, work: Work) -> None:
        self.profile.work[number].append(work)

    def _advance(self, until: float, *, host: float) -> None:
        """Move all work along. `host`: cores that the caller takes meanwhile."""
        while self._time < until - _TINY:
            span = min(self._until_next(host=host), until - self._time)
            pace = self._pace(host)
            self._time += span
            stalls = self._stall_paces()
            for worker, piece in enumerate(self._at):
                if piece is None:
                    continue
                left_s = piece.left_s - span * (stalls[worker] if piece.is_stalled else pace)
                piece.left_s = left_s if left_s > _TINY else 0.0
                if not piece.left_s:
                    self._end_phase(worker, piece)
            self._take_up()

    def _end_phase(self, worker: int, piece: _Piece) -> None:
        cpu_s = 0.0 if piece.is_stalled else piece.needs_s
        self._note_work(piece.batch, Work(piece.stage, piece.stage_began, self._time, cpu_s))
        if not piece.take_up(self._time):
            self._left[piece.batch] -= 1
            self._at[worker] = None

    def _until_next(self, *, host: float) -> float:
        pace, stalls = self._pace(host), self._stall_paces()
        paces = [
            (piece, stalls[worker] if piece.is_stalled else pace) for worker, piece in enumerate(self._at) if piece is not None
        ]
        return min((piece.left_s / pace for piece, pace in paces if pace), default=math.inf)

    def _stall_paces(self) -> list[float]:
        """How fast each worker's reading gets on."""
        if self._store is None:
            return [1.0] * len(self._at)
        reading = [(piece.stage_began, worker) for worker, piece in enumerate(self._at) if piece is not None and piece.is_stalled]
        first = min(reading, default=(0.0, -1))[1]
        if self._store == "lock":  # whoever came first has it
            return [float(worker == first) for worker in range(len(self._at))]
        return [1 / max(1, len(reading))] * len(self._at)

    def _pace(self, host: float) -> float:
        """How fast a thread on a core gets on: cores are shared out evenly."""
        cores = self._setup.num_cores
        if cores is None:
            return 1.0
        wanted = sum(1 for piece in self._at if piece is not None and not piece.is_stalled) + host
        return min(1.0, cores / max(wanted, _TINY))
