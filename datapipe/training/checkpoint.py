"""Checkpoints: whole or absent, tensors and plain values only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from datapipe.atomic import atomic_writer
from datapipe.errors import FormatError, StateError, StorageError
from datapipe.training.early_stopping import Best
from datapipe.training.pretrained import read_tensors

VERSION = 1
LAST, BEST = "last.pt", "best.pt"  # the run as it stands; the weights of the best epoch

_KEYS = ("model", "optimizer", "scaler", "loader", "place", "best", "sums", "generators", "options")


@dataclass(frozen=True, slots=True)
class Place:
    """Where training stands."""

    step: int = 0  # changes of the weights so far
    epoch: int = 0
    batches_done: int = 0  # of the epoch, on each rank


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that going on exactly takes."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    loader: Mapping[str, Any] | None  # None: the loader has no state
    place: Place
    best: Best
    sums: list[torch.Tensor]  # of the epoch and of the interval since the last line of metrics, over all ranks
    generators: list[dict[str, Any]]  # by rank
    options: Mapping[str, Any]


def save_tensors(path: Path, value: Any) -> None:
    """`torch.save`, atomically: a kill at any moment leaves the old file or the new one. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            torch.save(value, file)
    except (OSError, RuntimeError) as exc:  # torch's writer raises RuntimeError for a full disk
        raise StorageError(f"{path}: cannot be written ({str(exc).splitlines()[0]:.160}); is the disk full?") from exc


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write it atomically. Raises StorageError."""
    values = {name: getattr(checkpoint, name) for name in _KEYS}
    values |= {"place": dataclasses.asdict(checkpoint.place), "best": dataclasses.asdict(checkpoint.best), "version": VERSION}
    save_tensors(path, values)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read it into host memory. Raises MissingDataError, FormatError."""
    saved = read_tensors(path)
    if not isinstance(saved, Mapping) or saved.get("version") != VERSION or any(name not in saved for name in _KEYS):
        raise FormatError(f"{path}: not a checkpoint of this training loop; for weights alone there is --pretrained")
    values = {name: saved[name] for name in _KEYS}
    return Checkpoint(**{**values, "place": Place(**saved["place"]), "best": Best.from_json(saved["best"])})


def restore(what: Any, state: Mapping[str, Any], *, path: Path, remedy: str) -> None:
    """`what.load_state_dict(state)`, its refusal translated. Raises StateError."""
    try:
        what.load_state_dict(state)
    except StateError as exc:
        raise StateError(f"{path}: {exc}") from exc
    except (RuntimeError, ValueError, KeyError) as exc:
        lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
        raise StateError(f"{path}: {' '.join(lines)[:300]}; {remedy}") from exc
