"""Several batches to one step, weighted as if they were one large batch.

Each batch adds the gradient of `sum of its losses / nominal`, where `nominal` is what a full step would have on this rank.
Once all have, gradients are multiplied by `nominal / what there was`: exact for short batches, masked samples, the rest
of an epoch, and ranks that have unequally many.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


def ends_step(batch: int, *, num_batches: int, accumulate: int) -> bool:
    """Whether the weights change after this batch (from 0) of an epoch; its last one always ends a step."""
    return (batch + 1) % accumulate == 0 or batch + 1 == num_batches


def steps_per_epoch(num_batches: int, accumulate: int) -> int:
    """Changes of the weights, the last perhaps from fewer batches."""
    return -(-num_batches // accumulate)


def scale_gradients(parameters: Iterable[torch.Tensor], nominal: float, num_real: float | torch.Tensor) -> None:
    """Make gradients of `sum of losses / nominal` those of the mean over `num_real` samples, in place.

    Under DDP, which averages over ranks, pass the mean over ranks for `num_real`. Nothing is touched if they are equal; a
    tensor is not looked at on the host. No samples leave gradients as they are, which are 0.
    """
    if not isinstance(num_real, torch.Tensor):
        if num_real == nominal:
            return
        num_real = torch.tensor(float(num_real))
    factor = nominal / num_real.clamp(min=1e-9)
    factor = torch.where(num_real > 0, factor, torch.ones_like(factor))
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, factor.to(gradients[0].device, torch.float32))
