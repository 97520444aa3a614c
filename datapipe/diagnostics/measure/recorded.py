"""Read the recordings of measured processes back as values: the inverse of `attach.recording`'s files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import convert

from datapipe.core.observe import StageEvent
from datapipe.diagnostics.measure.lock_use import LockUse
from datapipe.diagnostics.measure.timeline import Context, Steps, steps_from_columns
from datapipe.diagnostics.measure.watching import LoaderFacts
from datapipe.diagnostics.torch_stages.profile import BatchProfile


@dataclass(frozen=True, slots=True)
class TrialSource:
    """The kept sample of a loader's data, to try remedies on: a file, or the reason why there is none."""

    file: str | None  # a pickled `trials.sample.Sample`, next to the process's own file
    reason: str | None
    deferral: Mapping[str, Any] | None = None  # what `trials.dataset` gave; None: it was not tried
    scaling: Mapping[str, Any] | None = None  # what `trials.scaling.try_scaling` gave; None: it was not tried


@dataclass(frozen=True, slots=True)
class Process:
    """The recording of one process that iterated loaders."""

    rank: int
    pid: int
    loaders: Mapping[int, LoaderFacts]
    steps: Steps
    context: Context
    profiles: tuple[BatchProfile, ...]  # of torch's loaders, pass by pass in order
    events: tuple[tuple[int, StageEvent], ...]  # (loader, stage) of datapipe's
    troubles: tuple[str, ...]
    environment: Mapping[str, Any]
    sources: Mapping[int, TrialSource]
    lock: LockUse | None = None  # of Python; None: not looked at
    started_ns: int | None = None  # start of the process, or of its measurement; on the clock of the steps
    ended_ns: int | None = None

    @property
    def num_training_steps(self) -> int:
        return int((~self.steps["is_evaluation"]).sum())


def read_processes(directory: Path) -> tuple[list[Process], list[str]]:
    """Return the processes in the order of ranks, and notes about those left out.

    Of several processes of one rank, the one with most steps counts; if some train and some do not, those that train.
    """
    found = [process_of(json.loads(path.read_text())) for path in sorted(directory.glob("process-*.json"))]
    return choose_ranks(found)


def choose_ranks(found: Sequence[Process]) -> tuple[list[Process], list[str]]:
    """Choose processes as `read_processes` does."""
    training = [process for process in found if process.num_training_steps] or list(found)
    notes = [f"process {process.pid} trained nothing and is left out" for process in found if process not in training]
    best: dict[int, Process] = {}
    for process in training:
        other = best.get(process.rank)
        if other is not None:
            kept, left = sorted((other, process), key=lambda one: -one.num_training_steps)
            notes.append(
                f"processes {kept.pid} and {left.pid} are both rank {kept.rank}; the first, which made more steps, counts"
            )
            process = kept
        best[process.rank] = process
    return [best[rank] for rank in sorted(best)], notes


def process_of(found: Mapping[str, Any]) -> Process:
    """Return the process from the result of `Recording.to_json`."""
    process = found["process"]
    return Process(
        rank=process["rank"] or 0,
        pid=process["pid"],
        loaders={facts.key: facts for facts in convert(found["loaders"], list[LoaderFacts])},
        steps=steps_from_columns(found["steps"]),
        context=convert(found["context"], Context),
        profiles=convert(found["profiles"], tuple[BatchProfile, ...]),
        events=tuple((one["loader"], convert(one, StageEvent)) for one in found["stages"]),
        troubles=tuple(found["troubles"]),
        environment=found["environment"],
        sources=convert(found["sources"], dict[int, TrialSource], str_keys=True),
        lock=convert(found.get("lock"), LockUse | None),
        started_ns=process.get("started_ns"),
        ended_ns=process.get("ended_ns"),
    )
