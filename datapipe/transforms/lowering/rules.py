"""Inspect transforms of other libraries, without importing these, and apply the rule for one of them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from datapipe.errors import OptionError

# The kind of image that the user's own transforms get: a PIL image, a (3, h, w) tensor, or a tv_tensors.Image.
# "any" is not decided yet: it counts as the kind that the transform needs.
Kind = Literal["any", "pil", "tensor", "image"]


@dataclass(frozen=True, slots=True)
class Lowered:
    """Equivalent transforms of datapipe, to apply in order; empty if there is nothing to do."""

    ops: tuple[object, ...] = ()
    kind: Kind | None = None  # the kind of images from here on; None: unchanged


# A class of datapipe, called with the transform's attributes as keywords; or a function that returns a `Lowered`, which gets the
# kind of the input image before these. Its parameters are the supported attributes. Raises OptionError if there is no equivalent.
Rule = Callable[..., object]


def is_tensor(kind: Kind) -> bool:
    """Return True if the image is known to be a tensor."""
    return kind in ("tensor", "image")


def refuse_tensor(kind: Kind) -> None:
    """Raise OptionError for tensors, which fail in the other library as well."""
    if is_tensor(kind):
        raise OptionError("it takes PIL images but gets a tensor")


def refuse_pil(kind: Kind) -> None:
    """Raise OptionError for PIL images, which fail in the other library as well."""
    if kind == "pil":
        raise OptionError("it takes tensors but gets a PIL image; put ToImage before it")


def follow(rule: Rule | None, transform: object, kind: Kind) -> Lowered:
    """Apply `rule`. Raises OptionError if it is None, for attributes that it does not support, and as the rule does."""
    if rule is None:
        raise OptionError("datapipe has no such transform")
    attributes = attributes_of(transform)
    kinds = () if isinstance(rule, type) else (kind,)
    try:
        inspect.signature(rule).bind(*kinds, **attributes)
    except TypeError as exc:
        raise OptionError(f"its arguments are not supported: {exc}") from exc
    made = rule(*kinds, **attributes)
    return made if isinstance(made, Lowered) else Lowered((made,))


# -- objects of other libraries --------------------------------------------------------------------

# The module that defines a library's classes and functions -> its public name. The longest prefix counts.
_PLACES = {
    "torchvision.transforms.functional": "torchvision.transforms.functional",
    "torchvision.transforms.transforms": "torchvision.transforms",
    "torchvision.transforms.autoaugment": "torchvision.transforms",
    "torchvision.transforms._presets": "torchvision.transforms._presets",
    "torchvision.transforms.v2": "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional": "torchvision.transforms.v2.functional",
    "torch.nn.modules": "torch.nn",
    "timm.data": "timm.data",
}
_SEQUENCES = ("torchvision.transforms.Compose", "torchvision.transforms.v2.Compose", "torch.nn.Sequential", "torch.nn.ModuleList")


def name_of(transform: object) -> str:
    """Return the public name of an object's class, or of a function, or of the function that a partial calls."""
    if type(transform) is functools.partial and not transform.args:
        transform = transform.func
    named: Any = transform if isinstance(transform, types.FunctionType) else type(transform)
    place, prefix = named.__module__, named.__module__
    while prefix and prefix not in _PLACES:
        prefix = prefix.rpartition(".")[0]
    return f"{_PLACES.get(prefix, place)}.{named.__qualname__}"


def attributes_of(transform: object) -> dict[str, Any]:
    """Return an object's settings: its public attributes, the keywords of a partial, nothing for a function.

    Raises OptionError for a torch module with hooks, which may do anything.
    """
    if isinstance(transform, functools.partial):
        return dict(transform.keywords)
    if isinstance(transform, types.FunctionType):
        return {}
    attributes = dict(vars(transform))
    if attributes.get("_forward_hooks") or attributes.get("_forward_pre_hooks"):
        raise OptionError("it has hooks, whose effect is unknown")
    modules = attributes.get("_modules") or {}  # where torch keeps modules that are attributes
    getter = {"labels_getter": attributes["_labels_getter"]} if "_labels_getter" in attributes else {}
    public = {name: value for name, value in attributes.items() if not name.startswith("_") and name != "training"}
    return {**public, **modules, **getter}


def described(transform: object) -> str:
    """Return the object's name for a message, without its contents."""
    if isinstance(transform, functools.partial):
        return f"a partial of {described(transform.func)}"
    if isinstance(transform, (types.FunctionType, types.BuiltinFunctionType)):
        return f"{transform.__module__}.{transform.__qualname__}"
    if isinstance(transform, types.MethodType):
        return f"{described(transform.__self__)}.{transform.__name__}"
    return name_of(transform)


def flatten(transforms: object) -> Iterator[object]:
    """Yield the members of a nest of lists, tuples and Composes, in order, without None.

    Composes are torchvision's and torch's Sequential, and any object whose class is called Compose, has a list `transforms`
    and is not callable. Others, such as albumentations', do more than call one transform after the other.
    """
    if transforms is None:
        return
    inner: object = transforms
    if name_of(transforms) in _SEQUENCES:
        has_hooks = getattr(transforms, "_forward_hooks", None) or getattr(transforms, "_forward_pre_hooks", None)
        if not has_hooks:
            inner = list(getattr(transforms, "transforms", transforms))  # type: ignore[call-overload]
    elif type(transforms).__name__ == "Compose" and not callable(transforms):
        inner = getattr(transforms, "transforms", None)
    if isinstance(inner, (list, tuple)):
        for transform in inner:
            yield from flatten(transform)
    else:
        yield transforms


def is_albumentations(transform: object) -> bool:
    """Return True for an object called as albumentations' are: with `image=` an array, returning a dict."""
    cls: type = type(transform)
    return _is_of_albumentations(cls)


@functools.lru_cache(maxsize=256)
def _is_of_albumentations(cls: type) -> bool:
    return any(base.__module__.partition(".")[0] == "albumentations" for base in cls.__mro__)
