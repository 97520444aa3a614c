"""How a rule for one transform of another library is written down and followed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from datapipe.errors import OptionError
from datapipe.transforms.lowering.foreign import attributes_of

# What an image is to the user's own transforms: a PIL image, a (3, h, w) tensor, or torchvision's tv_tensors.Image.
# "any" is one of which nothing has been said yet: it is taken for what the transform needs.
Kind = Literal["any", "pil", "tensor", "image"]


@dataclass(frozen=True, slots=True)
class Lowered:
    """Transforms of datapipe's that do the same, one after the other; none where there is nothing to do."""

    ops: tuple[object, ...] = ()
    kind: Kind | None = None  # what images are from here on; None: what they were


# Called with the kind of image that arrives and the transform's attributes as keywords. Its parameters are the attributes
# that are known. Raises OptionError where it cannot be done.
Rule = Callable[..., Lowered]


def is_tensor(kind: Kind) -> bool:
    """Whether it is known to be a tensor."""
    return kind in ("tensor", "image")


def refuse_tensor(kind: Kind) -> None:
    """Raises OptionError for what fails in the other library as well."""
    if is_tensor(kind):
        raise OptionError("it takes PIL images, and a tensor reaches it")


def refuse_pil(kind: Kind) -> None:
    """The same, the other way round."""
    if kind == "pil":
        raise OptionError("it takes tensors, and a PIL image reaches it; put ToImage before it")


def follow(rule: Rule | None, transform: object, kind: Kind) -> Lowered:
    """Raises OptionError for no rule, for attributes of which the rule knows nothing, and as the rule does."""
    if rule is None:
        raise OptionError("nothing is known of it")
    attributes = attributes_of(transform)
    try:
        _signature(rule).bind(kind, **attributes)
    except TypeError as exc:
        raise OptionError(f"nothing is known of its arguments: {exc}") from exc
    return rule(kind, **attributes)


@functools.lru_cache(maxsize=256)
def _signature(rule: Rule) -> inspect.Signature:
    return inspect.signature(rule)
