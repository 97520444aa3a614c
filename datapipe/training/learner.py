"""Take the steps of a training: from a loader's batches, in mixed precision, to updated weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from datapipe.errors import OptionError
from datapipe.kernel.accelerators import device_name
from datapipe.training.options import Precision
from datapipe.training.process_group import ProcessGroup


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


_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the context for a forward pass and the loss. Weights and optimiser state stay float32.

    Raises OptionError if the device does not support the precision.
    """
    if precision == "bf16" and device.type != "cpu":
        is_supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
        if is_supported is not None and not is_supported(including_emulation=False):
            raise OptionError(f"precision is 'bf16', which {device_name(device)} does not support; choose 'fp16'")
    return torch.autocast(device.type, dtype=_DTYPES[precision], enabled=_DTYPES[precision] is not None)


Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (b, c) outputs, labels -> (b,) losses


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor, *, label_smoothing: float = 0.0) -> torch.Tensor:
    """Return (b,) losses in nats, for labels that are classes or shares of classes."""
    _check_head(outputs, labels)
    return nn.functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=label_smoothing)


def warmup_cosine(num_steps: int, *, warmup: float, final: float) -> Callable[[int], float]:
    """Return the share of the top learning rate by step, for `torch.optim.lr_scheduler.LambdaLR`.

    `warmup` is a share of the steps: of w such steps, step k has (k + 1) / w. After that the share falls from 1 as 1 + cos
    (Loshchilov and Hutter, "SGDR", 2017), and reaches `final` at `num_steps`, the step after the last.
    """
    rising = round(warmup * num_steps)

    def share(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        if step >= num_steps:
            return final
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * (step - rising) / (num_steps - rising)))

    return share


def ends_step(batch: int, *, num_batches: int, accumulate: int) -> bool:
    """Return True if the weights change after this batch (from 0) of an epoch; its last batch always ends a step."""
    return (batch + 1) % accumulate == 0 or batch + 1 == num_batches


def scale_gradients(parameters: Iterable[torch.Tensor], nominal: float, num_real: float | torch.Tensor) -> None:
    """Turn gradients of `sum of losses / nominal` into those of the mean over `num_real` samples, in place.

    That is exact for short batches, masked samples, the rest of an epoch, and ranks whose numbers of samples differ. Under DDP,
    which averages over ranks, pass the mean over ranks as `num_real`. If the two are equal nothing changes. The host never waits
    for the device. With no samples the gradients, which are 0, stay unchanged.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    if isinstance(num_real, torch.Tensor):
        factor = nominal / num_real.clamp(min=1e-9)
        factor = torch.where(num_real > 0, factor, torch.ones_like(factor))
        torch._foreach_mul_(gradients, factor.to(gradients[0].device, torch.float32))
    elif num_real not in (nominal, 0):
        torch._foreach_mul_(gradients, nominal / num_real)


class Learner:
    """A model, its optimiser, and the path from losses to a step. Not thread-safe.

    Several batches make one step, weighted as if they were one large batch: the gradient of a step is that of the mean loss
    over all its samples on all ranks, however they were divided. `nominal`: samples of a full step on one rank; losses are
    divided by it before the real number is known. With "fp16" losses are scaled; a step whose gradients are not finite is
    skipped and the scale lowered (Micikevicius et al., "Mixed Precision Training", 2018). Raises OptionError if the device does
    not support the precision.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        nominal: int,
        precision: Precision = "fp32",
        criterion: Criterion = cross_entropy,
        clip_norm: float | None = None,
        ranks: ProcessGroup | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.precision = precision
        self.device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self._criterion = criterion
        self._ranks = ranks or ProcessGroup()
        self._nominal = nominal
        self._clip_norm = clip_norm
        self._parallel: nn.Module = model
        self._num_real: int | torch.Tensor = 0
        autocast(self.device, precision)  # refuse it now
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # torch's schedulers multiply it by the share of each step
        if self._ranks.world_size > 1:
            device_ids = None if self.device.type == "cpu" else [self.device]
            self._parallel = nn.parallel.DistributedDataParallel(model, device_ids=device_ids)

    def learn(self, batch: LabelledBatch, *, ends_step: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the gradient of a batch; return its (b,) losses and its outputs. Ranks exchange gradients at the end of a step."""
        parallel = self._parallel
        waits = isinstance(parallel, nn.parallel.DistributedDataParallel) and not ends_step
        with parallel.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
            with autocast(self.device, self.precision):
                outputs = parallel(batch.images)
                losses = self._losses(outputs, batch)
            self.scaler.scale(losses.sum() / self._nominal).backward()  # type: ignore[no-untyped-call]
        self._num_real = self._num_real + batch.num_real
        return losses.detach(), outputs.detach()

    def step(self) -> None:
        """Update the weights, and clear the gradients."""
        self.scaler.unscale_(self.optimizer)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        scale_gradients(parameters, self._nominal, self._mean_num_real())
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self._clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._num_real = 0

    def _losses(self, outputs: Any, batch: LabelledBatch) -> torch.Tensor:
        losses = self._criterion(outputs, batch.labels)
        if losses.shape != (len(batch),):
            raise OptionError(f"criterion returned {tuple(losses.shape)}; it must return one loss per sample, ({len(batch)},)")
        return losses if batch.real is None else losses.where(batch.real, torch.zeros_like(losses))

    def _mean_num_real(self) -> float | torch.Tensor:
        """Return the mean number of samples of this step per rank."""
        if self._ranks.world_size == 1:
            return self._num_real
        # Added to what the device fills itself: a number that is made a tensor there is copied, which the host waits for.
        num = torch.zeros(1, dtype=torch.float64, device=self.device) + self._num_real
        return self._ranks.add(num)[0] / self._ranks.world_size


def _check_head(outputs: Any, labels: torch.Tensor) -> None:
    """Raise OptionError if the model's outputs and the labels cannot match. On a GPU, skip what would need synchronisation."""
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        shown = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise OptionError(f"the model returns {shown}, not (batch, classes); pass a criterion= that accepts it, or another model")
    num_classes = outputs.shape[1]
    if labels.ndim == 2 and labels.shape[1] != num_classes:
        raise OptionError(f"the model has {num_classes} outputs, labels are shares of {labels.shape[1]} classes; make them equal")
    if labels.ndim == 1 and labels.is_cpu and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise OptionError(
            f"labels run from {int(labels.min())} to {int(labels.max())} and the model has {num_classes} outputs; "
            "make a model with an output per class"
        )
