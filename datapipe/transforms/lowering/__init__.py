"""Convert transforms of other libraries to datapipe's, if these do the same.

A transform is recognised by the module and name of its class, never by `isinstance`: a subclass may do anything. Its
settings are read from its attributes. A transform with an unknown attribute, or a value that is not available here, is
called unchanged. No other library is imported.
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
    """Return True for a transform of whole batches: torchvision's MixUp and CutMix."""
    return name_of(transform) in ("torchvision.transforms.v2.MixUp", "torchvision.transforms.v2.CutMix")


def lower(transform: object, kind: Kind) -> Lowered:
    """Return datapipe's equivalent of a transform for images of `kind`. Raises OptionError, with the reason, if there is none."""
    name = name_of(transform)
    container = CONTAINERS.get(name)
    if container is not None:
        return container(attributes_of(transform), lambda inner: lower(inner, kind))
    return follow(_RULES.get(name), transform, kind)
