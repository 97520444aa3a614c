"""Batches as nests: tensors in dicts, lists, tuples, dataclasses, or in objects that move themselves."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

import torch

from datapipe.errors import OptionError


def map_nest(nest: Any, of_tensor: Callable[[torch.Tensor], Any], of_mover: Callable[[Any], Any]) -> Any:
    """Return the nest with `of_tensor` applied to each tensor, and `of_mover` to each object that has its own `.to`.

    Recurses into mappings, lists, tuples, named tuples and dataclass instances and keeps their types (a plain dict stays one,
    an OrderedDict too). Anything else passes through, and so does a container in which nothing changed. The passed nest does
    not change. `of_mover` gets every object that moves itself (`.to(device, non_blocking=...)`) and is not a plain
    `torch.Tensor`, containers included. Raises OptionError for a mapping or tuple whose type cannot be built from its values.
    """
    kind: Any = type(nest)
    if kind is torch.Tensor:
        return of_tensor(nest)
    if moves_itself(kind):
        return of_mover(nest)
    if isinstance(nest, Mapping):
        old = dict(nest)
    elif isinstance(nest, (list, tuple)):
        old = dict(enumerate(nest))
    elif dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        old = {field.name: getattr(nest, field.name) for field in dataclasses.fields(nest) if hasattr(nest, field.name)}
    else:
        return nest
    new = {name: map_nest(value, of_tensor, of_mover) for name, value in old.items()}
    return nest if all(new[name] is value for name, value in old.items()) else _like(nest, new)


def tensors_of(nest: Any) -> list[torch.Tensor]:
    """Return the tensors of a nest, in order; subclasses too, but not those inside objects with their own `.to`."""
    found: list[torch.Tensor] = []

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found.append(value)
        return value

    map_nest(nest, note, note)
    return found


@lru_cache(maxsize=256)
def moves_itself(kind: Hashable) -> bool:
    """Return True if objects of this type have a method `.to` that takes `non_blocking`, as a tensor's does."""
    if isinstance(kind, type) and issubclass(kind, torch.Tensor):
        return True
    method = getattr(kind, "to", None)
    if not inspect.isroutine(method):
        return False
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False
    return "non_blocking" in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _like(nest: Any, values: dict[Any, Any]) -> Any:
    """Return a container like `nest` with other values."""
    if isinstance(nest, (MutableMapping, list)):
        new = copy.copy(nest)
        for name, value in values.items():
            new[name] = value
        return new
    if isinstance(nest, Mapping):
        return _built(type(nest), values)
    if isinstance(nest, tuple):
        make = getattr(type(nest), "_make", None)
        return make(values.values()) if make is not None else _built(type(nest), values.values())
    new = copy.copy(nest)
    for name, value in values.items():
        object.__setattr__(new, name, value)  # works for frozen ones too, without running their __init__
    return new


def _built(kind: Any, values: Any) -> Any:
    try:
        return kind(values)
    except TypeError as exc:
        raise OptionError(
            f"a batch holds a {kind.__module__}.{kind.__qualname__}, which cannot be rebuilt from its values ({exc}); "
            "let the batch be a dict, list, tuple or dataclass, or give the type a .to(device, non_blocking=...)"
        ) from exc
