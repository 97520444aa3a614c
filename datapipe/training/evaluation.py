"""Loss and accuracy of a model over a loader, each sample counted once over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from datapipe.errors import OptionError
from datapipe.plan import Tail
from datapipe.training.batches import labelled_batch
from datapipe.training.learner import Criterion, cross_entropy
from datapipe.training.precision import MixedPrecision
from datapipe.training.ranks import Peers
from datapipe.training.sums import Means, Sums, means_of


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    device: torch.device | str = "cpu",
    criterion: Criterion = cross_entropy,
    precision: MixedPrecision | None = None,
    peers: Peers | None = None,
    stop: Callable[[], bool] | None = None,
) -> Means | None:
    """The means over `loader`; None if `stop`, asked after each batch, said so.

    With several ranks give each its share by a loader with tail="mask". The model is in evaluation mode meanwhile.
    """
    peers = Peers.join() if peers is None else peers
    check_counts_once(loader, peers)
    device = torch.device(device)
    autocast = (precision or MixedPrecision("fp32", device)).autocast
    sums, was_training = Sums(device), model.training
    peers.align_buffers(model)
    model.eval()
    try:
        with torch.no_grad():
            for raw in loader:
                batch = labelled_batch(raw, device, channels_last=False)
                with autocast():
                    outputs = model(batch.images)
                    losses = criterion(outputs, batch.labels)
                sums.add(losses, outputs, batch.labels, batch.real)
                if stop is not None and stop():
                    return None
    finally:
        model.train(was_training)
    return means_of(sums.over(peers))


def check_counts_once(loader: Any, peers: Peers) -> None:
    """Raises OptionError for a loader of ours that would give several ranks the same sample."""
    tail, dataset = getattr(getattr(loader, "options", None), "tail", None), getattr(loader, "dataset", ())
    batch = (getattr(loader, "batch_size", None) or 1) * peers.world_size
    if peers.world_size > 1 and tail is Tail.PAD and len(dataset) % batch % peers.world_size:
        raise OptionError(
            f"the validation loader pads {len(dataset)} samples for {peers.world_size} ranks, so that some count twice; "
            "pass tail='mask' to it"
        )
