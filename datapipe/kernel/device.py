"""Move batches from host memory to the device without blocking the host.

An upload runs on its own copy stream and ends in an event. The consumer's stream waits for that event; the consumer itself
does not. The order that makes this safe:

1. a copy reads page-locked memory only: pageable tensors are staged in pinned slabs first;
2. what a copy reads stays alive until the upload's event, polled without waiting, has completed;
3. the consumer's stream waits for the event before anything on it touches the batch;
4. the batch's memory, which belongs to the copy stream, is marked as used by the consumer's stream, so that it is not
   reused while that stream still reads it.

Neither the copy stream nor the host ever waits for the consumer's stream, with one exception: for tensors already on the
device, the copy stream waits for the stream that made them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from datapipe.core.observe import Observer, Stage, StageEvent, null_observer
from datapipe.errors import LifecycleError, OptionError
from datapipe.kernel.device_runtime import DeviceRuntime, Event, Stream
from datapipe.kernel.pools import SlabPool
from datapipe.kernel.pytree import map_nest, tensors_of

_ALIGNMENT = 256  # bytes, of a tensor within a slab


class DeviceTransfer:
    """A batch on its way to the device."""

    __slots__ = ("_event", "_nest", "_runtime", "_tensors")

    def __init__(self, nest: Any, tensors: list[torch.Tensor], event: Event, runtime: DeviceRuntime) -> None:
        self._nest, self._tensors, self._event, self._runtime = nest, tensors, event, runtime

    def wait(self) -> None:
        """Return at once: nothing is left to do on the host."""

    def hand_over(self) -> Any:
        """Return the batch for the calling thread's current stream, which waits for it; the host does not wait.

        May be called once: raises LifecycleError the second time. An arrival may also be dropped; its copies then still complete.
        """
        if self._event is None:
            raise LifecycleError("this batch was already handed over; keep the result of the first call")
        stream = self._runtime.current_stream()
        self._runtime.wait_event(stream, self._event)
        for tensor in self._tensors:
            self._runtime.record_stream(tensor, stream)
        nest = self._nest
        self._nest = self._event = None
        self._tensors = []
        self._runtime.pending.reap()
        return nest


class Uploader:
    """Moves batches to a device on a copy stream. Thread-safe; create it in the thread that consumes the batches.

    `stream`: the copy stream; None: a new one. `max_free`: number of unused pinned staging slabs to keep. A slab holds the
    pageable tensors of one batch; there are as many as batches whose copy is not known to have completed.
    """

    def __init__(
        self, runtime: DeviceRuntime, *, observer: Observer = null_observer, stream: Stream | None = None, max_free: int = 4
    ) -> None:
        self.observer = observer
        self._runtime = runtime
        self.stream: Stream = runtime.new_stream() if stream is None else stream
        self._max_free = max_free
        self._pool: SlabPool | None = None

    def upload(
        self,
        nest: Any,
        *,
        then: Callable[[Any], Any] | None = None,
        keep: object = None,
        step: int = 0,
        num_samples: int = 0,
    ) -> DeviceTransfer:
        """Start to move a batch; return once the copies are queued. `nest` may then be dropped.

        Tensors in host memory are copied, with their strides if they are dense, as `Tensor.to` would: page-locked ones directly
        (so do not write to them any more), others through a pinned slab. Objects with their own
        `.to(device, non_blocking=...)` are moved by it. Tensors on the device pass through; the copy stream waits for the
        work queued so far on the calling thread's current stream. Everything else passes through.

        `then`: called with the moved nest under the copy stream; must leave its result's tensors where `tensors_of` finds
        them, and not use them on other streams. `keep`: held until the device has finished with this batch. `step`,
        `num_samples`: passed to the observer. Raises OptionError for tensors that are sparse, quantised or on another device,
        and what `then` raises.
        """
        start_ns = time.perf_counter_ns()
        runtime, stream = self._runtime, self.stream
        runtime.pending.reap()
        passage = _Passage(runtime, stream, self._lease)
        passage.kept.append(keep)
        try:
            with runtime.under(stream):
                moved = map_nest(nest, passage.move, passage.let_move)
                result = moved if then is None else then(moved)
        finally:  # also after an error, since copies may be in progress
            event = runtime.record_event(stream)
            runtime.pending.add(event, passage.kept)
        if passage.staged_nbytes:  # slabs for the next batches are as large as this one needed
            self._grown_pool(passage.staged_nbytes)
        tensors = [tensor for tensor in tensors_of(result) if tensor.device == runtime.device]
        arrival = DeviceTransfer(result, [*tensors, *passage.made_by_others], event, runtime)
        duration_ns = time.perf_counter_ns() - start_ns
        self.observer(StageEvent(Stage.COPY, step, start_ns, duration_ns, num_samples, passage.nbytes))
        return arrival

    def _lease(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a pinned slab of at least `nbytes`."""
        return self._grown_pool(nbytes).lease()

    def _grown_pool(self, nbytes: int) -> SlabPool:
        """Return the pool, replaced if its slabs are too small. Threads that do so at once use a pool each, and one remains."""
        pool = self._pool
        if pool is None or pool.nbytes < nbytes:
            pool = self._pool = self._runtime.pinned_slabs(_rounded(nbytes), max_free=self._max_free)
        return pool


