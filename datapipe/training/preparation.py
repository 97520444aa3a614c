"""What must stand before the first step: device, model, optimiser, and the place to begin at."""

from __future__ import annotations

import functools
import os
from collections.abc import Sized
from pathlib import Path
from typing import Any

import torch
from torch import nn

from datapipe.atomic import refuse_to_replace
from datapipe.errors import OptionError
from datapipe.training.checkpoint import BEST, LAST
from datapipe.training.learner import Criterion, Learner, cross_entropy
from datapipe.training.optimizers import make_optimizer
from datapipe.training.options import TrainOptions
from datapipe.training.precision import MixedPrecision
from datapipe.training.ranks import Peers
from datapipe.training.recompute import recompute_blocks
from datapipe.training.record import METRICS, RECORD


def device_for(loader: Any) -> torch.device:
    """Where the loader hands batches over, if it says so; else this rank's GPU, or the CPU where there is none."""
    device = getattr(loader, "device", None)
    if isinstance(device, torch.device):
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def prepare_model(model: nn.Module, options: TrainOptions, device: torch.device) -> nn.Module:
    """The same model: on the device, in the memory format, recomputing and compiled as the options say."""
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise OptionError(f"model is wrapped in {type(model).__name__}; pass the bare module, it is wrapped here")
    model = model.to(device)
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if options.activation_checkpointing:
        recompute_blocks(model)
    if options.compile is not None:
        known = torch.compiler.list_backends(exclude_tags=())
        if options.compile not in known:
            raise OptionError(f"compile is {options.compile!r}; choose one of {', '.join(known)}")
        model.compile(backend=options.compile)
    model.train()
    return model


def make_learner(
    model: nn.Module,
    options: TrainOptions,
    *,
    device: torch.device,
    peers: Peers,
    nominal_batch: int,
    criterion: Criterion | None,
    optimizer: torch.optim.Optimizer | None,
) -> Learner:
    """`model`, prepared, with everything that changes it."""
    return Learner(
        model,
        make_optimizer(model, options) if optimizer is None else optimizer,
        criterion=criterion or functools.partial(cross_entropy, label_smoothing=options.label_smoothing),
        precision=MixedPrecision(options.precision, device),
        peers=peers,
        nominal=nominal_batch * options.accumulate,
        clip_norm=options.clip_norm,
    )


def batches_per_epoch(loader: object, peers: Peers) -> int:
    """Batches on this rank. Raises OptionError for a loader that does not know, has none, or differs between ranks."""
    if not isinstance(loader, Sized):
        raise OptionError(f"{type(loader).__name__} has no length; the schedule needs one: give it a __len__")
    lengths = peers.gather(len(loader))
    if len(set(lengths)) > 1:
        raise OptionError(f"the loaders of the ranks have {', '.join(map(str, lengths))} batches; they must have equally many")
    if lengths[0] < 1:
        raise OptionError("the loader has no batches: fewer samples than batch_size x world_size and drop_last; lower batch_size")
    return int(lengths[0])


def checkpoint_to_resume(options: TrainOptions) -> Path | None:
    """The file to go on from.

    Raises OptionError where `out` holds a run that nobody asked to go on with, StorageError where it cannot hold one.
    """
    last = None if options.out is None else Path(options.out) / LAST
    if options.out is not None:  # now, rather than at the end of an epoch
        for name in (LAST, BEST, METRICS, RECORD):
            refuse_to_replace(Path(options.out) / name)
    if options.resume == "auto":
        return last if last is not None and last.exists() else None
    if options.resume is not None:
        return Path(options.resume)
    if last is not None and last.exists():
        raise OptionError(
            f"{options.out}: holds a run already; go on with it by --resume auto (resume='auto'), or choose another --out (out=)"
        )
    return None
