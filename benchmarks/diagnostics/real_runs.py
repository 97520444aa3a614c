"""Cells in real time, on torch's DataLoader and a device that is a thread; and the negative controls."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from queue import Queue
from typing import Any

from benchmarks.diagnostics.cells import Cell, costs_of
from benchmarks.diagnostics.devices import FifoDevice
from benchmarks.diagnostics.real_loader import RealLoader
from benchmarks.diagnostics.runs import Run, finish, loop, loop_over
from datapipe.core.environment import num_usable_cores
from datapipe.instruments.attach.recording import Recording
from datapipe.instruments.attach.startup import attach_here
from datapipe.instruments.measure.bracket import ThreadBracket, watch
from datapipe.instruments.measure.watching import Hooks, Watch

NUM_BATCHES = 150

_COMPUTING = ("decode", "augment", "collate")  # places in which a core is kept busy
CONTROLS = ("wrapped twice", "inner loader in a thread", "outermost over a thread")


def real_cells() -> list[Cell]:
    """Nearly fifty, of the matrix's kind: each place in real time."""
    loaders = [(0, 1), (2, 1), (2, 2), (4, 1), (4, 8)]
    cells = [
        Cell("read", stall, workers, prefetch, jitter)
        for stall, (workers, prefetch), jitter in itertools.product((0, 5, 20), loaders, ("none", "heavy"))
    ]
    cells += [Cell("sync", stall, workers, 2, "none") for stall, workers in itertools.product((0, 20), (0, 2))]
    cells += [Cell("transfer", stall, 2, 2, "none") for stall in (5, 20)]
    cells += [Cell("python", stall, 2, 2, "none") for stall in (5, 20)]
    cores = float(num_usable_cores())
    cells += [Cell(place, 20, workers, 2, "none", cores) for place, workers in itertools.product(_COMPUTING, (0, 2))]
    return [*cells, Cell("read", 20, 2, 2, "periodic"), Cell("transfer", 20, 4, 2, "heavy")]


def run_real(
    cell: Cell,
    *,
    num_workers: int | None = None,
    prefetch: int | None = None,
    factor: float = 1.0,
    drops_syncs: bool = False,
    in_order: bool = True,
    seed: int = 0,
    num_batches: int = NUM_BATCHES,
) -> Run:
    """The cell under the attachment of `datapipe diagnose`; or with a remedy applied: another number of workers, a deeper
    buffer, batches as they are done, cheaper batches, no syncs."""
    device = FifoDevice()
    bracket = ThreadBracket(device, hooks=Hooks(syncs=True, copies=True, updates=True))
    recording = Recording(bracket)
    try:
        loader = RealLoader(
            costs_of(cell, seed=seed, num_batches=num_batches, factor=factor),
            num_batches=num_batches,
            num_workers=cell.num_workers if num_workers is None else num_workers,
            prefetch=cell.prefetch if prefetch is None else prefetch,
            computes=cell.place in _COMPUTING,
            in_order=in_order,
        )
        syncs = cell.is_synced and not drops_syncs
        with attach_here(lambda hooks: Watch(bracket, recording)):
            for _ in loop_over(loader, device, bracket, python_s=cell.python_s, syncs=syncs):
                pass
        run = finish(device, loader, bracket)
    finally:
        device.close()
    return replace(run, process=recording.process(), waited_s=loader.spent_s)


def run_control(name: str, *, stall_ms: float = 20, num_batches: int = 60) -> Run:
    """Loaders that are easily measured wrongly."""
    cell = Cell("read", stall_ms, 0, 1, "none")
    device = FifoDevice()
    try:
        loader = RealLoader(costs_of(cell, seed=0, num_batches=num_batches), num_batches=num_batches, num_workers=0, prefetch=1)
        bracket = ThreadBracket(device, hooks=Hooks(updates=True))
        measured = _Controlled(name, loader, bracket)
        outer = bracket if name != "inner loader in a thread" else ThreadBracket(device)  # not used
        for _ in loop(device, measured, outer):
            bracket.note_update()
        return finish(device, measured, bracket)
    finally:
        device.close()


class _Controlled:
    """A loader within another one."""

    def __init__(self, name: str, inner: RealLoader, bracket: ThreadBracket) -> None:
        self.windows: list[tuple[float, float]] = []
        self._name, self._inner, self._bracket = name, inner, bracket

    def num_ready(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        watched = watch(self._inner, self._bracket)
        if self._name == "wrapped twice":
            yield from self._timed(watched)
        else:
            yield from self._timed(_in_thread(watched))

    def _timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            entered = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.windows.append((entered, time.perf_counter()))
            yield batch


def _in_thread(batches: Iterator[Any]) -> Iterator[Any]:
    """As prefetchers of users' own do: a thread that runs ahead."""
    ahead: Queue[Any] = Queue(maxsize=2)
    over = object()

    def fill() -> None:
        for batch in batches:
            ahead.put(batch)
        ahead.put(over)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    while (batch := ahead.get()) is not over:
        yield batch
    thread.join()
