"""The state of a run, random numbers included: saved, and restored exactly."""

from __future__ import annotations

import dataclasses
import pickle
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datapipe.core.atomic import atomic_writer
from datapipe.core.printable import counted
from datapipe.core.regular_files import open_file
from datapipe.errors import FormatError, MissingDataError, StateError, StorageError
from datapipe.training.evaluation import Best, Sums, checked, means_of
from datapipe.training.learner import Learner
from datapipe.training.options import TrainOptions
from datapipe.training.process_group import ProcessGroup

VERSION = 1
LAST, BEST = "last.pt", "best.pt"  # the run as it stands; the weights of the best epoch


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a training run."""

    step: int = 0  # weight updates so far
    epoch: int = 0
    batches_done: int = 0  # in this epoch, on each rank


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The complete state needed to continue a run exactly."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    loader: Mapping[str, Any] | None  # None: the loader has no state
    place: Place
    best: Best
    sums: list[torch.Tensor]  # of the epoch and of the interval since the last line of metrics, over all ranks
    generators: list[dict[str, Any]]  # by rank
    options: Mapping[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint atomically. Raises StorageError."""
    values = {field.name: getattr(checkpoint, field.name) for field in dataclasses.fields(checkpoint)}
    places = {"place": dataclasses.asdict(checkpoint.place), "best": dataclasses.asdict(checkpoint.best)}
    save_tensors(path, {**values, **places, "version": VERSION})


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint into host memory. Raises MissingDataError, FormatError."""
    saved, names = read_tensors(path), [field.name for field in dataclasses.fields(Checkpoint)]
    if not isinstance(saved, Mapping) or saved.get("version") != VERSION or any(name not in saved for name in names):
        raise FormatError(f"{path}: is not a checkpoint of this training loop")
    values = {name: saved[name] for name in names}
    return Checkpoint(**{**values, "place": Place(**saved["place"]), "best": Best(**saved["best"])})


def read_tensors(path: Path, device: torch.device | str = "cpu") -> Any:
    """Return what `torch.save` wrote, without executing anything in the file.

    Only tensors and plain values are accepted. Raises MissingDataError for a missing file, FormatError for other content.
    """
    try:
        with open_file(path) as file:
            return torch.load(file, map_location=device, weights_only=True)
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file") from exc
    except FormatError:
        raise
    except (RuntimeError, EOFError, KeyError, ValueError, AttributeError, pickle.UnpicklingError) as exc:
        first = str(exc).strip().split("\n")[0]
        raise FormatError(f"{path}: not tensors and plain values as torch.save writes them, or truncated ({first:.160})") from exc


def save_tensors(path: Path, value: Any) -> None:
    """Call `torch.save` atomically: a kill at any moment leaves the old file or the new one. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            torch.save(value, file)
    except (OSError, RuntimeError) as exc:  # torch's writer raises RuntimeError when the disk is full
        raise StorageError(f"{path}: cannot be written ({str(exc).splitlines()[0]:.160}); is the disk full?") from exc


def seed_generators(seed: int, rank: int) -> None:
    """Seed torch's, numpy's and Python's generators; each rank draws different numbers."""
    mixed = int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0] >> 1)
    torch.manual_seed(mixed)
    np.random.seed(mixed % 2**32)
    random.seed(mixed)


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return the states of this process's random generators as tensors and plain values."""
    version, internal, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        **({} if device.type == "cpu" else {device.type: torch.get_device_module(device).get_rng_state(device)}),
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(place), int(has_gauss), float(cached)],
    }


def restore_generators(states: dict[str, Any], device: torch.device) -> None:
    """Restore the generators to what `generator_states` returned."""
    torch.set_rng_state(states["torch"].cpu())
    if states.get(device.type) is not None:  # else the run began on a device of another type
        torch.get_device_module(device).set_rng_state(states[device.type].cpu(), device)
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, place, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), place, has_gauss, cached))


