"""Batches whose memory on the device repeats, for CUDA graphs, which read the addresses with which they were captured."""

from __future__ import annotations

from typing import Any

import torch

from datapipe.errors import OptionError
from datapipe.kernel.device_runtime import DeviceRuntime, Stream
from datapipe.kernel.pytree import map_nest, tensors_of

_Form = list[tuple[torch.Size, tuple[int, ...], torch.dtype]]  # shape, strides and dtype of each tensor of a batch


class StaticBatches:
    """A ring of buffers: each batch is copied into those of the batch `num` before it. For one thread.

    The copies are queued on the stream that consumes the batches, so they come after whatever it does with the batch before.
    """

    def __init__(self, runtime: DeviceRuntime, num: int) -> None:
        self._runtime, self._num = runtime, num
        self._ring: list[list[torch.Tensor]] = []  # the tensors of a batch, in order
        self._num_placed = 0
        self._stream: Stream | None = None  # that of the latest copy

    def place(self, batch: Any) -> Any:
        """Return the batch in its buffers, for the calling thread's current stream. `batch`: on the device, for that stream.

        Tensors of a subclass become plain ones. Raises OptionError for a batch of other shapes than the first, and for one that
        holds tensors where they cannot be seen.
        """
        form = _shapes_of(tensors_of(batch))
        if self._ring:
            self._check(form, _shapes_of(self._ring[0]))
        runtime, stream = self._runtime, self._runtime.current_stream()
        if self._stream is not None and self._stream != stream:
            runtime.wait_event(stream, runtime.record_event(self._stream))
        self._stream = stream
        with runtime.under(stream):
            if len(self._ring) < self._num:
                self._ring.append([torch.empty_strided(*one[:2], dtype=one[2], device=runtime.device) for one in form])
            buffers = iter(self._ring[self._num_placed % self._num])

            def copied(tensor: Any) -> torch.Tensor:
                if isinstance(tensor, torch.Tensor):
                    return next(buffers).copy_(tensor.detach(), non_blocking=True)
                raise OptionError(
                    f"static={self._num}: a batch holds a {type(tensor).__qualname__}, whose memory datapipe cannot choose; "
                    "deliver its tensors in a dict, a tuple or a dataclass, or pass static=0"
                )

            placed = map_nest(batch, copied, copied)
        self._num_placed += 1
        return placed

    def _check(self, form: _Form, first: _Form) -> None:
        if form == first:
            return
        found, expected = ([(tuple(shape), dtype) for shape, _, dtype in one] for one in (form, first))
        raise OptionError(
            f"static={self._num}: a batch has tensors {found}, and the first one had {expected}; batches must be of one form: "
            "leave out a short last one (drop_last=True, or tail='mask'), or pass static=0"
        )


def _shapes_of(tensors: list[torch.Tensor]) -> _Form:
    return [(tensor.size(), tensor.stride(), tensor.dtype) for tensor in tensors]
