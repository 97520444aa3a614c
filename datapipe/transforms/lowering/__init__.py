"""Transforms of other libraries, turned into datapipe's where these do the same.

A transform is known by the module and the name of its class, never by `isinstance`: a subclass may do anything. What it
is told to do is read off its attributes; one that is not known, or has a value that is not available here, leaves the
transform to be called as it is. No other library is imported.
"""

from __future__ import annotations

from collections.abc import Mapping

from datapipe.transforms.lowering.containers import CONTAINERS
from datapipe.transforms.lowering.foreign import attributes_of, described, flatten, is_albumentations, name_of
from datapipe.transforms.lowering.of_timm import TIMM
from datapipe.transforms.lowering.of_torchvision import TORCHVISION
from datapipe.transforms.lowering.rules import Kind, Lowered, Rule, follow

__all__ = ["Kind", "Lowered", "described", "flatten", "is_albumentations", "lower", "mixes_batches"]

_RULES: Mapping[str, Rule] = {**TORCHVISION, **TIMM}


def mixes_batches(transform: object) -> bool:
    """Whether it takes whole batches: torchvision's MixUp and CutMix."""
    return name_of(transform) in ("torchvision.transforms.v2.MixUp", "torchvision.transforms.v2.CutMix")


def lower(transform: object, kind: Kind) -> Lowered:
    """What a transform comes to, where images of that kind reach it. Raises OptionError, which says why it comes to nothing."""
    name = name_of(transform)
    container = CONTAINERS.get(name)
    if container is not None:
        return container(attributes_of(transform), lambda inner: lower(inner, kind))
    return follow(_RULES.get(name), transform, kind)