class TrainingState:
    """Learner, loader, and their progress. All ranks make the same calls; rank 0 writes."""

    def __init__(
        self, learner: Learner, loader: Any, options: TrainOptions, *, ranks: ProcessGroup, device: torch.device
    ) -> None:
        self.learner, self.loader, self.options, self.ranks, self.device = learner, loader, options, ranks, device
        self.place = Place()
        self.best = Best()
        self.interval = Sums(device)  # since the last line of metrics
        self.total = torch.zeros(4, dtype=torch.float64)  # of the epoch up to that line, over all ranks

    def save(self) -> None:
        """Write the checkpoint, if the options name a directory. Raises StorageError, DivergenceError."""
        interval = self.interval.over(self.ranks)
        checked(means_of(interval), step=self.place.step)
        generators = self.ranks.gather(generator_states(self.device))
        if self.options.out is None or not self.ranks.leads:
            return
        learner = self.learner
        checkpoint = Checkpoint(
            model=learner.model.state_dict(),
            optimizer=learner.optimizer.state_dict(),
            scaler=learner.scaler.state_dict(),
            loader=self.loader.state_dict() if hasattr(self.loader, "state_dict") else None,
            place=self.place,
            best=self.best,
            sums=[self.total, interval],
            generators=generators,
            options=self.options.to_json(),
        )
        save_checkpoint(Path(self.options.out) / LAST, checkpoint)

    def save_best(self) -> None:
        """Write the weights only."""
        if self.options.out is not None and self.ranks.leads:
            value = {"model": self.learner.model.state_dict(), "epoch": self.best.epoch, self.options.watch: self.best.value}
            save_tensors(Path(self.options.out) / BEST, value)

    def resume(self, path: Path) -> list[str]:
        """Resume from a checkpoint and return what differs from when it was saved, one line each.

        Raises StateError for a checkpoint of another model, optimiser or data, and what reading it raises.
        """
        saved, learner = load_checkpoint(path), self.learner
        _restore(learner.model, saved.model, path=path, remedy="pass the model and the number of classes that it was saved with")
        own = [{name: value for name, value in group.items() if name != "params"} for group in learner.optimizer.param_groups]
        _restore(learner.optimizer, saved.optimizer, path=path, remedy="pass the optimizer that it was saved with")
        for group, values in zip(learner.optimizer.param_groups, own, strict=True):
            group.update(values)  # the current options count, not the saved ones
        if saved.scaler and learner.scaler.is_enabled():  # it is empty if the precision was another
            learner.scaler.load_state_dict(dict(saved.scaler))
        self._resume_loader(saved, path)
        self.place, self.best = saved.place, saved.best
        self.total, interval = (total.cpu() for total in saved.sums)
        self.interval.resume(interval, self.ranks)
        notes = self.options.differences(saved.options)
        if self.ranks.rank < len(saved.generators):
            restore_generators(saved.generators[self.ranks.rank], self.device)
        else:
            seed_generators(self.options.seed + self.place.step, self.ranks.rank)
        if len(saved.generators) != self.ranks.world_size:
            notes.append(f"ranks were {len(saved.generators)} and are {self.ranks.world_size}: dropout draws different numbers")
        return notes

    def _resume_loader(self, saved: Checkpoint, path: Path) -> None:
        if saved.loader is not None and hasattr(self.loader, "load_state_dict"):
            _restore(self.loader, saved.loader, path=path, remedy="pass a loader of the kind that it was saved with")
        elif saved.place.batches_done:
            raise StateError(
                f"{path}: was saved after {counted(saved.place.batches_done, 'batch')} of an epoch, and a loader without "
                "state_dict and load_state_dict cannot resume there; use datapipe.DataLoader"
            )


def _restore(what: Any, state: Mapping[str, Any], *, path: Path, remedy: str) -> None:
    """Call `what.load_state_dict(state)` and translate its errors. Raises StateError."""
    try:
        what.load_state_dict(state)
    except StateError as exc:
        raise StateError(f"{path}: {exc}") from exc
    except (RuntimeError, ValueError, KeyError) as exc:
        lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
        raise StateError(f"{path}: {' '.join(lines)[:300]}; {remedy}") from exc
