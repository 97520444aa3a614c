"""The part of CUDA that moving batches needs, and its implementation on torch.

No operation of `DeviceRuntime` waits for the device, so its users cannot wait either.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Protocol, TypeAlias

import torch

from datapipe.backends.slabs import SlabPool
from datapipe.core.errors import BackendError, OptionError

_CAPTURE_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of cuda.h

Stream: TypeAlias = Any  # the runtime's own kind: torch.cuda.Stream
Event: TypeAlias = Any  # torch.cuda.Event


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

    def adopt(self, memory: Any) -> torch.Tensor:
        """Return a uint8 tensor over device memory of another library, which the tensor keeps.

        `memory`: has `__cuda_array_interface__`. Nothing is copied, and no stream waits for what fills the memory.
        """

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Prevent reuse of the tensor's memory, once freed, until the stream has completed the work queued before that moment."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor in host memory is page-locked."""

    def pinned_slabs(self, nbytes: int, *, max_free: int) -> SlabPool:
        """Return a pool of page-locked slabs."""


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


class CudaRuntime:
    """`DeviceRuntime` on torch.cuda. Made by `cuda_runtime`, one per device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pending = KeepAlive(self)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def pending(self) -> KeepAlive:
        return self._pending

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def enter_thread(self) -> None:
        # A thread starts on device 0, and setting device 0 again creates a context there, of half a gigabyte.
        torch.cuda.set_device(self._device)
        tolerate_captures()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        with torch.cuda.device(self._device):
            yield

    @contextmanager
    def under(self, stream: Stream) -> Iterator[None]:
        # The device first: a thread starts on device 0, and leaving `stream` alone would return there with a call that
        # creates a context, of half a gigabyte, on a device that this process may not use.
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            yield

    def record_event(self, stream: Stream) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def wait_event(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def is_done(self, event: Event) -> bool:
        return bool(event.query())

    def copy_in(self, host: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=self._device)
        return made.copy_(host, non_blocking=True)

    def adopt(self, memory: Any) -> torch.Tensor:
        return torch.as_tensor(memory, device=self._device).view(torch.uint8)

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(stream)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def pinned_slabs(self, nbytes: int, *, max_free: int) -> SlabPool:
        return SlabPool(nbytes, max_free=max_free, pinned=True)


def tolerate_captures() -> None:
    """Keep CUDA calls of the calling thread from breaking captures of CUDA graphs by other threads.

    By default a query of an event from any thread breaks a capture in "global" mode, torch's default (pytorch#104555).
    A torch for ROCm has no driver of CUDA's, and nothing is done. Raises BackendError if the driver refuses.
    """
    if torch.version.cuda is None:
        return
    mode = ctypes.c_int(_CAPTURE_THREAD_LOCAL)
    error = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if error:
        raise BackendError(f"CUDA's driver refuses to set a thread's capture mode (error {error}); see `datapipe doctor`")


@cache
def _cuda_runtime(index: int) -> CudaRuntime:
    return CudaRuntime(torch.device("cuda", index))


def cuda_runtime(device: torch.device) -> CudaRuntime:
    """Return the runtime of a CUDA device; without an index, of the calling thread's current device.

    Call it in the consumer's thread, at first use: other threads start on device 0.
    """
    return _cuda_runtime(torch.cuda.current_device() if device.index is None else device.index)


def checked_device(device: str | torch.device) -> torch.device:
    """Return the CPU or an available CUDA device; creates no CUDA context. Raises OptionError for any other."""
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError) as exc:
        raise OptionError(f"device is {device!r}, which torch does not accept ({exc}); pass 'cpu', 'cuda' or 'cuda:N'") from exc
    if checked.type == "cpu":
        return checked
    if checked.type != "cuda":
        raise OptionError(f"device is {str(checked)!r}; batches are moved to CUDA devices only: pass 'cuda', 'cuda:N' or 'cpu'")
    if not torch.cuda.is_available():
        raise OptionError(
            f"device is {str(checked)!r}, but torch {torch.__version__} (built for CUDA: {torch.version.cuda or 'no'}) finds no "
            "GPU; pass device='cpu', or install a torch built for CUDA and check the driver with nvidia-smi"
        )
    num_devices = torch.cuda.device_count()
    if checked.index is not None and checked.index >= num_devices:
        raise OptionError(
            f"device is {str(checked)!r}, but there {'is 1 GPU' if num_devices == 1 else f'are {num_devices} GPUs'}; pass "
            f"'cuda:N' with N below {num_devices}, or 'cuda' for this process's current one"
        )
    return checked
