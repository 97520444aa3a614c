"""CUDA's own streams, events and captures, where torch.accelerator does not say the same."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import torch

from datapipe.errors import BackendError
from datapipe.kernel.device_runtime import AcceleratorRuntime, DeviceRuntime, Event, Stream

_CAPTURE_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of cuda.h


class CudaDevice(DeviceRuntime, Protocol):
    """A `DeviceRuntime` whose memory other libraries of CUDA share, and whose streams have an address, `cuda_stream`."""

    def adopt(self, memory: Any) -> torch.Tensor:
        """Return a uint8 tensor over device memory of another library, which the tensor keeps.

        `memory`: has `__cuda_array_interface__`. Nothing is copied, and no stream waits for what fills the memory.
        """


class CudaRuntime(AcceleratorRuntime):
    """`CudaDevice` by torch.cuda: NVIDIA's GPUs and, in a torch for ROCm, AMD's. Made by `cuda_runtime`, one per device.

    A thread starts on device 0, and setting device 0 again creates a context there, of half a gigabyte, on a device that this
    process may not use. Unlike torch.cuda.Event, torch.Event does so when it is recorded, waited for or freed by a thread
    that has not set its device (`CUDAGuardImpl.h` of torch).
    """

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def enter_thread(self) -> None:
        torch.cuda.set_device(self.device)
        tolerate_captures()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        with torch.cuda.device(self.device):
            yield

    @contextmanager
    def under(self, stream: Stream) -> Iterator[None]:
        with self.on_device(), torch.cuda.stream(stream):  # the device first: leaving the stream sets the device before it
            yield

    def record_event(self, stream: Stream) -> Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def free_nbytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[0])

    def adopt(self, memory: Any) -> torch.Tensor:
        return torch.as_tensor(memory, device=self.device).view(torch.uint8)


@cache
def _cuda_runtime(index: int) -> CudaRuntime:
    return CudaRuntime(torch.device("cuda", index))


def cuda_runtime(device: torch.device) -> CudaRuntime:
    """Return the runtime of a CUDA device; without an index, of the calling thread's current device.

    Call it in the consumer's thread, at first use: other threads start on device 0.
    """
    return _cuda_runtime(torch.cuda.current_device() if device.index is None else device.index)


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
