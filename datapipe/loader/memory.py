"""Memory for the images of batches."""

from __future__ import annotations

import threading

import torch

from datapipe.backends.slabs import SlabPool


class BatchMemory:
    """Leases room for batches of images of one size. Thread-safe.

    `size`: (height, width) pixels. `max_free`: slabs kept while unused. `pinned`: page-locked, for a GPU to copy from.
    """

    def __init__(self, size: tuple[int, int], *, batch_size: int, max_free: int, pinned: bool) -> None:
        self.size = size
        self._batch_size = batch_size
        self._max_free = max_free
        self._pinned = pinned
        self._pools: dict[torch.dtype, SlabPool] = {}
        self._lock = threading.Lock()

    def lease(self, num_images: int, dtype: torch.dtype) -> torch.Tensor:
        """(num_images, height, width, 3), uninitialised, the caller's until the last view of it dies."""
        height, width = self.size
        image_nbytes = 3 * height * width * dtype.itemsize
        nbytes = max(num_images, self._batch_size) * image_nbytes
        with self._lock:
            pool = self._pools.get(dtype)
            if pool is None or pool.nbytes < nbytes:  # a batch sampler gave a larger batch than all before
                pool = self._pools[dtype] = SlabPool(nbytes, max_free=self._max_free, pinned=self._pinned)
        return torch.from_numpy(pool.lease()[: num_images * image_nbytes]).view(dtype).view(num_images, height, width, 3)
