"""Shared memory that a worker lends to the training process with a batch, and uses again once nobody holds the batch.

torch's workers make fresh shared memory for each batch, which costs the kernel more than filling it does: every page is
found, cleared, mapped in both processes and given back. Here a worker keeps its blocks. The last page of a block says who has
it. The training process maps a block once, when it first comes, and owns it through a lease: every view of the batch keeps
the lease alive, and when the last one dies the worker may have the block again. So nothing that somebody holds is overwritten.

A fork of the training process gives the child a view of what is lent at that time. Such blocks never go back: the worker lets
go of them, and makes others.

Where shared memory is scarce, as the 64 MB that Docker gives a container, a block takes none of its last quarter, which is left
to torch. Tensors that find no room go through the worker's pipe instead, and the training process warns.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import warnings
from collections import deque
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.environment import shared_memory
from datapipe.kernel.pools import LeaseEnd, leased

MIN_NBYTES = 64 << 10  # what is smaller torch sends by itself
_MOST_BLOCKS = 64  # of a worker: some batches of ten tensors each; what is lent beyond them is memory of torch's own
_PAGE = 4096
_FREE, _LENT, _GONE = 0, 1, 2  # a block's state: the worker lends, the training process returns it or lets nobody have it


class _Place(NamedTuple):
    """Which block of which worker."""

    lender: bytes
    process: int
    slot: int


# -- in a worker ------------------------------------------------------------------------------------


class _Block:
    """Shared memory of a worker's, with a page behind it whose first byte is its state."""

    def __init__(self, slot: int, nbytes: int) -> None:
        self.slot, self.nbytes = slot, nbytes
        self.storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(nbytes + _PAGE)  # type: ignore[no-untyped-call]
        self.state = _bytes_of(self.storage)[nbytes : nbytes + 1]
        self.state[0] = _FREE
        self.is_mapped = False  # whether the training process is known to have it
        self.was_sent = False


