"""Lease memory for the images of batches."""

from __future__ import annotations

from collections.abc import Callable

import torch

from datapipe.backends.slabs import SlabPool


class BatchMemory:
    """Leases memory for batches of images of one size. Thread-safe, without a lock: two pools made at once do no harm.

    `size`: (height, width) pixels. `open_pool(nbytes)`: returns a pool of slabs of that size.
    """

    def __init__(self, size: tuple[int, int], *, batch_size: int, open_pool: Callable[[int], SlabPool]) -> None:
        self.size = size
        self._batch_size = batch_size
        self._open_pool = open_pool
        self._pools: dict[torch.dtype, SlabPool] = {}

    def lease(self, num_images: int, dtype: torch.dtype) -> torch.Tensor:
        """Return (num_images, height, width, 3), uninitialised, the caller's until its last view is freed."""
        height, width = self.size
        image_nbytes = 3 * height * width * dtype.itemsize
        nbytes = max(num_images, self._batch_size) * image_nbytes
        pool = self._pools.get(dtype)
        if pool is None or pool.nbytes < nbytes:  # a batch sampler gave a batch larger than all before
            pool = self._pools[dtype] = self._open_pool(nbytes)
        return torch.from_numpy(pool.lease()[: num_images * image_nbytes]).view(dtype).view(num_images, height, width, 3)
