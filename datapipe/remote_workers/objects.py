"""Python objects as bytes in one piece of memory: their tensors and arrays lie in it as they are, and are not copied when read.

Only for those who trust each other's code: reading objects can run any.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_ALIGNMENT = 64  # bytes, at which buffers begin
_NUMBER = struct.Struct("<Q")


class _Pickler(pickle.Pickler):
    """Leaves the values of tensors of the CPU out of the stream, as the values of arrays are anyway."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout != torch.strided:
            return NotImplemented
        if value.is_quantized or value.is_conj() or value.is_neg() or value.dtype.is_complex:
            return NotImplemented
        values = value.detach().contiguous().view(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(values.data), value.dtype, tuple(value.shape), value.requires_grad)


def _tensor(values: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    data = torch.frombuffer(values, dtype=torch.uint8) if len(values) else torch.empty(0, dtype=torch.uint8)
    return data.view(dtype).view(shape).requires_grad_(requires_grad)


def pack(value: Any, take: Callable[[int], Any]) -> int:
    """Write an object into memory that `take` gives for a number of bytes; return that number. Raises what pickle raises."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(value)
    parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
    head = [len(parts), *(part.nbytes for part in parts)]
    places, end = [], _aligned(_NUMBER.size * len(head))
    for part in parts:
        places.append(end)
        end = _aligned(end + part.nbytes)
    memory = np.frombuffer(take(end), np.uint8, end)
    for number, size in enumerate(head):
        _NUMBER.pack_into(memory.data, number * _NUMBER.size, size)
    for place, part in zip(places, parts, strict=True):
        memory[place : place + part.nbytes] = np.frombuffer(part, np.uint8)
    return end


def unpack(memory: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    """Return the object that `pack` wrote. Its tensors and arrays lie in `memory`, which they may write to if it is writable."""
    view = memory.data
    (num,) = _NUMBER.unpack_from(view, 0)
    sizes = [_NUMBER.unpack_from(view, _NUMBER.size * (1 + number))[0] for number in range(num)]
    parts, end = [], _aligned(_NUMBER.size * (1 + num))
    for size in sizes:
        parts.append(view[end : end + size])
        end = _aligned(end + size)
    return pickle.loads(parts[0], buffers=parts[1:])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
