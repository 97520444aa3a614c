"""A watch that keeps what it is told, bounded, and writes it into one file for the process at its end."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.atomic import write_json
from datapipe.diagnostics.attach.environment import RESULTS
from datapipe.diagnostics.attach.watching import Hooks, LoaderFacts, Watch
from datapipe.diagnostics.torch_stages.profile import BatchProfile
from datapipe.observe import StageEvent

if TYPE_CHECKING:  # numpy, too, is imported where there is something to measure
    from datapipe.diagnostics.bracket import Bracket

MAX_PROFILES = 4096  # the latest of each loader
MAX_EVENTS = 65_536  # the latest of all
SCHEMA = 1


class Recording:
    """A `Sink`. Thread-safe."""

    def __init__(self, bracket: Bracket, directory: Path) -> None:
        self._bracket = bracket
        self._directory = directory
        self._lock = threading.Lock()
        self._loaders: list[LoaderFacts] = []
        self._profiles: dict[int, deque[BatchProfile]] = {}
        self._events: deque[tuple[int, StageEvent]] = deque(maxlen=MAX_EVENTS)
        self._troubles: list[str] = []

    def note_loader(self, facts: LoaderFacts) -> None:
        with self._lock:
            self._loaders.append(facts)

    def note_profile(self, profile: BatchProfile) -> None:
        with self._lock:
            self._profiles.setdefault(profile.loader, deque(maxlen=MAX_PROFILES)).append(profile)

    def note_stage(self, loader: int, event: StageEvent) -> None:
        self._events.append((loader, event))

    def note_trouble(self, message: str) -> None:
        with self._lock:
            self._troubles.append(message)

    def finish(self) -> None:
        """Write `process-RANK-PID.json`."""
        self._bracket.finish()
        rank = _rank()
        write_json(self._directory / f"process-{'x' if rank is None else rank}-{os.getpid()}.json", self.to_json())

    def to_json(self) -> dict[str, Any]:
        """JSON-safe."""
        from datapipe.diagnostics.timeline import steps_as_columns, totals_as_dict

        timeline = self._bracket.timeline
        with self._lock:
            return {
                "schema": SCHEMA,
                "process": {"pid": os.getpid(), "rank": _rank(), "argv": sys.argv},
                "loaders": [facts.to_json() for facts in self._loaders],
                "steps": steps_as_columns(timeline.steps()),
                "training": totals_as_dict(timeline.training),
                "evaluation": totals_as_dict(timeline.evaluation),
                "profiles": [profile.to_json() for kept in self._profiles.values() for profile in kept],
                "stages": [_event_as_dict(loader, event) for loader, event in self._events],
                "troubles": list(self._troubles),
            }


def open_recording(hooks: Hooks) -> Watch:
    """An `OpenWatch`: a `Bracket` on the clock that this machine has, and a `Recording`."""
    from datapipe.diagnostics.bracket import Bracket
    from datapipe.diagnostics.bracket import Hooks as Watched
    from datapipe.diagnostics.cuda_clock import open_clock

    bracket = Bracket(open_clock(), hooks=Watched(syncs=hooks.syncs, copies=hooks.copies, updates=hooks.updates))
    return Watch(bracket, Recording(bracket, Path(os.environ[RESULTS])))


def _rank() -> int | None:
    try:
        return int(os.environ["RANK"])
    except (KeyError, ValueError):
        return None


def _event_as_dict(loader: int, event: StageEvent) -> dict[str, Any]:
    return {
        "loader": loader,
        "stage": event.stage.value,
        "step": event.step,
        "start_ns": event.start_ns,
        "duration_ns": event.duration_ns,
        "num_samples": event.num_samples,
        "nbytes": event.nbytes,
    }
