"""Convert transforms of other libraries to datapipe's, if these do the same.

A transform is recognised by the module and name of its class, never by `isinstance`: a subclass may do anything. Its
settings are read from its attributes. A transform with an unknown attribute, or a value that is not available here, is
called unchanged. No other library is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datapipe.errors import OptionError
from datapipe.transforms.lowering.of_timm import TIMM
from datapipe.transforms.lowering.of_torchvision import TORCHVISION
from datapipe.transforms.lowering.rules import Kind, Lowered, Rule, described, flatten, follow, is_albumentations, name_of
from datapipe.transforms.pixels.color import ColorJitter
from datapipe.transforms.pixels.compound import RandomApply, RandomChoice, RandomOrder
from datapipe.transforms.protocols import GeometryOp, PixelOp

__all__ = ["Kind", "Lowered", "described", "flatten", "is_albumentations", "lower", "mixes_batches"]


def mixes_batches(transform: object) -> bool:
    """Return True for a transform of whole batches: torchvision's MixUp and CutMix."""
    return name_of(transform) in ("torchvision.transforms.v2.MixUp", "torchvision.transforms.v2.CutMix")


def lower(transform: object, kind: Kind) -> Lowered:
    """Return datapipe's equivalent of a transform for images of `kind`. Raises OptionError, with the reason, if there is none."""
    return follow(_RULES.get(name_of(transform)), transform, kind)


# -- RandomApply, RandomChoice and RandomOrder, if they contain only pixel operations ---------------


def _random_apply(kind: Kind, *, transforms: Sequence[object], p: float) -> Lowered:
    ops = _operations(transforms, kind)
    return Lowered((RandomApply(ops, p=p),) if ops else ())


def _random_choice(kind: Kind, *, transforms: Sequence[object], p: Any) -> Lowered:
    return Lowered((RandomChoice([_as_one(inner, kind) for inner in transforms], p=p),))


def _random_order(kind: Kind, *, transforms: Sequence[object]) -> Lowered:
    return Lowered((RandomOrder([_as_one(inner, kind) for inner in transforms]),))


def _as_one(transform: object, kind: Kind) -> PixelOp:
    """Return a transform or a nest of them as a single operation."""
    ops = _operations(transform, kind)
    if not ops:
        return ColorJitter()  # without arguments it leaves images unchanged
    return ops[0] if len(ops) == 1 else RandomApply(ops, p=1.0)


def _operations(transforms: object, kind: Kind) -> list[PixelOp]:
    """Return the pixel operations that a transform or a nest of them comes to."""
    ops: list[PixelOp] = []
    for transform in flatten(transforms):
        is_own = isinstance(transform, (PixelOp, GeometryOp)) and not isinstance(transform, type)
        lowered = Lowered((transform,)) if is_own else lower(transform, kind)
        for op in lowered.ops:
            if not isinstance(op, PixelOp):
                raise OptionError(
                    f"{described(transform)} within it is not a pixel operation; only these can be applied at random"
                )
            ops.append(op)
        if lowered.kind is not None:
            raise OptionError(f"{described(transform)} within it makes another kind of image")
    return ops


_COMPOUNDS: Mapping[str, Rule] = {"RandomApply": _random_apply, "RandomChoice": _random_choice, "RandomOrder": _random_order}
_RULES: Mapping[str, Rule] = {
    **TORCHVISION,
    **TIMM,
    **{
        f"{place}.{name}": rule
        for place in ("torchvision.transforms", "torchvision.transforms.v2")
        for name, rule in _COMPOUNDS.items()
    },
}
