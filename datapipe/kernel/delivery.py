"""The way of batches to where the user wants them: the memory that they are made in, and the copy to a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from datapipe.core.observe import Observer
from datapipe.kernel.accelerators import accelerator, runtime_of
from datapipe.kernel.device import Uploader
from datapipe.kernel.device_runtime import DeviceRuntime, Stream
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.pools import BatchMemory, SlabPool


@dataclass(frozen=True, slots=True)
class Delivery:
    """The way of a pass's batches to their device. Thread-safe."""

    options: LoaderOptions
    runtime: DeviceRuntime | None  # of the device; None: batches stay in host memory
    uploader: Uploader | None

    @classmethod
    def to(cls, device: torch.device, options: LoaderOptions, observer: Observer, *, stream: Stream | None = None) -> Delivery:
        """Return the way to a device. Call it in the consumer's thread: for a GPU it creates a stream there, unless given one."""
        if device.type == "cpu":
            return cls(options, None, None)
        runtime = runtime_of(device)
        return cls(options, runtime, Uploader(runtime, observer=observer, stream=stream))

    def memory(self, row_shape: tuple[int, ...], *, room: int = 1) -> BatchMemory:
        """Return memory for batches: page-locked if they go to a GPU, or if there is one and the user asks for it."""
        return BatchMemory(row_shape, room=room, open_pool=self._open_pool)

    def deliver(
        self, made: Any, *, step: int, num_samples: int, keep: object = None, then: Callable[[Any], Any] | None = None
    ) -> Any:
        """Return a batch as the user gets it, after `batch_transform`; for a device, a `DeviceTransfer` of it.

        `then`: called with the batch where it is delivered, before `batch_transform`. `keep`: see `Uploader.upload`.
        """
        transform = self.options.batch_transform

        def finish(moved: Any) -> Any:
            found = moved if then is None else then(moved)
            return found if transform is None else transform(found)

        if self.uploader is None:
            return finish(made)
        return self.uploader.upload(made, then=finish, keep=keep, step=step, num_samples=num_samples)

    def _open_pool(self, nbytes: int) -> SlabPool:
        max_free = self.options.depth + 2
        if self.runtime is not None:
            return self.runtime.pinned_slabs(nbytes, max_free=max_free)
        return SlabPool(nbytes, max_free=max_free, pinned=self.options.pin_memory and accelerator() is not None)
