"""Loss and accuracy: sums over batches and ranks, the best so far, and the evaluation of a model on each sample once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from datapipe.errors import DatapipeError, OptionError
from datapipe.order.plan import Tail
from datapipe.training.learner import Criterion, autocast, cross_entropy, labelled_batch
from datapipe.training.options import Precision
from datapipe.training.process_group import ProcessGroup


class DivergenceError(DatapipeError, ArithmeticError):
    """The loss is no longer a finite number."""


@dataclass(frozen=True, slots=True)
class Means:
    """Mean figures over some samples of all ranks."""

    num_samples: int
    loss: float
    accuracy: float | None  # None for labels that are shares of classes


class Sums:
    """Adds up (loss, samples, correct, samples with one class) in float64, (4,) on the device."""

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(4, dtype=torch.float64, device=device)

    def add(self, losses: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, real: torch.Tensor | None) -> None:
        """Add one batch: (b,) losses, (b, num_classes) outputs. Samples that are not `real` do not count."""
        weights = torch.ones(len(labels), device=losses.device) if real is None else real
        has_class = labels.ndim == 1 and outputs.ndim == 2
        correct = ((outputs.argmax(1) == labels) & weights.bool()).sum() if has_class else weights.new_zeros(())
        num = weights.sum()
        counted = num if has_class else torch.zeros_like(num)
        kept = losses if real is None else losses.where(real, torch.zeros_like(losses))
        self.values += torch.stack([part.to(torch.float64) for part in (kept.sum(), num, correct, counted)])

    def over(self, ranks: ProcessGroup) -> torch.Tensor:
        """Return the sum over ranks so far, in host memory. Waits for the device."""
        return ranks.add(self.values.clone()).cpu()

    def clear(self) -> None:
        self.values.zero_()

    def resume(self, total: torch.Tensor, ranks: ProcessGroup) -> None:
        """Continue from a total over all ranks, which rank 0 takes whole."""
        self.values.copy_(total if ranks.leads else torch.zeros_like(total))


def means_of(total: torch.Tensor) -> Means:
    """Return the means of a total over ranks; NaN for no samples."""
    loss, num, correct, counted = total.tolist()
    return Means(int(num), loss / num if num else float("nan"), correct / counted if counted else None)


def checked(means: Means, *, step: int) -> Means:
    """Return `means` unchanged. Raises DivergenceError for a loss that is not finite."""
    if means.num_samples and not math.isfinite(means.loss):
        raise DivergenceError(
            f"the loss is {means.loss} at step {step}; lower the learning rate, clip the gradient, or warm up for longer "
            "(the last checkpoint was saved before this)"
        )
    return means


@dataclass(frozen=True, slots=True)
class Best:
    """The best validation so far. Immutable: each epoch makes a new one."""

    value: float | None = None  # accuracy or loss, whichever is watched
    epoch: int | None = None
    num_worse: int = 0  # epochs since

    def after(self, epoch: int, value: float, *, higher_is_better: bool, min_delta: float = 0.0) -> Best:
        """Return the best after `epoch` gave `value`. A NaN is never the best."""
        gain = 0.0 if self.value is None else value - self.value if higher_is_better else self.value - value
        if value == value and (self.value is None or gain > min_delta):
            return Best(value, epoch)
        return dataclasses.replace(self, num_worse=self.num_worse + 1)

    def is_exhausted(self, patience: int | None) -> bool:
        """Return True if `patience` epochs have passed without an improvement."""
        return patience is not None and self.num_worse >= patience


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    device: torch.device | str = "cpu",
    criterion: Criterion = cross_entropy,
    precision: Precision = "fp32",
    ranks: ProcessGroup | None = None,
    stop: Callable[[], bool] | None = None,
) -> Means | None:
    """Return the means over `loader`; None if `stop`, which is called after each batch, returned True.

    With several ranks, give each its share with a loader that has tail="mask". The model is in evaluation mode meanwhile.
    """
    ranks = ProcessGroup.join() if ranks is None else ranks
    check_counts_once(loader, ranks)
    device = torch.device(device)
    sums, was_training = Sums(device), model.training
    ranks.align_buffers(model)
    model.eval()
    try:
        with torch.no_grad():
            for raw in loader:
                batch = labelled_batch(raw, device, channels_last=False)
                with autocast(device, precision):
                    outputs = model(batch.images)
                    losses = criterion(outputs, batch.labels)
                sums.add(losses, outputs, batch.labels, batch.real)
                if stop is not None and stop():
                    return None
    finally:
        model.train(was_training)
    return means_of(sums.over(ranks))


def check_counts_once(loader: Any, ranks: ProcessGroup) -> None:
    """Raise OptionError if a datapipe loader would give several ranks the same sample."""
    tail, dataset = getattr(getattr(loader, "options", None), "tail", None), getattr(loader, "dataset", ())
    batch = (getattr(loader, "batch_size", None) or 1) * ranks.world_size
    if ranks.world_size > 1 and tail is Tail.PAD and len(dataset) % batch % ranks.world_size:
        raise OptionError(
            f"the validation loader pads {len(dataset)} samples for {ranks.world_size} ranks, so some would count twice; "
            "pass tail='mask' to it"
        )
