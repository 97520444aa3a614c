"""Put batches together in memory that is used again, and make tensors where their batch will lie, so that none is copied.

In a worker of torch's the memory is lent (`lending`). Only tensors that no other code can reach are made in the batch's memory:
those that only their sample holds, where nothing else holds the sample. Tensors that the user's code keeps have memory of their
own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.data
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from datapipe.deferral.lending import Lent, lend
from datapipe.deferral.recorder import PendingPixels

Held = dict[int, tuple[torch.Tensor, PendingPixels]]  # by id


def _counted_by_asking() -> int:
    """Return how many references `sys.getrefcount(name)` adds itself: 1 for its argument, 0 since Python 3.14, which lends it."""
    probe = object()
    return sys.getrefcount(probe) - 1


COUNTED_BY_ASKING = _counted_by_asking()
# Reference counts where they are read: a name, and what asking counts, besides the holders.
_OF_SAMPLE = 2 + COUNTED_BY_ASKING  # the list of samples
_OF_CONTAINER = 2 + COUNTED_BY_ASKING  # the container around it
_OF_NOBODY = 2 + COUNTED_BY_ASKING  # the fetch
_OF_TENSOR = 3 + COUNTED_BY_ASKING  # the container and the fetch


@dataclass(slots=True)
class Block:
    """A place of the batch, and the samples' tensors for it, which are recognised when samples are collated."""

    ids: list[int]  # of the tensors; empty if nothing must be taken for them any more
    batch: Any  # the place of the batch, as it is sent
    rows: dict[int, torch.Tensor] = field(default_factory=dict)  # memory for their values, by id; of images left to DALI, none
    is_taken: bool = False  # whether the collated batch has it


def block_of_rows(tensors: Sequence[torch.Tensor]) -> Block:
    """Return memory of a batch, (n, ...), of which the tensors are to be the rows."""
    shape, dtype, ids = (len(tensors), *tensors[0].shape), tensors[0].dtype, [id(tensor) for tensor in tensors]
    loan = lend(shape, dtype) if _is_in_worker() else None
    memory = _empty(shape, dtype) if loan is None else loan.tensor
    return Block(ids, memory if loan is None else loan, dict(zip(ids, memory.unbind(), strict=True)))


def places_of(samples: list[Any], held: Held) -> list[list[torch.Tensor]]:
    """Return the tensors of each place in the samples at which all of them hold one, of one shape, that is theirs alone."""
    if not samples or not held:
        return []
    places: list[list[tuple[Any, int]]] = []
    for number in range(len(samples)):
        there = _tensors_of(samples, number, held)
        if there is None:
            return []
        places.append(there)
    first = [place for place, _ in places[0]]
    if any([place for place, _ in others] != first for others in places):
        return []
    found = [[held[others[number][1]][0] for others in places] for number in range(len(first))]
    return [tensors for tensors in found if _are_alike(tensors)]


def _are_alike(tensors: Sequence[torch.Tensor]) -> bool:
    like = tensors[0]
    return all(one.shape == like.shape and one.dtype is like.dtype for one in tensors)


def holds_its_tensors(samples: list[Any], held: Held, number: int) -> bool:
    """Return whether the last sample, of that number, alone holds what it recorded. Forgets tensors that nobody holds."""
    dead, num_alive, tensor = [], 0, None
    for key, (tensor, pending) in reversed(held.items()):
        if pending.sample != number:
            break
        if sys.getrefcount(tensor) <= _OF_NOBODY:
            dead.append(key)
        else:
            num_alive += 1
    del tensor  # which is counted below
    for key in dead:
        del held[key]
    return num_alive == 0 or num_alive == len(_tensors_of(samples, len(samples) - 1, held) or ())


def _tensors_of(samples: list[Any], number: int, held: Held) -> list[tuple[Any, int]] | None:
    """The places and ids of the stand-ins that a sample alone holds; None where somebody else holds the sample."""
    sample = samples[number]
    if id(sample) in held:
        return None if sys.getrefcount(sample) > _OF_TENSOR else [((), id(sample))]
    return None if sys.getrefcount(sample) > _OF_SAMPLE else _tensors_in(sample, (), held)


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
    """Return what `default_collate` returns for samples whose tensors may be rows of blocks; in a worker, loans for tensors."""
    is_in_worker = _is_in_worker()
    if not blocks and not is_in_worker:
        return torch.utils.data.default_collate(samples)
    by_first = {block.ids[0]: block for block in blocks if block.ids}

    def tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        block = by_first.get(id(batch[0]))
        if block is not None and [id(one) for one in batch] == block.ids:
            block.is_taken = True
            return block.batch
        loan = _stacked(batch) if is_in_worker else None
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map) if loan is None else loan

    return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: tensors})


def _stacked(batch: Sequence[torch.Tensor]) -> Lent | None:
    """Tensors that are all alike, stacked in lent memory; None for others, and where none is lent."""
    first = batch[0]
    if not all(
        type(one) is torch.Tensor
        and one.layout is torch.strided
        and one.device.type == "cpu"
        and one.dtype is first.dtype
        and one.shape == first.shape
        and not (one.requires_grad or one.is_nested or one.is_quantized or one.is_conj() or one.is_neg())
        for one in batch
    ):
        return None
    loan = lend((len(batch), *first.shape), first.dtype)
    if loan is not None:
        torch.stack(tuple(batch), out=loan.tensor)
    return loan


def _is_in_worker() -> bool:
    return torch.utils.data.get_worker_info() is not None


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return memory that torch's workers send without a copy; in the training process, ordinary memory."""
    if not _is_in_worker():
        return torch.empty(shape, dtype=dtype)
    storage = torch.UntypedStorage._new_shared(math.prod(shape) * dtype.itemsize)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload,no-any-return]
