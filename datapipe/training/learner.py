"""A model while it learns: from batches to changed weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from datapipe.errors import OptionError
from datapipe.training.accumulate import scale_gradients
from datapipe.training.batches import LabelledBatch
from datapipe.training.precision import MixedPrecision
from datapipe.training.ranks import Peers
from datapipe.training.schedule import set_rate

Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (b, c) outputs, labels -> (b,) losses


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor, *, label_smoothing: float = 0.0) -> torch.Tensor:
    """(b,) losses in nats, for labels that are classes or shares of classes."""
    _check_head(outputs, labels)
    return nn.functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=label_smoothing)


class Learner:
    """A model, its optimiser, and the way from losses to a step. Not thread-safe.

    `nominal`: samples of a full step on one rank, by which losses are divided before they are known all to be there. The
    gradient of a step is that of the mean loss over all its samples on all ranks, however they fell into batches.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        criterion: Criterion,
        precision: MixedPrecision,
        peers: Peers,
        nominal: int,
        clip_norm: float | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.precision = precision
        self.rates: list[float] = [float(group["lr"]) for group in optimizer.param_groups]
        self._criterion = criterion
        self._peers = peers
        self._nominal = nominal
        self._clip_norm = clip_norm
        self._parallel: nn.Module = model
        self._num_real: int | torch.Tensor = 0
        if peers.world_size > 1:
            device = next(model.parameters()).device
            self._parallel = nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)

    def learn(self, batch: LabelledBatch, *, ends_step: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the gradient of a batch; its (b,) losses and its outputs. Ranks exchange gradients with the last of a step."""
        parallel = self._parallel
        waits = isinstance(parallel, nn.parallel.DistributedDataParallel) and not ends_step
        with parallel.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
            with self.precision.autocast():
                outputs = parallel(batch.images)
                losses = self._losses(outputs, batch)
            self.precision.backward(losses.sum() / self._nominal)
        self._num_real = self._num_real + batch.num_real
        return losses.detach(), outputs.detach()

    def step(self, share: float) -> None:
        """Change the weights, at `share` of the learning rate, and forget the gradients."""
        set_rate(self.optimizer.param_groups, self.rates, share)
        self.precision.unscale(self.optimizer)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        scale_gradients(parameters, self._nominal, self._mean_num_real(parameters[0].device))
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self._clip_norm)
        self.precision.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        self._num_real = 0

    def _losses(self, outputs: Any, batch: LabelledBatch) -> torch.Tensor:
        losses = self._criterion(outputs, batch.labels)
        if losses.shape != (len(batch),):
            raise OptionError(f"criterion gave {tuple(losses.shape)}; it must give one loss per sample, ({len(batch)},)")
        return losses if batch.real is None else losses.where(batch.real, torch.zeros_like(losses))

    def _mean_num_real(self, device: torch.device) -> float | torch.Tensor:
        """Samples of this step on the average rank."""
        if self._peers.world_size == 1:
            return self._num_real
        num = torch.as_tensor(self._num_real, dtype=torch.float64, device=device)
        return self._peers.add(num.reshape(1).clone())[0] / self._peers.world_size


def _check_head(outputs: Any, labels: torch.Tensor) -> None:
    """Raises OptionError where model and labels cannot belong together; on a GPU as far as that needs no waiting."""
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        shown = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise OptionError(f"the model gives {shown}, not (batch, classes); pass a criterion= that takes it, or another model")
    num_classes = outputs.shape[1]
    if labels.ndim == 2 and labels.shape[1] != num_classes:
        raise OptionError(f"the model has {num_classes} outputs, labels are shares of {labels.shape[1]} classes; make them equal")
    if labels.ndim == 1 and not labels.is_cuda and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise OptionError(
            f"labels run from {int(labels.min())} to {int(labels.max())} and the model has {num_classes} outputs; "
            "make a model with an output per class"
        )
