"""The little of CUDA that moving batches needs, and its implementation on torch.

None of these operations waits for the device. Whoever uses them through `DeviceRuntime` cannot either:
there is nothing here to wait with.
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
from datapipe.errors import BackendError, OptionError

_CAPTURE_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of cuda.h

Stream: TypeAlias = Any  # the runtime's own kind: torch.cuda.Stream
Event: TypeAlias = Any  # torch.cuda.Event


class DeviceRuntime(Protocol):
    """What is asked of a device. Thread-safe; every method returns without waiting for the device."""

    @property
    def device(self) -> torch.device:
        """As tensors on it give it."""

    @property
    def pending(self) -> Pending:
        """What must outlive operations under way; the same for all who use this device."""

    def new_stream(self) -> Stream: ...

    def current_stream(self) -> Stream:
        """The stream to which the calling thread's operations go."""

    def enter_thread(self) -> None:
        """Make the calling thread one that works on this device, for the rest of its life."""

    def under(self, stream: Stream) -> AbstractContextManager[None]:
        """Let the calling thread's operations go to that stream meanwhile."""

    def record_event(self, stream: Stream) -> Event:
        """An event that happens once the stream has done what was given to it so far."""

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Let what is given to the stream from now on begin only after the event."""

    def is_done(self, event: Event) -> bool: ...

    def copy_in(self, host: torch.Tensor) -> torch.Tensor:
        """A tensor on the device, of the same strides, that the current stream fills from `host`.

        `host`: dense (its elements fill its memory, in whatever order) and in page-locked memory, and left alone
        until the stream has come past.
        """

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Let the tensor's memory, once freed, not be used again before the stream has come past that moment."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor in host memory lies in page-locked memory."""

    def pinned_slabs(self, nbytes: int, *, max_free: int) -> SlabPool:
        """A pool of page-locked slabs."""


class Pending:
    """What must stay alive until events of a device happen. Thread-safe, without a lock.

    A collection may run at any line here, and end an iterator, which waits for its threads; these may be adding.
    """

    def __init__(self, runtime: DeviceRuntime) -> None:
        self._is_done = runtime.is_done
        self._waiting: deque[tuple[Event, list[object]]] = deque()  # append and pop are atomic

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event: Event, things: list[object]) -> None:
        """Hold `things` until a `reap` finds that the event has happened."""
        self._waiting.append((event, things))

    def reap(self) -> None:
        """Let go of what is no longer needed; never waits."""
        for _ in range(len(self._waiting)):
            try:
                entry = self._waiting.popleft()
            except IndexError:  # another thread looks at the others
                return
            if not self._is_done(entry[0]):
                self._waiting.append(entry)


class CudaRuntime:
    """`DeviceRuntime` on torch.cuda. Made by `cuda_runtime`, one per device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pending = Pending(self)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def pending(self) -> Pending:
        return self._pending

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def enter_thread(self) -> None:
        # A thread begins on device 0, and whatever sets that again makes a context there: half a gigabyte.
        torch.cuda.set_device(self._device)
        tolerate_captures()

    @contextmanager
    def under(self, stream: Stream) -> Iterator[None]:
        # The device first. A thread begins on device 0, and leaving `stream` alone would go back there by a call
        # that makes a context, half a gigabyte, on a device this process may have no part in.
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

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(stream)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def pinned_slabs(self, nbytes: int, *, max_free: int) -> SlabPool:
        return SlabPool(nbytes, max_free=max_free, pinned=True)


def tolerate_captures() -> None:
    """Let CUDA calls of the calling thread leave captures of CUDA graphs by other threads alone.

    By default a query of an event from any thread breaks a capture in "global" mode, torch's default (pytorch#104555).
    Raises BackendError where the driver refuses.
    """
    mode = ctypes.c_int(_CAPTURE_THREAD_LOCAL)
    error = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if error:
        raise BackendError(f"CUDA's driver refuses a thread its capture mode (error {error}); see `datapipe doctor`")


@cache
def _cuda_runtime(index: int) -> CudaRuntime:
    return CudaRuntime(torch.device("cuda", index))


def cuda_runtime(device: torch.device) -> CudaRuntime:
    """The runtime of a CUDA device; without an index, of the calling thread's current device.

    To be called in the consumer's thread, at first use: other threads begin on device 0.
    """
    return _cuda_runtime(torch.cuda.current_device() if device.index is None else device.index)


def checked_device(device: str | torch.device) -> torch.device:
    """The CPU or a CUDA device that is there; makes no CUDA context. Raises OptionError for any other."""
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError) as exc:
        raise OptionError(f"device is {device!r}, which torch does not know ({exc}); pass 'cpu', 'cuda' or 'cuda:N'") from exc
    if checked.type == "cpu":
        return checked
    if checked.type != "cuda":
        raise OptionError(f"device is {str(checked)!r}; batches are moved to CUDA devices only: pass 'cuda', 'cuda:N' or 'cpu'")
    if not torch.cuda.is_available():
        raise OptionError(
            f"device is {str(checked)!r}, and torch {torch.__version__} (built for CUDA: {torch.version.cuda or 'no'}) finds no "
            "GPU; pass device='cpu', or install a torch built for CUDA and look at the driver with nvidia-smi"
        )
    num_devices = torch.cuda.device_count()
    if checked.index is not None and checked.index >= num_devices:
        raise OptionError(
            f"device is {str(checked)!r}, and there {'is 1 GPU' if num_devices == 1 else f'are {num_devices} GPUs'}; pass "
            f"'cuda:N' with N below {num_devices}, or 'cuda' for this process's current one"
        )
    return checked