class Loan:
    """A block on its way: goes back to the worker at once unless it is sent."""

    def __init__(self, block: _Block, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._block, self._shape, self._dtype = block, shape, dtype
        self.tensor = torch.empty(0, dtype=dtype).set_(block.storage, 0, shape)  # type: ignore[call-overload]
        self._is_sent = False
        block.state[0] = _LENT

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as what comes out as a tensor in the training process."""
        block = self._block
        self._is_sent = block.was_sent = True
        storage = None if block.is_mapped else block.storage
        return _received, (_Place(_lender.name, os.getpid(), block.slot), storage, self._shape, self._dtype)

    def __del__(self) -> None:
        if not self._is_sent:
            self._block.state[0] = _FREE


class Parcel:
    """A tensor on its way through the worker's pipe, where shared memory has no room for it."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.tensor = torch.empty(shape, dtype=dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as what comes out as a tensor in the training process."""
        values = self.tensor.reshape(-1).view(torch.uint8).numpy()
        return _unpacked, (values, tuple(self.tensor.shape), self.tensor.dtype)


Lent: TypeAlias = Loan | Parcel


class Lender:
    """A worker's blocks."""

    def __init__(self) -> None:
        self.name = secrets.token_bytes(8)  # process ids come again
        self._blocks: dict[int, _Block] = {}

    def lend(self, shape: tuple[int, ...], dtype: torch.dtype) -> Lent | None:
        """Return memory for a contiguous tensor; None where as many blocks are lent as a worker may have."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        free: list[_Block] = []
        for block in list(self._blocks.values()):
            state = block.state[0]
            if state == _GONE:
                del self._blocks[block.slot]
            elif state == _FREE:
                block.is_mapped = block.was_sent
                free.append(block)
        fitting = [block for block in free if nbytes <= block.nbytes <= 2 * nbytes]
        if fitting:
            return Loan(min(fitting, key=lambda one: one.nbytes), shape, dtype)
        if not _has_room(nbytes):
            return Parcel(shape, dtype)
        made = self._make(nbytes, free)
        return None if made is None else Loan(made, shape, dtype)

    def _make(self, nbytes: int, free: list[_Block]) -> _Block | None:
        slots = set(range(_MOST_BLOCKS)) - self._blocks.keys()
        if not slots and not free:
            return None
        slot = min(slots) if slots else free[0].slot  # the training process forgets what it had under this number
        self._blocks[slot] = block = _Block(slot, -(-nbytes // _PAGE) * _PAGE)
        return block


def _has_room(nbytes: int) -> bool:
    """Return whether shared memory has room for so many bytes without its last quarter."""
    found = shared_memory()
    return found is None or nbytes <= found.free_nbytes - found.total_nbytes // 4


def _bytes_of(storage: torch.UntypedStorage) -> NDArray[np.uint8]:
    tensor: torch.Tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
    return tensor.numpy()


def lend(shape: tuple[int, ...], dtype: torch.dtype) -> Lent | None:
    """Return memory of this worker's for a contiguous tensor of a batch; None for small ones, and where too many are lent."""
    if int(np.prod(shape, dtype=np.int64)) * dtype.itemsize < MIN_NBYTES:
        return None
    return _lender.lend(shape, dtype)


# -- in the training process ------------------------------------------------------------------------


class _LendingWorker(NamedTuple):
    """A worker whose blocks are mapped here."""

    process: int
    blocks: dict[int, NDArray[np.uint8]]  # by slot


class _Ended(NamedTuple):
    """What is to be done once a lease has ended."""

    worker: _LendingWorker
    slot: int
    whole: NDArray[np.uint8]  # the block and the page of its state
    num_forks: int  # when the lease began

    def settle(self, num_forks: int) -> None:
        """Let the worker have the block again, or let go of it where a child of a later fork may look at it."""
        state = _FREE
        if num_forks != self.num_forks:
            state = _GONE
            if self.worker.blocks.get(self.slot) is self.whole:
                del self.worker.blocks[self.slot]
        self.whole[-_PAGE] = state


class _Borrowed:
    """The blocks of all workers of this process."""

    def __init__(self) -> None:
        self.workers: dict[bytes, _LendingWorker] = {}
        self.ended: deque[LeaseEnd] = deque()
        self.num_forks = 0

    def receive(self, place: _Place, storage: torch.UntypedStorage | None, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a batch's tensor. `storage`: the block itself, when it comes for the first time."""
        name, process, slot = place
        self.settle()
        worker = self.workers.get(name)
        if worker is None:
            self.forget_ended_workers()
            worker = self.workers[name] = _LendingWorker(process, {})
        if storage is not None:
            worker.blocks[slot] = _bytes_of(storage)
        whole = worker.blocks[slot]
        memory = leased(whole[:-_PAGE], self.ended, _Ended(worker, slot, whole, self.num_forks))
        borrowed = torch.from_numpy(memory).untyped_storage()
        return torch.empty(0, dtype=dtype).set_(borrowed, 0, shape)  # type: ignore[call-overload,no-any-return]

    def settle(self) -> None:
        """Return the blocks whose leases have ended."""
        while self.ended:
            try:
                done = self.ended.popleft()
            except IndexError:  # another thread took it
                return
            done.held.settle(self.num_forks)

    def forget_ended_workers(self) -> None:
        alive = {child.pid for child in multiprocessing.active_children()}
        for name in [name for name, worker in list(self.workers.items()) if worker.process not in alive]:
            self.workers.pop(name, None)


_lender, _borrowed = Lender(), _Borrowed()


def _note_fork() -> None:
    _borrowed.num_forks += 1


def _begin_again() -> None:
    """In a forked child: what was borrowed is the parent's to return, and what is lent is the child's own."""
    global _lender, _borrowed
    _lender, _borrowed = Lender(), _Borrowed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_fork, after_in_child=_begin_again)


def _received(*about: Any) -> torch.Tensor:
    return _borrowed.receive(*about)


def _unpacked(values: NDArray[np.uint8], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a batch's tensor that came through the pipe."""
    warnings.warn(
        "shared memory (/dev/shm) has no room left for batches, so workers send some through pipes, which takes more CPU time; "
        "give it more (docker run --shm-size=8g), or take fewer workers or a smaller prefetch_factor",
        stacklevel=2,
    )
    return torch.empty(0, dtype=dtype).set_(torch.from_numpy(values).untyped_storage(), 0, shape)  # type: ignore[call-overload,no-any-return]


def settle() -> None:
    """Let workers have the blocks again that nobody holds any more."""
    _borrowed.settle()


def forget_ended_workers() -> None:
    """Unmap the blocks of workers that have ended. What is still held stays mapped."""
    _borrowed.forget_ended_workers()
