"""The arguments of `from_torch` besides the loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from datapipe.deferral.dataset import is_switched_off
from datapipe.errors import OptionError
from datapipe.kernel.options import OnError
from datapipe.kinds.images.choice import Backend

DEFAULTS = {"data": None, "backend": "auto", "on_error": "raise"}


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of a call of `from_torch`, without the loader and the seed."""

    device: str | torch.device
    backend: Backend
    on_error: OnError
    shares: bool
    data: Any
    is_faithful: bool

    @property
    def reseeds(self) -> bool:
        """Whether random numbers are seeded for each sample."""
        return not self.is_faithful

    @property
    def defers(self) -> bool:
        """Whether images that a dataset's own code opens by Pillow are made at the end of a fetch."""
        return not self.is_faithful and not is_switched_off()

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
