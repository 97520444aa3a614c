"""A thin, instrumented training loop over torch that works with any loader.

`fit` trains. The pieces it is made of (schedule, precision, accumulation, checkpoints, ...) also work alone. Torch is
imported when a name that needs it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datapipe.training.checkpoint import Checkpoint, Place, load_checkpoint, load_pretrained, save_checkpoint
    from datapipe.training.data import training_recipe, validation_recipe
    from datapipe.training.evaluation import DivergenceError, Means, evaluate
    from datapipe.training.learner import Learner, MixedPrecision
    from datapipe.training.models import make_model
    from datapipe.training.options import TrainOptions
    from datapipe.training.preparation import make_optimizer, parameter_groups, recompute_blocks
    from datapipe.training.ranks import ProcessGroup
    from datapipe.training.record import EpochMetrics, StepMetrics
    from datapipe.training.run import Report, fit
    from datapipe.training.schedule import Best, Schedule, ends_step, scale_gradients, steps_per_epoch
    from datapipe.training.starvation import Bracket, DeviceBracket, HostBracket

_NAMES = {
    "checkpoint": ("Checkpoint", "Place", "load_checkpoint", "load_pretrained", "save_checkpoint"),
    "data": ("training_recipe", "validation_recipe"),
    "evaluation": ("DivergenceError", "Means", "evaluate"),
    "learner": ("Learner", "MixedPrecision"),
    "models": ("make_model",),
    "options": ("TrainOptions",),
    "preparation": ("make_optimizer", "parameter_groups", "recompute_blocks"),
    "ranks": ("ProcessGroup",),
    "run": ("Report", "fit"),
    "record": ("EpochMetrics", "StepMetrics"),
    "schedule": ("Best", "Schedule", "ends_step", "scale_gradients", "steps_per_epoch"),
    "starvation": ("Bracket", "DeviceBracket", "HostBracket"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "Best",
    "Bracket",
    "Checkpoint",
    "DeviceBracket",
    "DivergenceError",
    "EpochMetrics",
    "HostBracket",
    "Learner",
    "Means",
    "MixedPrecision",
    "Place",
    "ProcessGroup",
    "Report",
    "Schedule",
    "StepMetrics",
    "TrainOptions",
    "ends_step",
    "evaluate",
    "fit",
    "load_checkpoint",
    "load_pretrained",
    "make_model",
    "make_optimizer",
    "parameter_groups",
    "recompute_blocks",
    "save_checkpoint",
    "scale_gradients",
    "steps_per_epoch",
    "training_recipe",
    "validation_recipe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'datapipe.training' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"datapipe.training.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
