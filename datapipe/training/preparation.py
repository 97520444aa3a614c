"""Prepare the first step: device, model, optimiser, and the checkpoint to resume from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from datapipe.core.atomic import refuse_to_replace
from datapipe.errors import OptionError
from datapipe.kernel.ranks import resolve_device
from datapipe.training.checkpoint import BEST, LAST
from datapipe.training.options import TrainOptions
from datapipe.training.process_group import ProcessGroup
from datapipe.training.record import METRICS, RECORD


def recompute_blocks(model: nn.Module) -> int:
    """Make the blocks of a model recompute their activations and return their number. Parameter names do not change.

    Blocks are the members of a Sequential or ModuleList with two or more members of one class that have submodules, such as
    the stages of a ResNet or the layers of a ViT; the outermost count. Raises OptionError for a model that has none.
    """
    blocks = list(find_blocks(model))
    if not blocks:
        raise OptionError(
            f"activation_checkpointing: {type(model).__name__} has no Sequential or ModuleList of blocks of one class; "
            "use torch.utils.checkpoint in its forward, or leave the option out"
        )
    for block in blocks:
        _recompute(block)
    return len(blocks)


def find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of a model, outermost first."""
    for child in module.children():
        members = list(child.children())
        like = len(members) >= 2 and len({type(member) for member in members}) == 1
        if isinstance(child, (nn.Sequential, nn.ModuleList)) and like and any(members[0].children()):
            yield from members
        else:
            yield from find_blocks(child)


def _recompute(block: nn.Module) -> None:
    forward = block.forward
    norms = [module for module in block.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        """Freeze the running statistics, which have seen the batch already: with a momentum of 0 they do not change."""
        before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
        try:
            for norm, _, count in before:
                norm.momentum = 0.0
                norm.num_batches_tracked = None if count is None else count.clone()
            yield
        finally:
            for norm, momentum, count in before:
                norm.momentum, norm.num_batches_tracked = momentum, count

    def forward_twice(*args: Any, **kwargs: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        if not norms:
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), again()), **kwargs)

    # torch.compile cannot trace a context function, so these blocks are compiled one by one.
    alone = torch.compiler.disable(forward_twice, recursive=False) if norms else forward_twice  # type: ignore[no-untyped-call]
    block.forward = alone


def make_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    """Return the optimiser that the options name, over the model's trainable parameters.

    Raises OptionError for a model without trainable parameters.
    """
    is_sgd = options.optimizer == "sgd"
    decay = options.weight_decay if options.weight_decay is not None else 1e-4 if is_sgd else 0.05
    groups = parameter_groups(model, decay)
    if not groups:
        raise OptionError(f"{type(model).__name__} has no parameters that require gradients; there is nothing to train")
    if is_sgd:
        rate = 0.05 if options.lr is None else options.lr
        return torch.optim.SGD(groups, lr=rate, momentum=options.momentum, nesterov=options.momentum > 0)
    return torch.optim.AdamW(groups, lr=1e-3 if options.lr is None else options.lr)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return matrices and filters with weight decay, and norms, biases and other vectors without. Empty groups are left out.

    Names that `model.no_weight_decay()` returns, if there is such a method (timm's models), also get no weight decay.
    """
    named = getattr(model, "no_weight_decay", None)
    spared = set(named()) if callable(named) else set()
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[parameter.ndim <= 1 or name in spared]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def device_for(loader: Any) -> torch.device:
    """Return the loader's device if it has one; else this rank's GPU, or the CPU if there is none."""
    device = getattr(loader, "device", None)
    return device if isinstance(device, torch.device) else resolve_device("auto")()


def prepare_model(model: nn.Module, options: TrainOptions, device: torch.device) -> nn.Module:
    """Return the same model: on the device, in the memory format, with recomputation and compiled as the options say."""
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise OptionError(f"model is wrapped in {type(model).__name__}; pass the bare module: fit wraps it itself")
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


def check_length(loader: object, ranks: ProcessGroup) -> None:
    """Raise OptionError for a loader that has no length or no batches, or whose length differs between ranks."""
    if not isinstance(loader, Sized):
        raise OptionError(f"{type(loader).__name__} has no length; the schedule needs one: give it a __len__")
    lengths = ranks.gather(len(loader))
    if len(set(lengths)) > 1:
        raise OptionError(f"the loaders of the ranks have {', '.join(map(str, lengths))} batches; the numbers must be equal")
    if lengths[0] < 1:
        raise OptionError("the loader has no batches: fewer samples than batch_size x world_size and drop_last; lower batch_size")


def checkpoint_to_resume(options: TrainOptions) -> Path | None:
    """Return the checkpoint to resume from, or None.

    Raises OptionError if `out` holds a run and `resume` is not set, StorageError if `out` cannot hold one.
    """
    last = None if options.out is None else Path(options.out) / LAST
    if options.out is not None:  # fail now rather than at the end of an epoch
        for name in (LAST, BEST, METRICS, RECORD):
            refuse_to_replace(Path(options.out) / name)
    if options.resume == "auto":
        return last if last is not None and last.exists() else None
    if options.resume is not None:
        return Path(options.resume)
    if last is not None and last.exists():
        raise OptionError(
            f"{options.out}: already holds a run; resume it with --resume auto (resume='auto'), or choose another --out (out=)"
        )
    return None
