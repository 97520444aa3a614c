"""The operations of an accelerator that moving batches needs, and their implementation on torch for any accelerator.

No operation of `DeviceRuntime` waits for the device, so its users cannot wait either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias

import torch

from datapipe.kernel.pools import SlabPool

Stream: TypeAlias = Any  # the runtime's own kind, such as torch.Stream
Event: TypeAlias = Any  # such as torch.Event


class DeviceRuntime(Protocol):
    """The operations needed of a device. Thread-safe; every method returns without waiting for the device."""

    @property
    def device(self) -> torch.device:
        """The device, in the form that its tensors report."""

    @property
    def pending(self) -> KeepAlive:
        """The objects that must outlive running operations; shared by all users of this device."""

    def new_stream(self) -> Stream: ...

    def current_stream(self) -> Stream:
        """Return the stream of the calling thread's operations."""

    def enter_thread(self) -> None:
        """Make this the calling thread's device for the rest of the thread's life."""

    def on_device(self) -> AbstractContextManager[None]:
        """Make this the calling thread's device within the context."""

    def under(self, stream: Stream) -> AbstractContextManager[None]:
        """Make `stream` the calling thread's current stream within the context."""

    def record_event(self, stream: Stream) -> Event:
        """Return an event that completes when the stream has finished the work queued so far."""

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Make later work on the stream start only after the event."""

    def is_done(self, event: Event) -> bool: ...

    def copy_in(self, host: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device, with the same strides, that the current stream fills from `host`.

        `host`: dense (its elements fill its memory, in any order), in page-locked memory, and not written until the stream has
        completed the copy.
        """

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Prevent reuse of the tensor's memory, once freed, until the stream has completed the work queued before that moment."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor in host memory is page-locked."""

    def pinned_slabs(self, nbytes: int, *, max_free: int) -> SlabPool:
        """Return a pool of page-locked slabs."""

    def free_nbytes(self) -> int | None:
        """Return the bytes of the device's memory that nobody has allocated; None if torch does not know."""


class KeepAlive:
    """Objects that must stay alive until events of a device complete. Thread-safe, without a lock.

    A garbage collection may run at any line here and end an iterator, which waits for its threads, and these may be adding.
    So a lock could deadlock.
    """

    def __init__(self, runtime: DeviceRuntime) -> None:
        self._runtime = runtime
        self._waiting: deque[tuple[Event, list[object]]] = deque()  # append and pop are atomic

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event: Event, things: list[object]) -> None:
        """Hold `things` until a `reap` finds that the event has completed."""
        self._waiting.append((event, things))

    def reap(self) -> None:
        """Release what is no longer needed; never waits."""
        over = deque(self._ended())
        if over:  # freeing RMM's memory ends on the thread's device, where that creates a context, of half a gigabyte
            with self._runtime.on_device():
                over.clear()

    def _ended(self) -> Iterator[object]:
        """Remove the entries whose events have completed, and yield them."""
        for _ in range(len(self._waiting)):
            try:
                entry = self._waiting.popleft()
            except IndexError:  # another thread examines the others
                return
            if self._runtime.is_done(entry[0]):
                yield entry
            else:
                self._waiting.append(entry)


class AcceleratorRuntime:
    """`DeviceRuntime` by torch.accelerator, torch.Stream and torch.Event. Made by `accelerators.runtime_of`, one per device.

    `device`: with its index. Needs torch 2.11 or later.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pending = KeepAlive(self)

    def new_stream(self) -> Stream:
        return torch.Stream(self.device)

    def current_stream(self) -> Stream:
        return torch.accelerator.current_stream(self.device)

    def enter_thread(self) -> None:
        torch.accelerator.set_device_index(self.device)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        with torch.accelerator.device_index(self.device.index):
            yield

    @contextmanager
    def under(self, stream: Stream) -> Iterator[None]:
        with self.on_device(), stream:
            yield

    def record_event(self, stream: Stream) -> Event:
        event = torch.Event(self.device)
        event.record(stream)
        return event

    def wait_event(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def is_done(self, event: Event) -> bool:
        return bool(event.query())

    def copy_in(self, host: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=self.device)
        return made.copy_(host, non_blocking=True)

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(stream)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def pinned_slabs(self, nbytes: int, *, max_free: int) -> SlabPool:
        return SlabPool(nbytes, max_free=max_free, pinned=True)

    def free_nbytes(self) -> int | None:
        try:
            return int(torch.accelerator.get_memory_info(self.device)[0])
        except NotImplementedError:
            return None
