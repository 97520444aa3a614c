"""Report where time goes: one event per block and stage, passed to an observer.

The loader calls an `Observer` from the threads that do the work, so observers must be thread-safe
and cheap. `null_observer` is the default and is hardly ever called.
"""

from __future__ import annotations

import enum
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

from datapipe.errors import OptionError


class Stage(enum.Enum):
    """The kind of work that a loader spent a span of time on.

    >>> if event.stage is datapipe.Stage.DECODE:
    ...     seconds += event.duration_ns / 1e9
    """

    PLAN = "plan"  # order, index look-up, draws
    READ = "read"  # bytes from storage, checksum
    NETWORK = "network"  # a thread waiting for bytes of an object store, not part of READ
    DECODE = "decode"  # bytes to pixels, crop and resize
    AUGMENT = "augment"  # pixel operations, dtype, normalisation
    COLLATE = "collate"  # putting the batch together; the user's collate_fn
    COPY = "copy"  # host to device
    WAIT = "wait"  # the consumer waiting in next()


@dataclass(frozen=True, slots=True)
class StageEvent:
    """One stage of one block (or, for COLLATE, COPY and WAIT, of one batch).

    >>> loader.observe(lambda event: print(event.stage.value, event.duration_ns))
    """

    stage: Stage
    step: int  # within the epoch, from 0
    start_ns: int  # time.perf_counter_ns
    duration_ns: int
    num_samples: int
    nbytes: int = 0  # bytes read or moved; 0 if the stage moves none


class Observer(Protocol):
    """A receiver of events; called from several threads at once.

    >>> def slow(event: datapipe.StageEvent) -> None:
    ...     if event.duration_ns > 50_000_000:
    ...         print(event.step, event.stage.value)
    ...
    >>> loader.observe(slow)
    """

    def __call__(self, event: StageEvent, /) -> None: ...


class StageTotals:
    """An observer that adds up what each stage took, and the bytes that were read. Thread-safe."""

    def __init__(self) -> None:
        self.duration_ns: dict[str, int] = defaultdict(int)  # by the stage's name
        self.num_samples: dict[str, int] = defaultdict(int)
        self.read_nbytes = 0
        self._lock = threading.Lock()

    def __call__(self, event: StageEvent, /) -> None:
        with self._lock:
            self.duration_ns[event.stage.value] += event.duration_ns
            self.num_samples[event.stage.value] += event.num_samples
            if event.stage is Stage.READ:
                self.read_nbytes += event.nbytes


def null_observer(event: StageEvent, /) -> None:
    """Ignore the event."""


def check_observer(observer: object) -> None:
    """Raise OptionError if `observer` cannot be called."""
    if not callable(observer):
        raise OptionError(f"observe({observer!r:.60}): pass a function that takes a StageEvent")
