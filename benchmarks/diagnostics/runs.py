"""One training loop over one faulty loader, measured by the bracket and, independently, by the device's own log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.diagnostics.cells import DEVICE_S, LAUNCH_S, Cell, costs_of
from benchmarks.diagnostics.devices import Busy, DeviceLog, VirtualWorld
from benchmarks.diagnostics.virtual_loader import VirtualLoader, Work
from datapipe.analysis.judge.breakdown import READ, Stage
from datapipe.analysis.predict.replay import Delivery, Setup
from datapipe.instruments.measure.bracket import ThreadBracket, watch
from datapipe.instruments.measure.clock import Clock
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.timeline import Context, Steps
from datapipe.instruments.measure.watching import Hooks, LoaderFacts
from datapipe.instruments.torch_stages.profile import BatchProfile, Counters, Making, Passage, TransformTime

NUM_BATCHES = 600  # of a virtual run
_NUM_TRIED = 200  # batches of a trial


class World(Clock, Protocol):
    """A host and a device, in virtual or in real time."""

    log: DeviceLog

    @property
    def now(self) -> float: ...

    def spend(self, seconds: float) -> None: ...

    def launch(self, seconds: float, kind: Busy = "work") -> None: ...

    def synchronize(self) -> float: ...


class Loader(Protocol):
    """Batches, how many of them lie ready, and when the host was in next()."""

    windows: list[tuple[float, float]]

    def __iter__(self) -> Iterator[Any]: ...

    def num_ready(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Run:
    """What the bracket saw of a loop, and what the device and the loader logged."""

    process: Process
    truth_s: NDArray[np.float64]  # (n,) per step: the device idle while the host was in next(), and copies
    step_ends: NDArray[np.float64]  # (n,) when the device was done with each
    waited_s: Mapping[Stage, float] = field(default_factory=dict)  # by what batches were going through, as the loader knows

    @property
    def steps(self) -> Steps:
        return self.process.steps

    @property
    def context(self) -> Context:
        return self.process.context

    def tail_step_s(self) -> float:
        """Mean step of the second half."""
        half = len(self.step_ends) // 2
        return float((self.step_ends[-1] - self.step_ends[half - 1]) / (len(self.step_ends) - half))

    def tail_starvation(self) -> float:
        half = len(self.truth_s) // 2
        return float(self.truth_s[half:].mean()) / self.tail_step_s()


def loop(
    world: World, loader: Loader, bracket: ThreadBracket, *, python_s: float = 0.0, copy_s: float = 0.0, syncs: bool = False
) -> Iterator[None]:
    """The user's loop; yields where ranks meet, after the work of a step was launched."""
    watched = watch(loader, bracket, count_ready=loader.num_ready)
    return loop_over(watched, world, bracket, python_s=python_s, copy_s=copy_s, syncs=syncs)


def loop_over(
    batches: Iterable[Any],
    world: World,
    bracket: ThreadBracket,
    *,
    python_s: float = 0.0,
    copy_s: float = 0.0,
    syncs: bool = False,
) -> Iterator[None]:
    """The same over batches that are measured already."""
    for _ in batches:
        if copy_s:
            bracket.begin_copy()
            world.launch(copy_s, "copy")
            bracket.end_copy()
        world.spend(0.1 * LAUNCH_S)  # the first kernel runs while the others are being launched
        world.launch(DEVICE_S)
        world.spend(0.9 * LAUNCH_S + python_s)
        bracket.note_update()
        yield
        if syncs:
            bracket.note_sync("Tensor.item", world.synchronize())


def finish(
    world: World, loader: Loader, bracket: ThreadBracket, *, num_workers: int = 0, profiles: tuple[BatchProfile, ...] = ()
) -> Run:
    """What came of a loop that is over."""
    bracket.finish()
    world.synchronize()
    windows = np.array(loader.windows)
    after = np.column_stack([windows[:, 1], np.append(windows[1:, 0], world.now)])
    truth = world.log.idle_within(windows) + world.log.copies_within(after)
    process = Process(
        rank=0,
        pid=0,
        loaders={0: _facts_of(num_workers)},
        steps=bracket.timeline.steps(),
        context=bracket.context(),
        profiles=profiles,
        events=(),
        troubles=(),
        environment={},
        sources={},
    )
    return Run(process, truth, world.log.step_ends())


def run_virtual(cell: Cell, *, setup: Setup | None = None, factor: float = 1.0, drops_syncs: bool = False, seed: int = 0) -> Run:
    """The cell in virtual time, without a look inside; of its ranks, if it has two, the one with the fault."""
    return run_ranks(cell, setup=setup, factor=factor, drops_syncs=drops_syncs, seed=seed, looks_inside=False)[0]


