"""The settings of `Audio`: what a sample is, and what a batch has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from datapipe.core.checks import real_number, whole_number
from datapipe.errors import OptionError
from datapipe.stores.settings import Remote

_MAX_SECONDS = 1e9
MAX_RATE = 10_000_000  # Hz
MAX_CHANNELS = 1024  # that libsndfile opens

Short = Literal["pad", "drop", "error"]
Crop = Literal["random", "center", "start"]


@dataclass(frozen=True, slots=True)
class AudioSettings:
    """The settings of `Audio`, which documents each."""

    seconds: float | None = None  # of a crop; None: a sample is a whole utterance
    rate: int | None = None
    channels: int = 1
    short: Short = "pad"
    crop: Crop = "random"
    max_seconds: float | None = None
    between: tuple[float, float] | None = None
    fields: tuple[str, ...] | None = None  # None: what there is, without `id`
    remote: Remote = field(default_factory=Remote)

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("seconds", "max_seconds"):
            value = getattr(self, name)
            if value is not None:
                put(self, name, real_number(value, name, most=_MAX_SECONDS))
                if not getattr(self, name) > 0:
                    raise OptionError(f"{name} is {value}; it must be more than 0")
        if self.rate is not None:
            put(self, "rate", whole_number(self.rate, "rate", least=1, most=MAX_RATE))
        put(self, "channels", whole_number(self.channels, "channels", least=1, most=MAX_CHANNELS))
        for name, choices in (("short", Short), ("crop", Crop)):
            if getattr(self, name) not in get_args(choices):
                raise OptionError(f"{name} is {getattr(self, name)!r:.40}; choose one of {', '.join(get_args(choices))}")
        if self.max_seconds is not None and self.seconds is not None:
            raise OptionError("max_seconds is for whole=True; a batch of crops has batch_size times `seconds`: leave it out")
        if self.between is not None:
            is_pair = isinstance(self.between, Sequence) and len(self.between) == 2
            limits = tuple(real_number(one, "between") for one in self.between) if is_pair else (0.0, 0.0)
            if not 0 <= limits[0] < limits[1]:
                raise OptionError(f"between is {self.between!r:.60}; pass the least and the most seconds, such as (0.5, 20)")
            put(self, "between", limits)
