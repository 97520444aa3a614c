"""The recording of a measured process: one form, in the process itself and in its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from datapipe.core.atomic import atomic_writer
from datapipe.core.observe import StageEvent
from datapipe.core.regular_files import read_bytes
from datapipe.errors import FormatError, MissingDataError
from datapipe.instruments.measure.observed import Exchange, LockUse, ModelCost
from datapipe.instruments.measure.timeline import STEP, Context, Steps
from datapipe.instruments.measure.watching import LoaderFacts
from datapipe.instruments.torch_stages.profile import BatchProfile

VERSION = 3  # of the file: to be counted up with any change of what is in it
SUFFIX = ".process"


@dataclass(frozen=True, slots=True)
class TrialSource:
    """The kept sample of a loader's data, to try remedies on: a file, or the reason why there is none."""

    file: str | None = None  # a pickled `trials.sample.Sample`, next to the process's own file
    reason: str | None = None
    deferral: Mapping[str, Any] | None = None  # what `trials.dataset` gave; None: it was not tried
    scaling: Mapping[str, Any] | None = None  # what `trials.scaling.try_scaling` gave; None: it was not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The recording of one process that iterated loaders."""

    version: int = VERSION
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
    exchanges: tuple[Exchange, ...] = ()  # with other ranks, those that torch has timed
    model: ModelCost | None = None  # None: its operations were not counted
    num_before: int = 0  # training steps before the first of `steps`
    started_ns: int | None = None  # start of the process, or of its measurement; on the clock of the steps
    ended_ns: int | None = None

    @property
    def num_training_steps(self) -> int:
        return int((~self.steps["is_evaluation"]).sum())

    def part(self, loader: int | None, *, since_ns: int) -> Process:
        """Return what belongs to one loader, or to all, from then on."""
        is_kept = self.steps["start_ns"] >= since_ns
        steps = self.steps[is_kept]
        seen = set(np.unique(steps["loader"]).tolist()) if loader is None else {loader}
        return replace(
            self,
            loaders={key: facts for key, facts in self.loaders.items() if key in seen},
            steps=steps if loader is None else steps[steps["loader"] == loader],
            profiles=tuple(one for one in self.profiles if loader in (None, one.loader) and one.asked_ns >= since_ns),
            events=tuple(one for one in self.events if loader in (None, one[0]) and one[1].start_ns >= since_ns),
            started_ns=since_ns,
            exchanges=tuple(one for one in self.exchanges if one.read_ns >= since_ns),
            num_before=self.num_before + int((~is_kept & ~self.steps["is_evaluation"]).sum()),
        )


def write_process(path: Path, process: Process) -> None:
    """Write a process's file, whole or not at all."""
    data = msgspec.msgpack.encode(process, enc_hook=_steps_to_bytes)
    with atomic_writer(path) as file:
        file.write(data)


def read_process(path: Path) -> Process:
    """Read what `write_process` wrote. Raises FormatError for anything else, and MissingDataError if there is no such file."""
    try:
        data = read_bytes(path)
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such recording; datapipe.Monitor(saves=DIR) writes them into DIR") from exc
    try:
        version = msgspec.msgpack.decode(data, type=_Versioned).version
        if version == VERSION:
            return msgspec.msgpack.decode(data, type=Process, dec_hook=_steps_from_bytes)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise FormatError(f"{path}: no recording of a process, or a damaged one ({exc}); record the run again") from exc
    raise FormatError(
        f"{path}: has version {version}, but this datapipe reads version {VERSION}; record the run again, or read it with the "
        "datapipe that wrote it"
    )


class _Versioned(msgspec.Struct):
    version: int


def _steps_to_bytes(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    raise NotImplementedError(f"a recording holds a {type(value).__name__}")


def _steps_from_bytes(_: Any, value: Any) -> Any:
    if not isinstance(value, bytes) or len(value) % STEP.itemsize:
        raise ValueError("steps of another size")
    return np.frombuffer(value, STEP).copy()


def read_processes(directory: Path) -> tuple[list[Process], list[str]]:
    """Return the processes in the order of ranks, and notes about those left out.

    Of several processes of one rank, the one with most steps counts; if some train and some do not, those that train.
    """
    return choose_ranks([read_process(path) for path in sorted(directory.glob(f"*{SUFFIX}"))])


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
