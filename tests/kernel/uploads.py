"""Batches to upload, and what must be read of them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fake_device import FakeDevice

Reads = list[tuple[torch.Tensor, Callable[[], torch.Tensor]]]  # what should be read, what was


def host_batch(number: int) -> dict[str, torch.Tensor]:
    """Tensors of several kinds, with different values for each number; none contains the byte that marks overwritten memory."""
    image = (torch.arange(2 * 3 * 4 * 4) * 7 + number * 13).remainder(199).to(torch.uint8).view(2, 3, 4, 4)
    return {
        "image": image.contiguous(memory_format=torch.channels_last),
        "odd": torch.tensor([True, False, number % 2 == 0]),
        "label": torch.tensor([number, -number]),
        "every other": image[:, :, ::2],
        "broadcast": torch.tensor(float(number)).expand(3, 2),
        "nothing": torch.empty(0, 5),
    }


def doubled(nest: dict[str, Any]) -> dict[str, Any]:
    """A `then` that computes two tensors, drops one, and passes the others on."""
    kept = {name: tensor for name, tensor in nest.items() if name != "every other"}
    return kept | {"image": nest["image"].to(torch.int16).mul_(2).add_(nest["image"]), "label": nest["label"].add(1)}


def expected_after(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return doubled({name: tensor.clone() for name, tensor in batch.items()})


def wrong_reads(fake: FakeDevice, reads: Reads) -> int:
    fake.drain()
    return sum(not torch.equal(expected, read()) for expected, read in reads)
