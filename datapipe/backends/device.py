"""Batches from host memory to the device, without anybody waiting.

An upload runs on a copy stream of its own and ends in an event. Whoever takes the batch lets *its* stream
wait for that event and goes on at once. What makes this safe, in the order it happens:

1. a copy reads page-locked memory only: pageable tensors are staged in pinned slabs first;
2. whatever a copy reads stays alive until the upload's event, checked in passing, has happened;
3. the consumer's stream waits for the event before anything on it touches the batch;
4. the batch's memory, which belongs to the copy stream, is told of the consumer's stream, so that it is not
   used again while that one still reads it.

Neither the copy stream nor the host ever waits for the consumer's stream, except that tensors which lie on
the device already are taken in the order of the stream that made them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from datapipe.backends.device_runtime import DeviceRuntime, Event, Stream
from datapipe.backends.nests import map_nest, tensors_of
from datapipe.backends.slabs import SlabPool
from datapipe.errors import LifecycleError, OptionError
from datapipe.observe import Observer, Stage, StageEvent, null_observer

_ALIGNMENT = 256  # bytes, of a tensor within a slab


class Arrival:
    """A batch on its way to the device."""

    __slots__ = ("_event", "_nest", "_runtime", "_tensors")

    def __init__(self, nest: Any, tensors: list[torch.Tensor], event: Event, runtime: DeviceRuntime) -> None:
        self._nest, self._tensors, self._event, self._runtime = nest, tensors, event, runtime

    def hand_over(self) -> Any:
        """The batch, for use on the calling thread's current stream, which waits for it; the host does not.

        Once: raises LifecycleError the second time. An arrival may also be dropped; its copies then end unseen.
        """
        if self._event is None:
            raise LifecycleError("this batch was handed over before; it belongs to whoever took it then")
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
    """Moves batches to a device on a copy stream. Thread-safe; make it where the batches are consumed.

    `max_free`: pinned slabs kept for staging while unused. A slab holds the pageable tensors of one batch; as
    many exist as there are batches whose copy has not been seen to end.
    """

    def __init__(self, runtime: DeviceRuntime, *, observer: Observer = null_observer, max_free: int = 4) -> None:
        self.observer = observer
        self._runtime = runtime
        self._stream = runtime.new_stream()
        self._max_free = max_free
        self._pool: SlabPool | None = None
        self._is_closed = False

    @property
    def device(self) -> torch.device:
        return self._runtime.device

    @property
    def stream(self) -> Stream:
        """The copy stream."""
        return self._stream

    def upload(
        self,
        nest: Any,
        *,
        then: Callable[[Any], Any] | None = None,
        keep: object = None,
        step: int = 0,
        num_samples: int = 0,
    ) -> Arrival:
        """Begin to move a batch; returns once the copies are under way and `nest` may be dropped.

        Tensors in host memory are copied, in their strides where they are dense, as `Tensor.to` would: page-locked
        ones from where they lie (so do not write into them any more), others by way of a pinned slab. Objects with
        a `.to(device, non_blocking=...)` of their own are moved by it. Tensors on the device pass through; the
        copy stream waits for what the calling thread's current stream was given before. Everything else passes
        through.

        `then`: done to the moved nest under the copy stream; must leave its result's tensors where `tensors_of`
        finds them, and not use them on other streams. `keep`: held until the device is done with this batch.
        `step`, `num_samples`: what the observer is told. Raises OptionError for tensors that are sparse, quantised or
        on another device, LifecycleError after `close`, and what `then` raises.
        """
        if self._is_closed:
            raise LifecycleError("upload after close(): this uploader's memory is released; make a new one")
        start_ns = time.perf_counter_ns()
        runtime, stream = self._runtime, self._stream
        runtime.pending.reap()
        passage = _Passage(runtime, stream, self._lease)
        passage.kept.append(keep)
        try:
            with runtime.under(stream):
                moved = map_nest(nest, passage.move, passage.let_move)
                result = moved if then is None else then(moved)
        finally:  # also after an error: copies may be under way
            event = runtime.record_event(stream)
            runtime.pending.add(event, passage.kept)
        self._remember(passage.staged_nbytes)
        tensors = [tensor for tensor in tensors_of(result) if tensor.device == runtime.device]
        arrival = Arrival(result, [*tensors, *passage.made_by_others], event, runtime)
        duration_ns = time.perf_counter_ns() - start_ns
        self.observer(StageEvent(Stage.COPY, step, start_ns, duration_ns, num_samples, passage.nbytes))
        return arrival

    def close(self) -> None:
        """Release the memory that no copy needs any more, and take no more batches. May be called again.

        What copies under way still read is held by the runtime, and released in passing by later uploads of whoever
        uses the device.
        """
        self._is_closed = True
        self._pool = None
        self._runtime.pending.reap()

    def _lease(self, nbytes: int) -> NDArray[np.uint8]:
        """A pinned slab of at least `nbytes`."""
        return self._grown_pool(nbytes).lease()

    def _remember(self, nbytes: int) -> None:
        """Let one slab of the next batches hold as much as this one needed."""
        if nbytes and not self._is_closed:
            self._grown_pool(nbytes)

    def _grown_pool(self, nbytes: int) -> SlabPool:
        """The pool, made anew if its slabs are too small. Threads that do so at once use a pool each, and one stays."""
        pool = self._pool
        if pool is None or pool.nbytes < nbytes:
            pool = self._pool = self._runtime.pinned_slabs(_rounded(nbytes), max_free=self._max_free)
        return pool


class _Passage:
    """One upload: where its tensors are staged, and what must outlive it."""

    def __init__(self, runtime: DeviceRuntime, stream: Stream, lease: Callable[[int], NDArray[np.uint8]]) -> None:
        self.kept: list[object] = []  # until the device is done
        self.made_by_others: list[torch.Tensor] = []  # on the device, by an object's own `.to`
        self.nbytes = 0  # moved
        self.staged_nbytes = 0
        self._runtime, self._stream, self._lease = runtime, stream, lease
        self._slab: NDArray[np.uint8] = np.empty(0, np.uint8)  # what is left of the latest
        self._caller = runtime.current_stream()
        self._has_waited = False

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device."""
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
        """The object on the device by its own `.to`, of which the copies are made here."""
        if isinstance(mover, torch.Tensor):
            if mover.device == self._runtime.device:
                self._join(mover)
                return mover
            _check_movable(mover, self._runtime.device)
        with _CopiesHere(self):
            return mover.to(self._runtime.device, non_blocking=True)

    def _join(self, tensor: torch.Tensor) -> None:
        """Order the copy stream after what made a tensor that lies on the device, and keep the tensor."""
        self.kept.append(tensor)
        if not self._has_waited:
            self._runtime.wait_event(self._stream, self._runtime.record_event(self._caller))
            self._has_waited = True

    def _staged(self, tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        """A copy of it in pinned memory, dense."""
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
    """Makes the copies from host to device that an object's `.to` asks for, and notes what else it makes there."""

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
            f"a batch holds a {tuple(tensor.shape)} tensor on {tensor.device}, to be moved to {device}; only tensors in host "
            "memory are: leave it there in the loader"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantised" if tensor.is_quantized else "nested" if tensor.is_nested else str(tensor.layout)
        raise OptionError(
            f"a batch holds a {kind} tensor; only dense ones are moved: make it dense in the loader (to_dense(), "
            "dequantize()), or move it in the training loop, wrapped in an object without a .to"
        )


def _rounded(nbytes: int) -> int:
    """Up to three significant bits, so that batches a little larger than all before need no new slabs."""
    unit = 1 << max(nbytes.bit_length() - 4, _ALIGNMENT.bit_length() - 1)
    return -(-nbytes // unit) * unit
