"""A loader in virtual time: workers that stall, share cores, and are blocked by a full buffer.

It shares nothing with the replay that it is to prove: here every piece of work is moved along from event to
event, with the cores shared out exactly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.diagnostics.virtual_device import VirtualWorld
from datapipe.diagnostics.replay import Delivery, Setup

_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Seconds, with the cores to itself."""

    stall_s: float
    cpu_s: float
    delivery_s: float  # the caller's part


@dataclass(slots=True)
class _Piece:
    """A batch, or a worker's part of one."""

    batch: int
    stall_s: float
    cpu_s: float
    began: float = math.nan


@dataclass(slots=True)
class Profile:
    """What workers report: per batch, the time it took on one worker, and on a core."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


class VirtualLoader:
    """One pass of `num_batches`. `cost_of(k)`: what batch k costs."""

    def __init__(self, world: VirtualWorld, setup: Setup, cost_of: Callable[[int], BatchCost], *, num_batches: int) -> None:
        self.profile = Profile([0.0] * num_batches, [0.0] * num_batches)
        self.windows: list[tuple[float, float]] = []  # of the host in next(), by the loader's own count
        self._world, self._setup, self._num_batches = world, setup, num_batches
        self._costs = [cost_of(number) for number in range(num_batches)]
        self._num_handed_out = self._num_issued = 0
        self._left = [0] * num_batches  # pieces still to be made
        self._own: list[deque[_Piece]] = [deque() for _ in range(max(1, setup.num_workers))]
        self._common: deque[_Piece] = deque()
        self._at: list[_Piece | None] = [None] * setup.num_workers
        self._time = world.now

    def num_ready(self) -> int:
        """Batches that could be handed out now, in order."""
        self._advance(self._world.now, host=1.0)
        number = self._num_handed_out
        while number < self._num_issued and not self._left[number]:
            number += 1
        return number - self._num_handed_out

    def __iter__(self) -> Iterator[int]:
        for number in range(self._num_batches):
            entered = self._world.now
            cost = self._costs[number]
            if self._setup.num_workers:
                self._issue()
                self._advance(entered, host=1.0)
                self._make(number)
                self._num_handed_out += 1
                self._world.spend(cost.delivery_s)
                self._advance(self._world.now, host=1.0)
                self._issue()
            else:
                self._num_handed_out += 1
                self._world.spend(cost.stall_s + cost.cpu_s + cost.delivery_s)
                self.profile.wall_s[number], self.profile.cpu_s[number] = cost.stall_s + cost.cpu_s, cost.cpu_s
            self.windows.append((entered, self._world.now))
            yield number

    def _issue(self) -> None:
        """Ask for as many batches as may be in the making."""
        num_workers, is_shared = self._setup.num_workers, self._setup.delivery is Delivery.SHARED
        while self._num_issued < min(self._num_batches, self._num_handed_out + self._setup.depth):
            number = self._num_issued
            cost = self._costs[number]
            num_pieces = num_workers if is_shared else 1
            self._left[number] = num_pieces
            for _ in range(num_pieces):
                piece = _Piece(number, cost.stall_s / num_pieces, cost.cpu_s / num_pieces)
                is_own = self._setup.delivery is Delivery.ROUND_ROBIN
                (self._own[number % num_workers] if is_own else self._common).append(piece)
            self._num_issued += 1
        self._take_up()

    def _take_up(self) -> None:
        for worker, piece in enumerate(self._at):
            if piece is None:
                queue = self._own[worker] or self._common
                if queue:
                    self._at[worker] = queue.popleft()
                    self._at[worker].began = self._time  # type: ignore[union-attr]

    def _make(self, number: int) -> None:
        """The host waits until the batch is there."""
        while self._left[number]:
            self._advance(self._time + self._until_next(host=0.0), host=0.0)
        self._world.now = max(self._world.now, self._time)

    def _advance(self, until: float, *, host: float) -> None:
        """Move all work along. `host`: cores that the caller takes meanwhile."""
        while self._time < until - _TINY:
            span = min(self._until_next(host=host), until - self._time)
            pace = self._pace(host)
            self._time += span
            for worker, piece in enumerate(self._at):
                if piece is None:
                    continue
                if piece.stall_s > 0:
                    piece.stall_s = piece.stall_s - span if piece.stall_s - span > _TINY else 0.0
                else:
                    piece.cpu_s = piece.cpu_s - span * pace if piece.cpu_s - span * pace > _TINY else 0.0
                if not piece.stall_s and not piece.cpu_s:
                    self._left[piece.batch] -= 1
                    self.profile.wall_s[piece.batch] += self._time - piece.began
                    self.profile.cpu_s[piece.batch] = self._costs[piece.batch].cpu_s
                    self._at[worker] = None
            self._take_up()

    def _until_next(self, *, host: float) -> float:
        pace = self._pace(host)
        spans = [piece.stall_s or piece.cpu_s / pace for piece in self._at if piece is not None]
        return min(spans, default=math.inf)

    def _pace(self, host: float) -> float:
        """How fast a thread on a core gets on: cores are shared out evenly."""
        cores = self._setup.num_cores
        if cores is None:
            return 1.0
        wanted = sum(1 for piece in self._at if piece is not None and not piece.stall_s) + host
        return min(1.0, cores / max(wanted, _TINY))
