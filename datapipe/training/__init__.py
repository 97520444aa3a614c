"""A thin, instrumented training loop over torch that works with any loader.

`fit` trains. The parts it is made of (models, optimisers, checkpoints, evaluation, ...) also work alone.
"""

from datapipe.training.checkpoint import Checkpoint, Place, load_checkpoint, save_checkpoint
from datapipe.training.data import training_recipe, validation_recipe
from datapipe.training.epoch import Bracket, ClockBracket
from datapipe.training.evaluation import Best, DivergenceError, Means, evaluate
from datapipe.training.learner import Learner, ends_step, scale_gradients, warmup_cosine
from datapipe.training.models import make_model
from datapipe.training.options import TrainOptions
from datapipe.training.preparation import make_optimizer, parameter_groups, recompute_blocks
from datapipe.training.process_group import ProcessGroup
from datapipe.training.record import EpochMetrics, StepMetrics
from datapipe.training.run import TrainingReport, fit

__all__ = [
    "Best",
    "Bracket",
    "Checkpoint",
    "ClockBracket",
    "DivergenceError",
    "EpochMetrics",
    "Learner",
    "Means",
    "Place",
    "ProcessGroup",
    "StepMetrics",
    "TrainOptions",
    "TrainingReport",
    "ends_step",
    "evaluate",
    "fit",
    "load_checkpoint",
    "make_model",
    "make_optimizer",
    "parameter_groups",
    "recompute_blocks",
    "save_checkpoint",
    "scale_gradients",
    "training_recipe",
    "validation_recipe",
    "warmup_cosine",
]
