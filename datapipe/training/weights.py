"""Write and read files of tensors and plain values, atomically and without executing anything in them; load weights."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from datapipe.core.atomic import atomic_writer
from datapipe.core.errors import FormatError, MissingDataError, StateError, StorageError
from datapipe.core.regular_files import open_file

_WRAPPERS = ("model", "state_dict", "model_state_dict", "network")  # keys under which checkpoints keep weights
_PREFIXES = ("module.", "_orig_mod.")  # added by DDP and torch.compile
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of loading weights from a file."""

    num_tensors: int  # copied into the model
    fresh: tuple[str, ...]  # names in the model left as initialised: the head
    unused: tuple[str, ...]  # names in the file that the model does not have

    def __str__(self) -> str:
        text = f"{self.num_tensors} tensors loaded"
        if self.fresh:
            text += f"; left as initialised (the number of classes differs): {', '.join(self.fresh)}"
        return text + (f"; only in the file: {_some(self.unused)}" if self.unused else "")


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


def load_pretrained(model: nn.Module, path: Path, *, num_classes: int) -> Loaded:
    """Load the weights of `path` into `model`, except for a head made for another number of classes, and report what was done.

    A tensor belongs to the head if it has a row for each of `num_classes` and is missing from the file or differs there.
    Raises StateError if any other weight is missing or has another shape, and what `read_tensors` raises.
    """
    saved = _weights(read_tensors(path), path)
    wanted = model.state_dict()
    fits, fresh, wrong = {}, [], []
    for name, tensor in wanted.items():
        found = saved.get(name)
        if found is not None and found.shape == tensor.shape:
            fits[name] = found
        elif tensor.ndim and tensor.shape[0] == num_classes and (found is None or found.shape[1:] == tensor.shape[1:]):
            fresh.append(name)
        elif not name.endswith("num_batches_tracked"):
            has = "nothing" if found is None else "x".join(map(str, found.shape))
            wrong.append(f"{name} (model: {'x'.join(map(str, tensor.shape))}, file: {has})")
    if wrong or not fits:
        what = f"{len(wrong)} of {len(wanted)} tensors do not fit: {_some(wrong)}" if wrong else "no tensor fits"
        raise StateError(
            f"{path}: holds weights of another network than {type(model).__name__}: {what}; choose the matching --model"
        )
    model.load_state_dict(fits, strict=False)
    return Loaded(len(fits), tuple(fresh), tuple(name for name in saved if name not in wanted))


def _weights(saved: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return tensors by name, unwrapped from the dicts that training scripts put them in."""
    for wrapper in _WRAPPERS:
        if isinstance(saved, Mapping) and isinstance(saved.get(wrapper), Mapping):
            saved = saved[wrapper]
    if not isinstance(saved, Mapping):
        raise FormatError(f"{path}: holds a {type(saved).__name__}, not a dict of weights by name")
    weights = {}
    for name, value in saved.items():
        if isinstance(value, torch.Tensor):
            bare = str(name)
            for prefix in _PREFIXES:
                bare = bare.removeprefix(prefix)
            weights[bare] = value
    return weights


def _some(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
