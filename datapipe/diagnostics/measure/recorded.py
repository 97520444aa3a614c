"""Read the recordings of measured processes back as values: the inverse of `attach.recording`'s files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipe.core.observe import Stage, StageEvent
from datapipe.diagnostics.measure.timeline import Context, Steps, Syncs, steps_from_columns
from datapipe.diagnostics.measure.watching import LoaderFacts
from datapipe.diagnostics.torch_stages.profile import BatchProfile, Counters, Making, Passage, Pinning, TransformTime


@dataclass(frozen=True, slots=True)
class TrialSource:
    """The kept sample of a loader's data, to try remedies on: a file, or the reason why there is none."""

    file: str | None  # a pickled `trials.sample.Sample`, next to the process's own file
    reason: str | None
    deferral: Mapping[str, Any] | None = None  # what `trials.dataset` or `trials.rows` gave; None: it was not tried
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
    context = found["context"]
    return Process(
        rank=found["process"]["rank"] or 0,
        pid=found["process"]["pid"],
        loaders={facts["key"]: LoaderFacts(**facts) for facts in found["loaders"]},
        steps=steps_from_columns(found["steps"]),
        context=Context(**{**context, "syncs": {name: Syncs(**sums) for name, sums in context["syncs"].items()}}),
        profiles=tuple(map(_profile, found["profiles"])),
        events=tuple(map(_event, found["stages"])),
        troubles=tuple(found["troubles"]),
        environment=found["environment"],
        sources={int(key): TrialSource(**source) for key, source in found["sources"].items()},
        started_ns=found["process"].get("started_ns"),
        ended_ns=found["process"].get("ended_ns"),
    )


def context_as_dict(context: Context) -> dict[str, Any]:
    """Return JSON-safe values."""
    return dataclasses.asdict(context)


def _profile(found: dict[str, Any]) -> BatchProfile:
    made = found["made"]
    transforms = made["transforms"]
    making = {
        **made,
        "iterator": tuple(made["iterator"]),
        "transforms": None if transforms is None else tuple(TransformTime(**one) for one in transforms),
        "counters": Counters(**made["counters"]),
    }
    moved, pinned = found["moved"], found["pinned"]
    return BatchProfile(
        **{
            **found,
            "made": Making(**making),
            "moved": None if moved is None else Passage(**moved),
            "pinned": None if pinned is None else Pinning(**pinned),
        }
    )


def _event(found: dict[str, Any]) -> tuple[int, StageEvent]:
    rest = {name: value for name, value in found.items() if name not in ("loader", "stage")}
    return found["loader"], StageEvent(stage=Stage(found["stage"]), **rest)
