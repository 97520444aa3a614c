"""The interfaces of an attachment: a meter around `next()`, and a sink for further observations.

`datapipe.instruments.measure.bracket.ThreadBracket` is a meter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from datapipe.core.observe import StageEvent
from datapipe.instruments.torch_stages.profile import BatchProfile


class MeteredPass(Protocol):
    """One pass over a loader."""

    is_evaluation: bool  # set before the first `begin`: gradients are off

    def begin(self, num_ready: int | None = None) -> None:
        """Call right before `next()`. `num_ready`: batches that have arrived and can be handed out; None: unknown."""

    def end(self) -> None:
        """Call right after `next()` has returned a batch."""

    def stop(self) -> None:
        """Call after `next()` has raised, and when the pass is abandoned, possibly from another thread, and again."""


class Meter(Protocol):
    """Measures steps. Only training threads call it: one thread at a time for passes of one loader."""

    def open_pass(self, *, loader: int = 0) -> MeteredPass: ...

    def note_sync(self, name: str, host_s: float) -> None:
        """Record that the host has just waited for the device, in the function that users call `name`."""

    def begin_copy(self) -> None:
        """Record that a copy from the host to the device is about to be queued on the current stream."""

    def end_copy(self) -> None:
        """Record that the copy has been queued."""

    def note_update(self, device: int | None = None) -> None:
        """Record that an optimiser has made a step; `device`: the index of the GPU with its first parameter, if one has it."""


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A loader's properties when it was first iterated. None: unknown, or it has no such thing."""

    key: int  # the number in passes and profiles; counted from 0 in each process
    kind: str  # its class, with the module
    site: str | None  # file:line that made it, in the user's code if possible
    dataset: str | None  # its class
    batch_size: int | None
    num_workers: int | None
    prefetch_factor: int | None
    pin_memory: bool | None
    persistent_workers: bool | None
    in_order: bool | None
    is_iterable: bool | None  # an IterableDataset
    video_library: str | None = None  # by which the dataset's own code decodes videos
    # the user's code, as file:line and its name, by what it does: "dataset", "sampler", "collate", "transform NAME"
    places: Mapping[str, str] = field(default_factory=dict)


class Sink(Protocol):
    """Stores facts about loaders and batches. Thread-safe, cheap, bounded in memory."""

    def note_loader(self, facts: LoaderFacts, loader: Any) -> None:
        """Record a loader, before its first pass."""

    def note_profile(self, profile: BatchProfile) -> None:
        """Record a batch of a torch loader, after it was handed out; in that order for each pass."""

    def note_stage(self, loader: int, event: StageEvent) -> None:
        """Record a stage of a datapipe loader, from any thread."""

    def note_trouble(self, message: str) -> None:
        """Record something that could not be measured."""

    def finish(self) -> None:
        """Write the results: the process or the attachment ends. Called once."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The meter and sink of one process."""

    meter: Meter
    sink: Sink


@dataclass(frozen=True, slots=True)
class Hooks:
    """The events that a meter is told of besides `begin` and `end`. All others are reported as not measured."""

    syncs: bool = False  # `note_sync`, for every wait for the device
    copies: bool = False  # `begin_copy` and `end_copy`, around every copy from the host to the device
    updates: bool = False  # `note_update`, for every step of an optimiser


OpenWatch = Callable[[Hooks], Watch]  # called in the measured process, when it first iterates a loader
