"""What a loader's batch holds, wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from datapipe.errors import OptionError


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Images with labels, on the device that computes."""

    images: torch.Tensor  # (b, ...) what the model takes
    labels: torch.Tensor  # (b,) int64 classes, or (b, num_classes) float shares of them
    real: torch.Tensor | None  # (b,) bool, False for repeats that fill a batch up; None: all are real

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_real(self) -> int | torch.Tensor:
        """Samples that count; a 0-dimensional tensor where only the device knows."""
        return len(self) if self.real is None else self.real.sum()


def labelled_batch(batch: object, device: torch.device, *, channels_last: bool) -> LabelledBatch:
    """A batch of ours, of torch's loader, or a dict with "image" and "label", moved to `device`.

    A tuple is (images, labels, ...); a bool vector at its end, or "real" in a dict, says which samples count (the loader's
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
