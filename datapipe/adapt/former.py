"""Arguments of `from_torch` that go in 0.3: what takes their place, and what to write."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from datapipe.kinds.former import listed, with_capacity
from datapipe.kinds.images.samples import ImageSettings

_HANDLING, _SETTINGS = ("defer", "reseed"), ("memory_format", "cache", "cache_nbytes")
OF_FROM_TORCH = _HANDLING + _SETTINGS


class Handling(NamedTuple):
    """How much of a loader's work may be done otherwise than torch does it."""

    sees: bool  # datasets whose files can be seen are read by datapipe
    defers: bool  # images that a dataset's own code opens by Pillow are made at the end of a fetch
    reseeds: bool  # random numbers are seeded for each sample


class FormerSettings(NamedTuple):
    """`data=`, and the settings that former arguments give it."""

    data: Any
    settings: ImageSettings


def with_former(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Replace the arguments of `from_torch` that go in 0.3."""
    told = []
    handling = {name: arguments.pop(name) for name in _HANDLING if name in arguments}
    if handling:
        now = "faithful=True, or DATAPIPE_DEFER=0 in the environment for defer=False alone"
        told.append((listed(handling), now))
        arguments["faithful"] = Handling(True, bool(handling.get("defer", True)), bool(handling.get("reseed", True)))
    given = {name: arguments.pop(name) for name in _SETTINGS if name in arguments}
    if given:
        now = "data=datapipe.Images(loader.dataset, cache=..., memory_format=...)"
        told.append((listed(given), now))
        cache = with_capacity(given.get("cache"), given.get("cache_nbytes"))
        memory_format = given.get("memory_format", torch.channels_last)
        arguments["data"] = FormerSettings(arguments.get("data"), ImageSettings(memory_format=memory_format, cache=cache))
    return told
