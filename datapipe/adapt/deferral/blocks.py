"""Make a batch's tensors inside the batch's memory, so that torch's `default_collate` need not copy them.

Only tensors that no code can reach otherwise are made so: those that only their sample holds, where nothing else holds
the sample. Tensors that the user's code keeps have memory of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils.data
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from datapipe.adapt.deferral.recorder import PendingPixels

Held = Mapping[int, tuple[torch.Tensor, PendingPixels]]  # by id

# Reference counts where they are read: a name and getrefcount's argument, besides the holders.
_OF_SAMPLE = 3  # the list of samples
_OF_CONTAINER = 3  # the container around it
_OF_TENSOR = 4  # the container and the fetch


class Block:
    """Memory of a batch, (n, ...), and the tensors that are its rows."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.ids = [id(tensor) for tensor in tensors]
        self.batch = _empty((len(tensors), *tensors[0].shape), tensors[0].dtype)
        self.rows = dict(zip(self.ids, self.batch.unbind(), strict=True))


def blocks_of(samples: list[Any], held: Held) -> list[Block]:
    """Return a block for each place in the samples at which all of them hold a tensor of one shape that is theirs alone."""
    if not samples or not held:
        return []
    places: list[list[tuple[Any, int]]] = []
    for sample in samples:
        if sys.getrefcount(sample) > _OF_SAMPLE:
            return []
        places.append(_tensors_in(sample, (), held))
    first = [place for place, _ in places[0]]
    if any([place for place, _ in others] != first for others in places):
        return []
    blocks = []
    for number in range(len(first)):
        tensors = [held[others[number][1]][0] for others in places]
        like = tensors[0]
        if like.is_contiguous() and all(one.shape == like.shape and one.dtype is like.dtype for one in tensors):
            blocks.append(Block(tensors))
    return blocks


def _tensors_in(container: Any, place: tuple[Any, ...], held: Held) -> list[tuple[Any, int]]:
    """Return the places and ids of the stand-ins that only this container holds."""
    if not isinstance(container, (tuple, list, dict)):
        return []
    found = []
    keys = container.keys() if isinstance(container, dict) else range(len(container))
    for key in keys:
        value = container[key]
        if id(value) in held:
            if sys.getrefcount(value) <= _OF_TENSOR:
                found.append(((*place, key), id(value)))
        elif isinstance(value, (tuple, list, dict)) and sys.getrefcount(value) <= _OF_CONTAINER:
            found += _tensors_in(value, (*place, key), held)
    return found


def collate_blocks(samples: Any, blocks: Sequence[Block]) -> Any:
    """Return what `default_collate` returns for samples whose tensors may be rows of blocks."""
    by_first = {block.ids[0]: block for block in blocks}

    def tensors(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        block = by_first.get(id(batch[0]))
        if block is not None and [id(one) for one in batch] == block.ids:
            return block.batch
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return]

    return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: tensors})


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return memory that torch's workers send without a copy; in the training process, ordinary memory."""
    if torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    like = torch.empty((), dtype=dtype)
    num = 1
    for length in shape:
        num *= length
    storage = torch.UntypedStorage._new_shared(num * like.element_size())  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload,no-any-return]
