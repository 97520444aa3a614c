"""torchvision's RandomApply, RandomChoice and RandomOrder, if they contain only pixel operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from datapipe.core.errors import OptionError
from datapipe.transforms.lowering.foreign import described, flatten
from datapipe.transforms.lowering.rules import Lowered
from datapipe.transforms.pixels.color import ColorJitter
from datapipe.transforms.pixels.compound import RandomApply, RandomChoice, RandomOrder
from datapipe.transforms.protocols import GeometryOp, PixelOp

Lower = Callable[[object], Lowered]
Container = Callable[[Mapping[str, Any], Lower], Lowered]


def _random_apply(attributes: Mapping[str, Any], lower: Lower) -> Lowered:
    ops = [op for transform in flatten(_inner(attributes, "transforms", "p")) for op in _operations(transform, lower)]
    return Lowered((RandomApply(ops, p=attributes["p"]),) if ops else ())


def _random_choice(attributes: Mapping[str, Any], lower: Lower) -> Lowered:
    alternatives = [_as_one(inner, lower) for inner in _inner(attributes, "transforms", "p")]
    return Lowered((RandomChoice(alternatives, p=attributes["p"]),))


def _random_order(attributes: Mapping[str, Any], lower: Lower) -> Lowered:
    return Lowered((RandomOrder([_as_one(inner, lower) for inner in _inner(attributes, "transforms")]),))


def _inner(attributes: Mapping[str, Any], *known: str) -> list[object]:
    if attributes.keys() != set(known):
        raise OptionError(f"its attributes are not supported: it has {', '.join(attributes)}, not {', '.join(known)}")
    return list(attributes["transforms"])


def _as_one(transform: object, lower: Lower) -> PixelOp:
    """Return a transform or a nest of them as a single operation."""
    ops = [op for inner in flatten(transform) for op in _operations(inner, lower)]
    if not ops:
        return ColorJitter()  # without arguments it leaves images unchanged
    return ops[0] if len(ops) == 1 else RandomApply(ops, p=1.0)


def _operations(transform: object, lower: Lower) -> list[PixelOp]:
    is_own = isinstance(transform, (PixelOp, GeometryOp)) and not isinstance(transform, type)
    lowered = Lowered((transform,)) if is_own else lower(transform)
    ops: list[PixelOp] = []
    for op in lowered.ops:
        if not isinstance(op, PixelOp):
            raise OptionError(f"{described(transform)} within it is not a pixel operation; only these can be applied at random")
        ops.append(op)
    if lowered.kind is not None:
        raise OptionError(f"{described(transform)} within it makes another kind of image")
    return ops


_BY_CLASS: dict[str, Container] = {"RandomApply": _random_apply, "RandomChoice": _random_choice, "RandomOrder": _random_order}
CONTAINERS: dict[str, Container] = {
    f"{library}.{name}": container
    for library in ("torchvision.transforms", "torchvision.transforms.v2")
    for name, container in _BY_CLASS.items()
}
