"""The arguments of `from_torch` besides the loader, and those that go in 0.3, with what takes their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from datapipe.deferral.dataset import is_switched_off
from datapipe.errors import OptionError
from datapipe.kernel.options import OnError
from datapipe.kinds.former import listed, with_capacity
from datapipe.kinds.images.choice import Backend
from datapipe.kinds.images.samples import ImageSettings

DEFAULTS = {"data": None, "cache": None, "backend": "auto", "on_error": "raise"}
_HANDLING, _SETTINGS = ("defer", "reseed"), ("memory_format", "cache", "cache_nbytes")
OF_FROM_TORCH = _HANDLING + _SETTINGS


class Handling(NamedTuple):
    """How much of a loader's work may be done otherwise than torch does it."""

    sees: bool  # datasets whose files can be seen are read by datapipe
    defers: bool  # images that a dataset's own code opens by Pillow are made at the end of a fetch
    reseeds: bool  # random numbers are seeded for each sample


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of a call of `from_torch`, without the loader and the seed."""

    device: str | torch.device
    backend: Backend
    on_error: OnError
    shares: bool
    data: Any
    former: ImageSettings | None
    may: Handling

    @property
    def cache(self) -> Any:
        return None if self.former is None else self.former.cache

    @property
    def defers(self) -> bool:
        return self.may.defers and not is_switched_off()

    def differs(self, *names: str) -> list[str]:
        """Return those of these arguments that are not at their defaults."""
        return [name for name in names if getattr(self, name) != DEFAULTS[name]]

    def refuse(self, why: str, *names: str) -> None:
        """Raise OptionError for the first of these arguments that is not its default."""
        for name in self.differs(*names):
            raise OptionError(
                f"{name}={getattr(self, name)!r}: torch's workers make the samples ({why}); "
                "leave it out, or use transforms and datasets that datapipe can see through"
            )


# -- until 0.3 ----------------------------------------------------------------------------------------


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
