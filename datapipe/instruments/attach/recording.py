"""A watch that keeps its observations, bounded, and writes one file for the process at its end.

It imports NumPy, so it is imported itself only when there is something to measure.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from datapipe.core.atomic import atomic_writer
from datapipe.core.environment import is_of_datapipe
from datapipe.core.observe import StageEvent
from datapipe.instruments.attach.cuda_hooks import BusySampler, read_busy
from datapipe.instruments.attach.exchanges import ExchangeReader
from datapipe.instruments.attach.lock_sampler import LockSampler
from datapipe.instruments.attach.machine import process_started_ns, rank_here, surroundings
from datapipe.instruments.attach.ours import complain
from datapipe.instruments.attach.settings import RESULTS, Settings, settings_from
from datapipe.instruments.attach.step_counter import StepCounter
from datapipe.instruments.attach.step_hooks import HookedMeter, ProfilerWindow, Tap, until
from datapipe.instruments.measure.bracket import READ_AT_ONCE, ThreadBracket
from datapipe.instruments.measure.clock import open_clock
from datapipe.instruments.measure.observed import ModelCost
from datapipe.instruments.measure.recorded import SUFFIX, Process, TrialSource, write_process
from datapipe.instruments.measure.timeline import Steps
from datapipe.instruments.measure.watching import Hooks, LoaderFacts, Meter, Watch
from datapipe.instruments.torch_stages.profile import BatchProfile
from datapipe.instruments.torch_stages.ranges import open_recorder, set_recorder

MAX_PROFILES = 4096  # the latest of each loader
MAX_EVENTS = 65_536  # the latest of all
_WAITS = 0.03  # share of the loop's time below which a wait for data is none that a remedy would be looked for
_SNAPSHOT_ROWS = 2048  # steps, and batches of each loader


class Recording:
    """A `Sink`. Thread-safe. Without `save_into`, `process` is its only output."""

    def __init__(
        self,
        bracket: ThreadBracket,
        settings: Settings | None = None,
        *,
        busy: BusySampler | None = None,
        lock: LockSampler | None = None,
        exchanges: ExchangeReader | None = None,
    ) -> None:
        self._bracket, self._settings = bracket, settings or Settings()
        self._directory: Path | None = None
        self._saves_since_ns = 0
        self._busy, self._lock_sampler, self._exchanges = busy, lock, exchanges
        self._lock = threading.Lock()
        self._loaders: list[LoaderFacts] = []
        self._profiles: dict[int, deque[BatchProfile]] = {}
        self._events: deque[tuple[int, StageEvent]] = deque(maxlen=MAX_EVENTS)
        self._troubles: list[str] = []
        self._sources: dict[int, TrialSource] = {}
        self._samples: dict[int, bytes] = {}
        self._held: dict[int, Any] = {}  # loaders for trials of their Datasets, or the reason why there are none
        self._ended = threading.Event()
        self._ended_ns: int | None = None  # None: it is still measuring
        self._rank = rank_here()  # a process group may no longer exist at the end
        self.window: ProfilerWindow | None = None
        self.counter: StepCounter | None = None
        self._model: ModelCost | None = None

    def save_into(self, directory: Path, *, since_ns: int = 0) -> None:
        """Write snapshots into a directory from now on, and the whole at the end. `since_ns`: leave out what was before."""
        is_first = self._directory is None
        self._directory, self._saves_since_ns = directory, since_ns
        if is_first:
            threading.Thread(target=self._keep_snapshots, name="datapipe-snapshots", daemon=True).start()

    def note_loader(self, facts: LoaderFacts, loader: Any) -> None:
        with self._lock:
            self._loaders.append(facts)
        if self._settings.keeps_samples and self._rank in (None, 0):
            self._keep_sample(facts.key, loader)
            if self._settings.tries_dataset_s and not is_of_datapipe(loader):
                self._hold(facts.key, loader)

    def note_profile(self, profile: BatchProfile) -> None:
        with self._lock:
            self._profiles.setdefault(profile.loader, deque(maxlen=MAX_PROFILES)).append(profile)

    def note_stage(self, loader: int, event: StageEvent) -> None:
        self._events.append((loader, event))

    def note_trouble(self, message: str) -> None:
        with self._lock:
            self._troubles.append(message)

    def _keep_sample(self, key: int, loader: Any) -> None:
        """Record some of the files that a loader reads, or why they are not known."""
        try:
            from datapipe.instruments.trials.sample import pickled_sample

            found = pickled_sample(loader)
        except Exception as exc:
            complain("the files that a loader reads could not be found", exc)
            found = f"{type(exc).__name__}: {exc}"
        with self._lock:
            if isinstance(found, bytes):
                self._samples[key] = found
            else:
                self._sources[key] = TrialSource(reason=found)

    def _hold(self, key: int, loader: Any) -> None:
        """Keep a loader for trials of its Dataset at the end."""
        try:
            from datapipe.adapt.loaders import unwrap_torch_loader
            from datapipe.instruments.trials.dataset import held_for_trial

            held = held_for_trial(unwrap_torch_loader(loader))
        except Exception:  # what is no loader that from_torch would take
            return
        with self._lock:
            self._held[key] = held

    def _try_dataset(self) -> None:
        """Try the Dataset of the loader that was waited for longest, if the loop waited at all."""
        held, self._held = self._held, {}
        if not held:
            return
        from datapipe.instruments.trials.dataset import try_dataset

        steps = self._bracket.timeline.steps(None)
        waits = {key: float(steps["host_wait_s"][steps["loader"] == key].sum()) for key in held}
        key = max(waits, key=waits.__getitem__)
        if waits[key] < _WAITS * float(steps["host_wait_s"].sum() + steps["host_work_s"].sum()):
            return
        made, cores = [profile.made for profile in self._profiles.get(key, ())], int(surroundings().get("cores") or 1)
        tried = try_dataset(held[key], made, cores=cores, seconds=self._settings.tries_dataset_s)
        self._sources[key] = replace(self._sources.get(key, TrialSource()), **tried)

    def finish(self) -> None:
        """Write `RANK-PID.process`, and the samples next to it. Nothing is recorded afterwards."""
        if self._ended.is_set() or self._directory is None:
            return
        with self._lock:  # a snapshot in progress must not be written after this
            self._ended.set()
        if self.window is not None:
            self.window.close()
        if self._busy is not None:
            self._busy.stop()
        if self._lock_sampler is not None:
            self._lock_sampler.stop()
        self._bracket.finish()
        self._ended_ns = time.perf_counter_ns()  # trials are no part of the run
        if self.counter is not None and self._rank in (None, 0):
            self._model = self.counter.finish()
        for key, data in self._samples.items():
            name = f"sample-{os.getpid()}-{key}.pickle"
            with atomic_writer(self._directory / name) as file:
                file.write(data)
            self._sources[key] = TrialSource(file=name)
        self._try_dataset()
        self._save()

    def save(self) -> None:
        """Write what is recorded, whole, if it is to be saved and anything is. Does nothing after `finish`."""
        if not self._ended.is_set():
            self._save()

    def _save(self) -> None:
        found = self.process()
        if self._directory is not None and found.loaders:
            self._write(self._directory, found)

    def _write(self, directory: Path, found: Process) -> None:
        """Write the file of this process; a monitor's in place of those that earlier runs have left for its rank."""
        own = directory / f"{found.rank}-{found.pid}{SUFFIX}"
        if not self._saves_since_ns:
            write_process(own, found)
            return
        write_process(own, found.part(None, since_ns=self._saves_since_ns))
        age_s = (time.perf_counter_ns() - self._saves_since_ns) * 1e-9
        for path in directory.glob(f"{found.rank}-*{SUFFIX}"):
            with suppress(FileNotFoundError):  # another process has removed it
                if path.stat().st_mtime < time.time() - age_s:
                    path.unlink()

    def _keep_snapshots(self) -> None:
        """Write a snapshot after 10, 20, 40, ... s, so that a process ended by a signal leaves the latest of them.

        A signal handler would change how the script dies, and SIGKILL cannot be handled.
        """
        assert self._directory is not None
        pause_s = self._settings.snapshot_s
        while not self._ended.wait(pause_s):
            with suppress(Exception):  # the script continues without it
                found = self.process(latest=_SNAPSHOT_ROWS)
                with self._lock:
                    if not self._ended.is_set() and found.loaders:
                        self._write(self._directory, found)
            pause_s *= 2

    def process(self, *, latest: int | None = None) -> Process:
        """Return what is recorded. `latest`: at most so many steps, batches of each loader, and the stages in that time."""
        num_steps = self._bracket.timeline.training.num_steps
        steps = self._bracket.timeline.steps(latest)
        last = slice(-latest if latest else None, None)
        events = tuple(self._events) if latest is None else _since(self._events, steps)
        with self._lock:
            return Process(
                rank=self._rank or 0,
                pid=os.getpid(),
                loaders={facts.key: facts for facts in self._loaders},
                steps=steps,
                context=self._bracket.context(),
                profiles=tuple(one for kept in self._profiles.values() for one in list(kept)[last]),
                events=events,
                troubles=tuple(self._troubles),
                environment=surroundings() | {"gpu_busy_by_nvml": None if self._busy is None else self._busy.mean()},
                sources=dict(self._sources),
                lock=None if self._lock_sampler is None else self._lock_sampler.summary(),
                exchanges=() if self._exchanges is None else self._exchanges.latest(),
                model=self._model,
                num_before=max(0, num_steps - int((~steps["is_evaluation"]).sum())),
                started_ns=process_started_ns(),
                ended_ns=self._ended_ns or time.perf_counter_ns(),
            )


