"""Pools: memory for batches, leased rather than shared, and objects that are costly to make.

A slab is lent to one batch. A lease owns the array handed out: every view of it, numpy or torch, keeps the lease alive, and
when the last one dies the slab returns to its pool. So memory is reused without page faults, and nothing that a user still
holds is overwritten.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.printable import size_text
from datapipe.errors import OptionError

T = TypeVar("T")


class ObjectPool(Generic[T]):
    """Lends objects that are costly to make, and serve one thread at a time.

    Thread-safe, without a lock: a garbage collection under one could wait for itself.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []  # append and pop are atomic

    def borrow(self) -> T:
        """Return an object that is the borrower's alone until it is given back, or for ever."""
        try:
            return self._free.pop()
        except IndexError:
            return self._make()

    def give_back(self, thing: T) -> None:
        """Make the object available again."""
        self._free.append(thing)


class SlabPool:
    """A pool that lends slabs of one size. Thread-safe; grows as needed and keeps at most `max_free` unused slabs.

    `pinned`: page-locked memory, which a GPU copies from without waiting.
    """

    def __init__(self, nbytes: int, *, max_free: int, pinned: bool = False) -> None:
        self.nbytes = nbytes
        self._pinned = pinned
        self._free: deque[LeaseEnd] = deque(maxlen=max_free)  # append and pop are atomic: leases end in any thread

    def lease(self) -> NDArray[np.uint8]:
        """Return (nbytes,) uint8, uninitialised; it belongs to the caller until the last view of it dies."""
        try:
            slab = self._free.pop().held
        except IndexError:
            slab = self._allocate()
        return leased(slab, self._free, slab)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def _allocate(self) -> NDArray[np.uint8]:
        if self._pinned:
            pinned: NDArray[np.uint8] = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True).numpy()
            return pinned
        try:
            return np.empty(self.nbytes, np.uint8)
        except (MemoryError, ValueError) as exc:  # ValueError: more than an address can say
            raise OptionError(
                f"a batch takes {size_text(self.nbytes)}, and there is no such memory; make batches smaller"
            ) from exc


def leased(memory: NDArray[np.uint8], ended: deque[LeaseEnd], held: Any) -> NDArray[np.uint8]:
    """Return a view of `memory` whose lease ends when the last view made of it dies: its end, with `held`, is then in `ended`."""
    return np.asarray(_Lease(memory, ended, held))


class _Lease:
    """Owns memory for as long as an array made from it lives.

    A weak reference's callback, implemented entirely in C, notes the end. In a finaliser written in Python, a Ctrl-C
    handled there would be lost, and a training loop drops a batch at every step.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_end")

    def __init__(self, memory: NDArray[np.uint8], ended: deque[LeaseEnd], held: Any) -> None:
        self.__array_interface__: dict[str, Any] = memory.__array_interface__
        self._end = LeaseEnd(self, ended.append)
        self._end.held = held


class LeaseEnd(weakref.ref["_Lease"]):
    """A reference to a lease that holds what becomes of its memory when it ends."""

    __slots__ = ("held",)

    held: Any


class BatchMemory:
    """Leases memory for batches of rows of one shape. Thread-safe, without a lock: two pools made at once do no harm.

    `row_shape`: of each row, such as (height, width, 3). `room`: rows to allocate for at least. `open_pool(nbytes)`: returns
    a pool of slabs of that size.
    """

    def __init__(self, row_shape: tuple[int, ...], *, room: int = 1, open_pool: Callable[[int], SlabPool]) -> None:
        self.row_shape = row_shape
        self._room = room
        self._open_pool = open_pool
        self._pools: dict[torch.dtype, SlabPool] = {}

    def lease(self, num_rows: int, dtype: torch.dtype, *, room: int = 0) -> torch.Tensor:
        """Return (num_rows, *row_shape), uninitialised, the caller's until its last view is freed. `room`: as for the class."""
        row_nbytes = math.prod(self.row_shape) * dtype.itemsize
        nbytes = max(num_rows, room, self._room) * row_nbytes
        pool = self._pools.get(dtype)
        if pool is None or pool.nbytes < nbytes:  # a batch sampler gave a batch larger than all before
            pool = self._pools[dtype] = self._open_pool(nbytes)
        return torch.from_numpy(pool.lease()[: num_rows * row_nbytes]).view(dtype).view(num_rows, *self.row_shape)
