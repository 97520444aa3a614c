"""Activation checkpointing: a block's intermediate results are not kept but computed again for the backward pass.

Memory for activations falls to those of one block and the blocks' inputs; each block is computed twice (Chen et al.,
"Training Deep Nets with Sublinear Memory Cost", 2016).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from datapipe.errors import OptionError


def recompute_blocks(model: nn.Module) -> int:
    """Let the blocks of a model compute twice; how many there are. Parameter names stay as they are.

    Blocks are the members of a Sequential or ModuleList that has two or more of one class with submodules of their own, as
    the stages of a ResNet and the layers of a ViT; the outermost count. Raises OptionError for a model that has none.
    """
    blocks = list(find_blocks(model))
    if not blocks:
        raise OptionError(
            f"activation_checkpointing: {type(model).__name__} has no Sequential or ModuleList of like blocks; "
            "use torch.utils.checkpoint in its forward, or leave the option out"
        )
    for block in blocks:
        _recompute(block)
    return len(blocks)


def find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The blocks of a model, outermost first."""
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
        """Running statistics have seen the batch already; with a momentum of 0 they stay as they are."""
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

    # torch.compile does not follow a context; such blocks are compiled one by one.
    alone = torch.compiler.disable(forward_twice, recursive=False) if norms else forward_twice  # type: ignore[no-untyped-call]
    block.forward = alone
