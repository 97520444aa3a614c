"""Loss and accuracy added up over batches, on the device, read only when somebody wants to know."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from datapipe.errors import DatapipeError
from datapipe.training.ranks import Peers


class DivergenceError(DatapipeError, ArithmeticError):
    """The loss is no longer a finite number."""


@dataclass(frozen=True, slots=True)
class Means:
    """Over some samples of all ranks."""

    num_samples: int
    loss: float
    accuracy: float | None  # None where labels are shares of classes


class Sums:
    """Adds up (loss, samples, correct, samples with one class) in float64, (4,) on the device."""

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(4, dtype=torch.float64, device=device)

    def add(self, losses: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, real: torch.Tensor | None) -> None:
        """One batch: (b,) losses, (b, num_classes) outputs. Samples that are not `real` do not count."""
        weights = torch.ones(len(labels), device=losses.device) if real is None else real
        has_class = labels.ndim == 1 and outputs.ndim == 2
        correct = ((outputs.argmax(1) == labels) & weights.bool()).sum() if has_class else weights.new_zeros(())
        num = weights.sum()
        counted = num if has_class else torch.zeros_like(num)
        kept = losses if real is None else losses.where(real, torch.zeros_like(losses))
        self.values += torch.stack([part.to(torch.float64) for part in (kept.sum(), num, correct, counted)])

    def over(self, peers: Peers) -> torch.Tensor:
        """The sum over ranks so far, in host memory. Waits for the device."""
        return peers.add(self.values.clone()).cpu()

    def clear(self) -> None:
        self.values.zero_()

    def resume(self, total: torch.Tensor, peers: Peers) -> None:
        """Go on from a total over ranks: one of them takes it all."""
        self.values.copy_(total if peers.leads else torch.zeros_like(total))


def means_of(total: torch.Tensor) -> Means:
    """The means of a total over ranks; NaN for no samples."""
    loss, num, correct, counted = total.tolist()
    return Means(int(num), loss / num if num else float("nan"), correct / counted if counted else None)


def checked(means: Means, *, step: int) -> Means:
    """The same means. Raises DivergenceError for a loss that is not finite."""
    if means.num_samples and not math.isfinite(means.loss):
        raise DivergenceError(
            f"the loss is {means.loss} at step {step}; lower the learning rate, clip the gradient, or warm up for longer "
            "(the last checkpoint is from before)"
        )
    return means
