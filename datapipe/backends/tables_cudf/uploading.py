"""Copy small arrays of the host to a device on the current stream: row numbers, vocabularies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.backends.device_runtime import DeviceRuntime
from datapipe.backends.slabs import SlabPool


class PinnedUploads:
    """Copies arrays by way of page-locked memory. Thread-safe, without a lock: two pools made at once do no harm."""

    def __init__(self, runtime: DeviceRuntime, *, max_free: int) -> None:
        self._runtime = runtime
        self._max_free = max_free
        self._pool: SlabPool | None = None

    def to_device(self, values: NDArray[Any], kept: list[object]) -> torch.Tensor:
        """Return the values on the device, which the current stream copies. `kept` must live until that stream has done so."""
        nbytes = max(values.nbytes, 1)
        pool = self._pool
        if pool is None or pool.nbytes < nbytes:
            pool = self._pool = self._runtime.pinned_slabs(1 << (nbytes - 1).bit_length(), max_free=self._max_free)
        slab = pool.lease()
        host = torch.from_numpy(slab[: values.nbytes].view(values.dtype))
        np.copyto(host.numpy(), values)
        kept.append(host)
        return self._runtime.copy_in(host)
