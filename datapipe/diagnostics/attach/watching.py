"""What an attachment calls: a meter around `next()`, and a sink for what else comes to be known.

`datapipe.diagnostics.bracket.Bracket` is a meter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from datapipe.diagnostics.torch_stages.profile import BatchProfile
from datapipe.observe import StageEvent


class MeteredPass(Protocol):
    """One pass over a loader."""

    is_evaluation: bool  # set before the first `begin`: gradients are off

    def begin(self, num_ready: int | None = None) -> None:
        """Right before `next()`. `num_ready`: batches that have arrived and wait to be handed out; None: not known."""

    def end(self) -> None:
        """Right after `next()` has given a batch."""

    def stop(self) -> None:
        """After `next()` has raised, and when the pass is left; then perhaps from another thread, and again."""


class Meter(Protocol):
    """Measures steps. All is called by the threads that train: passes of one loader by one thread at a time."""

    def open_pass(self, *, loader: int = 0, is_evaluation: bool = False) -> MeteredPass: ...

    def note_sync(self, name: str, host_s: float) -> None:
        """The host has just waited for the device, in what users call `name`."""

    def begin_copy(self) -> None:
        """A copy from the host to the device is about to be given to the current stream."""

    def end_copy(self) -> None:
        """It has been given."""

    def note_update(self) -> None:
        """An optimiser has made a step."""


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A loader, as it was when first iterated. None: not known, or it has no such thing."""

    key: int  # the number that passes and profiles give; counted from 0 in each process
    kind: str  # its class, with the module
    site: str | None  # file:line that made it, of the user's code where there is any
    dataset: str | None  # its class
    batch_size: int | None
    num_workers: int | None
    prefetch_factor: int | None
    pin_memory: bool | None
    persistent_workers: bool | None
    in_order: bool | None
    start_method: str | None  # of its workers
    is_iterable: bool | None  # an IterableDataset
    looks_inside: bool  # batches come with profiles, or stage events
    # the user's code, as file:line and its name, by what it does: "dataset", "sampler", "collate", "transform NAME"
    places: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON-safe."""
        return dataclasses.asdict(self)


class Sink(Protocol):
    """Takes what is known of loaders and batches. Thread-safe, cheap, bounded in memory."""

    def note_loader(self, facts: LoaderFacts) -> None:
        """A loader, before its first pass."""

    def note_profile(self, profile: BatchProfile) -> None:
        """A batch of a torch loader, once it has been handed out; in that order for each pass."""

    def note_stage(self, loader: int, event: StageEvent) -> None:
        """A stage of a datapipe loader, from any thread."""

    def note_trouble(self, message: str) -> None:
        """Something that could not be measured."""

    def finish(self) -> None:
        """The process ends, or the attachment does: results are to be written. Called once."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What watches one process."""

    meter: Meter
    sink: Sink
    look_at: Callable[[LoaderFacts, Any], None] | None = None  # called with a loader itself, before its first pass


@dataclass(frozen=True, slots=True)
class Hooks:
    """What is told beside `begin` and `end`; the rest of a meter's methods is never called."""

    syncs: bool = False
    copies: bool = False
    updates: bool = False


OpenWatch = Callable[[Hooks], Watch]  # called in the process to be watched, when it first iterates a loader
