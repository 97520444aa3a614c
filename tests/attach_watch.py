"""A watch that records its calls, for tests that attach to the process they run in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from datapipe.core.observe import StageEvent
from datapipe.instruments.attach.startup import attach_here
from datapipe.instruments.measure.watching import Hooks, LoaderFacts, Watch
from datapipe.instruments.torch_stages.profile import BatchProfile


class Calls:
    """Meter and sink in one: `log` has the calls in order, as (what, pass) pairs."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.passes: list[MeteredCalls] = []
        self.facts: list[LoaderFacts] = []
        self.profiles: list[BatchProfile] = []
        self.stages: list[tuple[int, StageEvent]] = []
        self.troubles: list[str] = []
        self.syncs: list[str] = []
        self.num_copies = self.num_updates = self.num_finished = 0

    def open_pass(self, *, loader: int = 0) -> MeteredCalls:
        self.passes.append(MeteredCalls(self, len(self.passes), loader))
        return self.passes[-1]

    def note_sync(self, name: str, host_s: float) -> None:
        self.syncs.append(name)

    def begin_copy(self) -> None:
        self.num_copies += 1

    def end_copy(self) -> None: ...

    def note_update(self, device: int | None = None) -> None:
        self.num_updates += 1

    def note_loader(self, facts: LoaderFacts, loader: Any) -> None:
        self.facts.append(facts)

    def note_profile(self, profile: BatchProfile) -> None:
        self.profiles.append(profile)

    def note_stage(self, loader: int, event: StageEvent) -> None:
        self.stages.append((loader, event))

    def note_trouble(self, message: str) -> None:
        self.troubles.append(message)

    def finish(self) -> None:
        self.num_finished += 1

    def num(self, what: str) -> int:
        return sum(name == what for name, _ in self.log)


class MeteredCalls:
    def __init__(self, calls: Calls, number: int, loader: int) -> None:
        self._calls, self._number = calls, number
        self.loader, self.is_evaluation = loader, False
        self.num_ready: list[int | None] = []

    def begin(self, num_ready: int | None = None) -> None:
        self.num_ready.append(num_ready)
        self._calls.log.append(("begin", self._number))

    def end(self) -> None:
        self._calls.log.append(("end", self._number))

    def stop(self) -> None:
        self._calls.log.append(("stop", self._number))


@contextlib.contextmanager
def attached(meter: Any = None) -> Iterator[Calls]:
    """Attach this process to a new `Calls`; `meter`: another one for the brackets."""
    calls = Calls()

    def open_watch(hooks: Hooks) -> Watch:
        return Watch(meter or calls, calls)

    with attach_here(open_watch):
        yield calls
