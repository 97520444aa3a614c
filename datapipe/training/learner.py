"""A model in training: from a loader's batches, in mixed precision, to updated weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from datapipe.core.errors import OptionError
from datapipe.training.ranks import ProcessGroup
from datapipe.training.schedule import scale_gradients, set_rate


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Images with labels, on the computing device."""

    images: torch.Tensor  # (b, ...) what the model takes
    labels: torch.Tensor  # (b,) int64 classes, or (b, num_classes) float shares of them
    real: torch.Tensor | None  # (b,) bool, False for repeats that pad a batch; None: all are real

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_real(self) -> int | torch.Tensor:
        """The number of samples that count; a 0-dimensional tensor if only the device knows it."""
        return len(self) if self.real is None else self.real.sum()


def labelled_batch(batch: object, device: torch.device, *, channels_last: bool) -> LabelledBatch:
    """Move a batch of datapipe's or torch's loader, or a dict with "image" and "label", to `device`.

    A tuple is (images, labels, ...). A bool vector at its end, or "real" in a dict, says which samples count (the loader's
    tail="mask"). Raises OptionError for anything else.
    """
    images, labels, real = _parts(batch)
    images = images.to(device, non_blocking=True)
    if channels_last and images.ndim == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    return LabelledBatch(
        images, labels.to(device, non_blocking=True), None if real is None else real.to(device, non_blocking=True)
    )


def _parts(batch: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    if isinstance(batch, Mapping):
        values: list[Any] = [batch[name] for name in ("image", "label", "real") if name in batch]
        held = ", ".join(map(str, batch))
    else:
        values = list(batch) if isinstance(batch, Sequence) else [batch]
        held = ", ".join(type(value).__name__ for value in values)
    if len(values) < 2 or not all(isinstance(value, torch.Tensor) for value in values[:2]):
        raise OptionError(
            f"a batch holds ({held}); training takes (images, labels): are the samples labelled? "
            "(for other batches, wrap the loader)"
        )
    images, labels, last = values[0], values[1], values[-1]
    if not len(images) == len(labels):
        raise OptionError(f"a batch holds {len(images)} images and {len(labels)} labels; training takes one label per image")
    marks = len(values) > 2 and isinstance(last, torch.Tensor) and last.dtype == torch.bool and last.shape == (len(labels),)
    return images, labels, last if marks else None


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class MixedPrecision:
    """Mixed-precision autocast and loss scaling. Weights and optimiser state stay float32.

    With "fp16" the loss is multiplied by a scale and gradients are divided by it. A step whose gradients are not finite is
    skipped and the scale lowered (Micikevicius et al., "Mixed Precision Training", 2018). Raises OptionError if the device
    does not support the precision.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in ("fp32", *_DTYPES):
            raise OptionError(f"precision is {name!r}; choose one of fp32, {', '.join(_DTYPES)}")
        if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise OptionError(f"precision is 'bf16', which {torch.cuda.get_device_name(device)} does not support; choose 'fp16'")
        self.name = name
        self._device_type = device.type
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> torch.autocast:
        """Return the context for the forward pass and the loss."""
        dtype = _DTYPES.get(self.name)
        return torch.autocast(self._device_type, dtype=dtype, enabled=dtype is not None)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, scaled."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, before anything reads them."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights, unless the gradients are not finite, and adapt the scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's state; empty except for "fp16"."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scale. An empty state, saved with another precision, leaves it unchanged."""
        if state and self.name == "fp16":
            self._scaler.load_state_dict(state)


Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (b, c) outputs, labels -> (b,) losses


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor, *, label_smoothing: float = 0.0) -> torch.Tensor:
    """Return (b,) losses in nats, for labels that are classes or shares of classes."""
    _check_head(outputs, labels)
    return nn.functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=label_smoothing)


class Learner:
    """A model, its optimiser, and the path from losses to a step. Not thread-safe.

    `nominal`: samples of a full step on one rank; losses are divided by it before the real number is known. The gradient of a
    step is that of the mean loss over all its samples on all ranks, however they were divided into batches.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        criterion: Criterion,
        precision: MixedPrecision,
        peers: ProcessGroup,
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
        """Add the gradient of a batch; return its (b,) losses and its outputs. Ranks exchange gradients at the end of a step."""
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
        """Update the weights at `share` of the learning rate, and clear the gradients."""
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
            raise OptionError(f"criterion returned {tuple(losses.shape)}; it must return one loss per sample, ({len(batch)},)")
        return losses if batch.real is None else losses.where(batch.real, torch.zeros_like(losses))

    def _mean_num_real(self, device: torch.device) -> float | torch.Tensor:
        """Return the mean number of samples of this step per rank."""
        if self._peers.world_size == 1:
            return self._num_real
        num = torch.as_tensor(self._num_real, dtype=torch.float64, device=device)
        return self._peers.add(num.reshape(1).clone())[0] / self._peers.world_size


def _check_head(outputs: Any, labels: torch.Tensor) -> None:
    """Raise OptionError if the model's outputs and the labels cannot match. On a GPU, skip what would need synchronisation."""
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        shown = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise OptionError(f"the model returns {shown}, not (batch, classes); pass a criterion= that accepts it, or another model")
    num_classes = outputs.shape[1]
    if labels.ndim == 2 and labels.shape[1] != num_classes:
        raise OptionError(f"the model has {num_classes} outputs, labels are shares of {labels.shape[1]} classes; make them equal")
    if labels.ndim == 1 and not labels.is_cuda and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise OptionError(
            f"labels run from {int(labels.min())} to {int(labels.max())} and the model has {num_classes} outputs; "
            "make a model with an output per class"
        )
