"""Say transforms by name and value, as plain data, and make equal ones of that: what is sent to another machine is no code."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from datapipe import transforms
from datapipe.errors import OptionError
from datapipe.transforms.recipe import Recipe

_NAME, _DTYPE = "transform", "dtype of torch"  # keys of a transform, and of a type of numbers
_NAMED = {  # transforms of images, by the names under which users know them
    name: found
    for name in transforms.__all__
    if isinstance(found := getattr(transforms, name), type) and found not in (Recipe, transforms.LogMel)
}
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def named(recipe: Recipe) -> list[Any]:
    """Return datapipe's transforms of a recipe as dicts of names and values, JSON-safe. Raises OptionError if others follow."""
    if recipe.rest:
        raise OptionError(f"{recipe.rest_reason}: it is code, which is not sent")
    return [_as_data(op) for op in recipe.transforms]


def recipe_named(data: object) -> Recipe:
    """Return the recipe that `named` said. Raises OptionError for anything else."""
    if not isinstance(data, list):
        raise OptionError(f"transforms are {data!r:.40}, which is no list")
    return Recipe.of([_from_data(one) for one in data])


def _as_data(value: Any) -> Any:
    if type(value) in _NAMED.values():
        fields = {field.name: _as_data(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {_NAME: type(value).__name__, **fields}
    if isinstance(value, torch.dtype):
        return {_DTYPE: str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        return [_as_data(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise OptionError(f"{value!r:.60} is not a transform of datapipe's, nor a value of one: it is not sent")


def _from_data(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_from_data(one) for one in data)
    if not isinstance(data, dict):
        return data
    if data.keys() == {_DTYPE}:
        return _known(_DTYPES, data[_DTYPE])
    values = {name: _from_data(value) for name, value in data.items() if name != _NAME}
    make = _known(_NAMED, data.get(_NAME))
    try:
        return make(**values)
    except OptionError:
        raise
    except Exception as exc:  # a value of a type that no transform has, which nobody but an attacker sends
        raise OptionError(f"{make.__name__}({values!r:.60}): {exc}") from exc


def _known(table: dict[str, Any], name: object) -> Any:
    found = table.get(name) if isinstance(name, str) else None
    if found is None:
        raise OptionError(f"{name!r:.40} is the name of no transform")
    return found
