"""The form of a rule for one transform of another library, and how it is applied."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from datapipe.core.errors import OptionError
from datapipe.transforms.lowering.foreign import attributes_of

# The kind of image that the user's own transforms get: a PIL image, a (3, h, w) tensor, or a tv_tensors.Image.
# "any" is not decided yet: it counts as the kind that the transform needs.
Kind = Literal["any", "pil", "tensor", "image"]


@dataclass(frozen=True, slots=True)
class Lowered:
    """Equivalent transforms of datapipe, to apply in order; empty if there is nothing to do."""

    ops: tuple[object, ...] = ()
    kind: Kind | None = None  # the kind of images from here on; None: unchanged


# Called with the kind of the input image and the transform's attributes as keywords. Its parameters are the supported
# attributes. Raises OptionError if there is no equivalent.
Rule = Callable[..., Lowered]


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
        raise OptionError("it is not supported")
    attributes = attributes_of(transform)
    try:
        _signature(rule).bind(kind, **attributes)
    except TypeError as exc:
        raise OptionError(f"its arguments are not supported: {exc}") from exc
    return rule(kind, **attributes)


@functools.lru_cache(maxsize=256)
def _signature(rule: Rule) -> inspect.Signature:
    return inspect.signature(rule)
