"""Memory for batches that worker processes fill too: anonymous files (memfd_create(2)), mapped by both sides.

They have no name and no size limit of a /dev/shm, and the kernel frees them when the last process that maps them is gone.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.kernel.pools import SlabPool

# Locks so many bytes at an address for copies by a device; returns what undoes it. None: that is not possible.
PageLock = Callable[[int, int], "Callable[[], None] | None"]


class Slab(NamedTuple):
    """A piece of shared memory, as other processes are told of it."""

    number: int  # never used again in this process
    descriptor: int
    address: int
    nbytes: int


class SharedSlabPool(SlabPool):
    """A `SlabPool` of shared memory, page-locked if `page_lock` can."""

    def __init__(self, nbytes: int, *, max_free: int, page_lock: PageLock | None = None) -> None:
        super().__init__(nbytes, max_free=max_free)
        self._page_lock = page_lock

    def _allocate(self) -> NDArray[np.uint8]:
        descriptor = os.memfd_create("datapipe-batch", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, self.nbytes)
        memory = np.frombuffer(mmap.mmap(descriptor, self.nbytes), np.uint8)
        slab = Slab(next(_numbers), descriptor, memory.__array_interface__["data"][0], self.nbytes)
        unlock = None if self._page_lock is None else self._page_lock(slab.address, slab.nbytes)
        _slabs[slab.number] = slab
        weakref.finalize(memory, _forget, slab.number, unlock)
        return memory


_slabs: dict[int, Slab] = {}  # those that this process has; each operation on it is atomic
_numbers = itertools.count()


def slab_of(tensor: torch.Tensor) -> tuple[Slab, int]:
    """Return the slab in which a tensor lies, and its offset in bytes. Raises LookupError for other memory."""
    address = tensor.data_ptr()
    for slab in list(_slabs.values()):
        if slab.address <= address < slab.address + slab.nbytes:
            return slab, address - slab.address
    raise LookupError("the tensor lies in no shared memory")


def exists(number: int) -> bool:
    """Return whether a slab of this process is still there."""
    return number in _slabs


def _forget(number: int, unlock: Callable[[], None] | None) -> None:
    """Called when the last view of a slab has died, before its memory is unmapped."""
    slab = _slabs.pop(number)
    if unlock is not None:
        unlock()
    os.close(slab.descriptor)
