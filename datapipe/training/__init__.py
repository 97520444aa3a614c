"""Training: a thin, instrumented loop over torch, behind any loader.

`fit` trains; the pieces it is made of (schedule, precision, accumulation, checkpoints, ...) work alone. Torch is imported
when a name that needs it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datapipe.training.accumulate import ends_step, scale_gradients, steps_per_epoch
    from datapipe.training.checkpoint import Checkpoint, Place, load_checkpoint, save_checkpoint
    from datapipe.training.early_stopping import Best
    from datapipe.training.evaluation import evaluate
    from datapipe.training.learner import Learner
    from datapipe.training.models import make_model
    from datapipe.training.optimizers import make_optimizer, parameter_groups
    from datapipe.training.options import TrainOptions
    from datapipe.training.precision import MixedPrecision
    from datapipe.training.pretrained import load_pretrained
    from datapipe.training.ranks import Peers
    from datapipe.training.recipes import training_recipe, validation_recipe
    from datapipe.training.recompute import recompute_blocks
    from datapipe.training.record import EpochMetrics, StepMetrics
    from datapipe.training.run import Report, fit
    from datapipe.training.schedule import Schedule
    from datapipe.training.starvation import Bracket, DeviceBracket, HostBracket
    from datapipe.training.sums import DivergenceError, Means

_NAMES = {
    "accumulate": ("ends_step", "scale_gradients", "steps_per_epoch"),
    "checkpoint": ("Checkpoint", "Place", "load_checkpoint", "save_checkpoint"),
    "early_stopping": ("Best",),
    "evaluation": ("evaluate",),
    "learner": ("Learner",),
    "models": ("make_model",),
    "optimizers": ("make_optimizer", "parameter_groups"),
    "options": ("TrainOptions",),
    "precision": ("MixedPrecision",),
    "pretrained": ("load_pretrained",),
    "ranks": ("Peers",),
    "recipes": ("training_recipe", "validation_recipe"),
    "record": ("EpochMetrics", "StepMetrics"),
    "recompute": ("recompute_blocks",),
    "run": ("Report", "fit"),
    "schedule": ("Schedule",),
    "starvation": ("Bracket", "DeviceBracket", "HostBracket"),
    "sums": ("DivergenceError", "Means"),
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
    "Peers",
    "Place",
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
