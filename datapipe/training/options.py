"""Training options: one frozen value, checked on construction. Needs no torch, so that a command line can read the defaults."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from datapipe.errors import OptionError

Precision = Literal["fp32", "bf16", "fp16"]
Watched = Literal["accuracy", "loss"]
Display = Literal["lines", "none"]
Optimizer = Literal["adamw", "sgd"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": get_args(Precision),
    "watch": get_args(Watched),
    "display": get_args(Display),
    "optimizer": get_args(Optimizer),
}
# Options that may differ between a run and its continuation without a note.
_INCIDENTAL = ("out", "resume", "save_every_steps", "save_every_minutes", "log_every", "display")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The options of `fit`. Raises OptionError for invalid values.

    A *step* is one update of the weights: `accumulate` batches on every rank.
    """

    epochs: int = 10
    optimizer: Optimizer = "adamw"  # or pass your own to `fit`
    lr: float | None = None  # peak of the schedule; None: 1e-3 for adamw, 0.05 for sgd
    weight_decay: float | None = None  # for matrices and filters only; None: 0.05 for adamw, 1e-4 for sgd
    momentum: float = 0.9  # Nesterov momentum of sgd
    warmup: float = 0.05  # share of all steps over which lr rises from 0
    final_lr: float = 0.0  # share of lr that the cosine ends at
    precision: Precision = "fp32"
    accumulate: int = 1  # batches per step and rank
    clip_norm: float | None = None  # limit on the norm of the gradient over all parameters
    label_smoothing: float = 0.0
    activation_checkpointing: bool = False
    compile: str | None = None  # a backend of torch.compile
    channels_last: bool = True
    patience: int | None = None  # epochs without improvement after which to stop; None: never
    min_delta: float = 0.0  # the smallest change that counts as improvement
    watch: Watched = "accuracy"  # the validation figure that decides `patience` and best.pt
    seed: int = 0  # for dropout and other random numbers, and for a loader without its own seed
    out: Path | str | None = None  # directory for checkpoints, metrics.jsonl, run.json; None: write nothing
    resume: Path | str | None = None  # a checkpoint; "auto": the one in `out`, if any; None: `out` must have none
    save_every_steps: int | None = None  # in addition to after every epoch
    save_every_minutes: float | None = 15.0
    log_every: int = 10  # steps
    display: Display = "lines"

    def __post_init__(self) -> None:
        for name in ("epochs", "accumulate", "log_every"):
            _require(_is_whole(getattr(self, name)) and getattr(self, name) >= 1, self, name, "it must be at least 1")
        for name in ("patience", "save_every_steps"):
            value = getattr(self, name)
            _require(value is None or (_is_whole(value) and value >= 1), self, name, "it must be at least 1, or None")
        for name in ("lr", "clip_norm", "save_every_minutes"):
            value = getattr(self, name)
            _require(value is None or (_is_number(value) and value > 0), self, name, "it must be greater than 0, or None")
        _require(self.weight_decay is None or _at_least_0(self.weight_decay), self, "weight_decay", "it must be 0 or more")
        _require(_at_least_0(self.min_delta), self, "min_delta", "it must be 0 or more")
        for name in ("warmup", "final_lr", "momentum", "label_smoothing"):
            value = getattr(self, name)
            is_share = _at_least_0(value) and (value < 1 or (name == "final_lr" and value == 1))
            _require(is_share, self, name, "it is a share: 0 or more, and less than 1")
        for name, choices in _CHOICES.items():
            _require(getattr(self, name) in choices, self, name, f"choose one of {', '.join(choices)}")
        _require(_is_whole(self.seed) and 0 <= self.seed < 2**63, self, "seed", "it must be a whole number from 0 to 2**63 - 1")
        _require(self.resume is None or self.resume != "auto" or self.out is not None, self, "resume", "pass out= as well")

    def to_json(self) -> dict[str, Any]:
        """Return JSON-safe values by name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: os.fspath(value) if isinstance(value, Path) else value for name, value in values.items()}

    def differences(self, saved: Mapping[str, Any]) -> list[str]:
        """Return what differs from the options `saved` with a run, one line each."""
        mine = self.to_json()
        return [
            f"{name} was {saved[name]!r} and is {mine[name]!r}"
            for name in mine
            if name in saved and name not in _INCIDENTAL and saved[name] != mine[name]
        ]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _at_least_0(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _require(holds: bool, options: TrainOptions, name: str, remedy: str) -> None:
    if not holds:
        raise OptionError(f"{name} is {getattr(options, name)!r}; {remedy}")