def run_ranks(
    cell: Cell,
    *,
    setup: Setup | None = None,
    factor: float = 1.0,
    drops_syncs: bool = False,
    seed: int = 0,
    looks_inside: bool = True,
) -> list[Run]:
    """All ranks of the cell; the first has the fault. `looks_inside`: with profiles of its batches."""
    num_ranks = 2 if cell.place == "rank" else 1
    worlds = [VirtualWorld() for _ in range(num_ranks)]
    brackets = [ThreadBracket(world, hooks=Hooks(syncs=True, copies=True, updates=True)) for world in worlds]
    loaders, loops = [], []
    for rank, (world, bracket) in enumerate(zip(worlds, brackets, strict=True)):
        own = cell if rank == 0 else Cell("read", 0, cell.num_workers, cell.prefetch, cell.jitter, cell.num_cores)
        cost_of = costs_of(own, seed=seed, num_batches=NUM_BATCHES, factor=factor)
        costs = [cost_of(number) if looks_inside else cost_of(number).joined() for number in range(NUM_BATCHES)]
        loader = VirtualLoader(
            world, setup or cell.setup, costs.__getitem__, num_batches=NUM_BATCHES, store=cell.store, slow=cell.slow
        )
        loaders.append(loader)
        loops.append(loop(world, loader, bracket, python_s=cell.python_s, syncs=cell.is_synced and not drops_syncs))
    for _ in zip(*loops, strict=True):
        meet(worlds)
    runs = []
    for world, loader, bracket in zip(worlds, loaders, brackets, strict=True):
        profiles = _profiles_of(loader) if looks_inside else ()
        run = finish(world, loader, bracket, num_workers=loader.num_workers, profiles=profiles)
        runs.append(replace(run, waited_s=loader.profile.waited_s))
    return runs


def try_scaling(cell: Cell, nums: Sequence[int]) -> dict[str, Any]:
    """What `trials.scaling` would find: batches made by several numbers of workers, of which nothing is trained."""
    levels = {}
    for num in nums:
        world, cost_of = VirtualWorld(), costs_of(cell, seed=2, num_batches=_NUM_TRIED)
        setup = Setup(num, 2 * num, Delivery.COMPLETION, cell.num_cores)
        loader = VirtualLoader(world, setup, cost_of, num_batches=_NUM_TRIED, store=cell.store, slow=cell.slow)
        for _ in loader:
            pass
        stalls = [sum(one.end_s - one.start_s for one in work if one.stage == READ) for work in loader.profile.work]
        error = float(np.std(stalls) / len(stalls) ** 0.5 / max(1e-9, float(np.mean(stalls))))
        levels[str(num)] = {"stall_s": float(np.mean(stalls)), "cpu_s": 0.0, "spread": max(0.05, error)}
    return {"levels": levels}


def meet(worlds: Iterable[VirtualWorld]) -> None:
    """A collective: every device is busy with it until the last one has come."""
    worlds = list(worlds)
    last = max(world.free_at for world in worlds)
    for world in worlds:
        if world.free_at < last:
            world.log.add(world.free_at, last, "collective")
            world.free_at = last


def _facts_of(num_workers: int) -> LoaderFacts:
    """A loader of torch's, the only one."""
    return LoaderFacts(
        key=0,
        kind="torch.utils.data.dataloader.DataLoader",
        site=None,
        dataset=None,
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
        in_order=True,
        is_iterable=False,
    )


def _profiles_of(loader: VirtualLoader) -> tuple[BatchProfile, ...]:
    """What the probes in torch's workers would have seen of each batch that was returned; collating is the last of its work."""
    return tuple(
        _profile(place, loader.made_by[number] if loader.num_workers else None, window, loader.profile.work[number])
        for place, (number, window) in enumerate(zip(loader.numbers, loader.windows, strict=True))
    )


def _profile(number: int, worker: int | None, window: tuple[float, float], work: list[Work]) -> BatchProfile:
    asked_ns, taken_ns = map(_ns, window)
    made = _making(worker, work)
    opened_ns = max(asked_ns, made.ready_ns)
    moved = None if worker is None else Passage(made.ready_ns, made.ready_ns, opened_ns, taken_ns)
    return BatchProfile(0, 0, number, asked_ns, taken_ns, made, moved, pinned=None)


def _making(worker: int | None, work: list[Work]) -> Making:
    dataset, collating = work[:-1], work[-1]
    transforms = [one for one in dataset if one.stage[0] == "transform"]
    took_s = sum(one.end_s - one.start_s for one in work if one.cpu_s)
    cpu_ns, collate_cpu_ns = _cpu_ns(dataset), _ns(collating.cpu_s)
    return Making(
        iterator=(0, 0),
        pid=0 if worker is None else 1 + worker,
        worker=worker,
        num_samples=None,
        nbytes=None,
        start_ns=_ns(work[0].start_s),
        collate_start_ns=_ns(collating.start_s),
        ready_ns=_ns(collating.end_s),
        dataset_cpu_ns=cpu_ns,
        collate_cpu_ns=collate_cpu_ns,
        process_cpu_ns=None if worker is None else cpu_ns + collate_cpu_ns,
        transforms=tuple(TransformTime(one.stage[1] or "", _ns(one.end_s - one.start_s), _ns(one.cpu_s)) for one in transforms),
        transform_ns=_ns(sum(one.end_s - one.start_s for one in transforms)),
        counters=Counters(None, None, max(0, _ns(took_s) - cpu_ns - collate_cpu_ns)),
    )


def _cpu_ns(work: Iterable[Work]) -> int:
    return _ns(sum(one.cpu_s for one in work))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