class _Passage:
    """One upload: its staging memory, and what must outlive it."""

    def __init__(self, runtime: DeviceRuntime, stream: Stream, lease: Callable[[int], NDArray[np.uint8]]) -> None:
        self.kept: list[object] = []  # until the device has finished
        self.made_by_others: list[torch.Tensor] = []  # on the device, by an object's own `.to`
        self.nbytes = 0  # moved
        self.staged_nbytes = 0
        self._runtime, self._stream, self._lease = runtime, stream, lease
        self._slab: NDArray[np.uint8] = np.empty(0, np.uint8)  # the unused part of the latest slab
        self._caller = runtime.current_stream()
        self._has_waited = False

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the device."""
        if tensor.device == self._runtime.device:
            self._join(tensor)
            return tensor
        _check_movable(tensor, self._runtime.device)
        source = tensor.detach()
        strides = torch.empty_like(source, device="meta").stride()  # the tensor's own if it is dense
        is_plain = source.stride() == strides and not (source.is_conj() or source.is_neg())
        if source.numel() and not (is_plain and self._runtime.is_pinned(source)):
            source = self._staged(source, strides)
        self.kept.append(source)
        self.nbytes += source.nbytes
        return self._runtime.copy_in(source).requires_grad_(tensor.requires_grad)

    def let_move(self, mover: Any) -> Any:
        """Move the object with its own `.to`, and make its copies here."""
        if isinstance(mover, torch.Tensor):
            if mover.device == self._runtime.device:
                self._join(mover)
                return mover
            _check_movable(mover, self._runtime.device)
        with _CopiesHere(self):
            return mover.to(self._runtime.device, non_blocking=True)

    def _join(self, tensor: torch.Tensor) -> None:
        """Order the copy stream after the work that made a tensor on the device, and keep the tensor."""
        self.kept.append(tensor)
        if not self._has_waited:
            self._runtime.wait_event(self._stream, self._runtime.record_event(self._caller))
            self._has_waited = True

    def _staged(self, tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        """Return a dense copy of the tensor in pinned memory."""
        nbytes = tensor.numel() * tensor.element_size()
        rounded = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if len(self._slab) < rounded:
            self._slab = self._lease(rounded)
        place, self._slab = self._slab[:nbytes], self._slab[rounded:]
        self.staged_nbytes += rounded
        staged = torch.from_numpy(place).view(tensor.dtype).as_strided(tensor.size(), strides)
        return staged.copy_(tensor)

    @property
    def device(self) -> torch.device:
        return self._runtime.device


class _CopiesHere(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes the host-to-device copies that an object's `.to` requests, and records its other tensors on the device."""

    def __init__(self, passage: _Passage) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._passage = passage

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        device = self._passage.device
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu" and options.get("device") == device:
            host = args[0].detach().as_subclass(torch.Tensor)
            changes = {name: options[name] for name in ("dtype", "memory_format") if options.get(name) is not None}
            made: Any = self._passage.move(host.to(**changes) if changes else host)
        else:
            made = func(*args, **options)
        self._passage.made_by_others += [tensor for tensor in tensors_of(made) if tensor.device == device]
        return made


def _check_movable(tensor: torch.Tensor, device: torch.device) -> None:
    if tensor.device.type != "cpu":
        raise OptionError(
            f"a batch holds a {tuple(tensor.shape)} tensor on {tensor.device}, but only tensors in host memory can be moved "
            f"to {device}: keep it in host memory in the loader"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantised" if tensor.is_quantized else "nested" if tensor.is_nested else str(tensor.layout)
        raise OptionError(
            f"a batch holds a {kind} tensor; only dense ones can be moved: make it dense in the loader (to_dense(), "
            "dequantize()), or move it in the training loop, wrapped in an object without a .to"
        )


def _rounded(nbytes: int) -> int:
    """Round up to three significant bits, so that slightly larger batches need no new slabs."""
    unit = 1 << max(nbytes.bit_length() - 4, _ALIGNMENT.bit_length() - 1)
    return -(-nbytes // unit) * unit