def open_recording(hooks: Hooks, environment: Mapping[str, str]) -> Watch:
    """Open a watch: a `ThreadBracket` on this machine's clock, and a `Recording`, as `environment` says."""
    settings = settings_from(environment)
    exchanges = ExchangeReader(every=READ_AT_ONCE)
    bracket = open_bracket(hooks, on_read=exchanges)
    busy = None if bracket.clock.device is None else BusySampler(read_busy)
    lock = LockSampler()
    lock.start()
    recording = Recording(bracket, settings, busy=busy, lock=lock, exchanges=exchanges)
    recording.save_into(Path(environment[RESULTS]))
    return Watch(_hooked(bracket, recording, settings), recording)


def open_bracket(hooks: Hooks, *, on_read: Callable[[int], None] | None = None) -> ThreadBracket:
    """Return a bracket on this machine's clock."""
    return ThreadBracket(open_clock(), hooks=hooks, on_read=on_read)


def _hooked(meter: Meter, recording: Recording, settings: Settings) -> Meter:
    """Add what the settings ask for: NVTX ranges, also in workers, a profile, a limit of the steps."""
    taps: list[Tap] = []
    if settings.profile is not None and rank_here() in (None, 0):
        recording.window = ProfilerWindow(Path(settings.profile))
        taps.append(recording.window)
    taps += [until(most, recording.finish) for most in (settings.max_steps, settings.ends_after) if most is not None]
    if settings.counts_operations:  # on all ranks, as they wait for each other
        recording.counter = StepCounter()
        taps.append(recording.counter)
    recorder = None
    if settings.nvtx:
        try:
            recorder = open_recorder()
        except Exception as exc:
            complain("NVTX ranges are not available", exc)
        set_recorder(recorder)
    if not taps and recorder is None:
        return meter
    return HookedMeter(meter, taps=taps, ends_after=settings.ends_after, recorder=recorder, counter=recording.counter)


def _since(events: deque[tuple[int, StageEvent]], steps: Steps) -> tuple[tuple[int, StageEvent], ...]:
    """Return the stages of the batches of these steps: those that were made meanwhile, and for a while before."""
    if not len(steps):
        return ()
    first_ns, last_ns = int(steps["start_ns"][0]), int(steps["start_ns"][-1])
    since_ns = first_ns - (last_ns - first_ns) // 4
    kept = list(itertools.takewhile(lambda one: one[1].start_ns + one[1].duration_ns >= since_ns, reversed(events.copy())))
    return tuple(reversed(kept))
