"""Values of a sample as parts of an array whose place is a multiple of the sample's index, gathered for whole batches."""

from __future__ import annotations

import dataclasses
import mmap
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.readahead import Span

Kind = Literal["array", "scalar", "tensor", "int", "float"]  # a NumPy array, NumPy scalar, tensor, or Python number
Library = Literal["numpy", "torch"]

TORCH_DTYPES = {
    torch.bool: "bool", torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32",
    torch.int64: "int64", torch.float16: "float16", torch.float32: "float32", torch.float64: "float64",
}  # fmt: skip
_READABLE = frozenset((*TORCH_DTYPES.values(), "uint16", "uint32"))  # dtypes of arrays
_FEW_NBYTES = 512  # less than what is read besides, as systems read pages
_LARGEST = 1 << 31  # indices and constants up to which positions cannot overflow


class UnclearCode(Exception):  # noqa: N818 - an answer, not a failure
    """What the code does is not certain to be a gather."""


@dataclass(frozen=True, slots=True)
class Position:
    """The whole number scale * index + offset."""

    scale: int
    offset: int

    def __post_init__(self) -> None:
        if max(abs(self.scale), abs(self.offset)) >= _LARGEST * (1 if self.scale else _LARGEST):
            raise UnclearCode

    def numbers_at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers for these indices, each below 2^31."""
        places = indices if self.scale == 1 else indices * self.scale
        return places + self.offset if self.offset else places


@dataclass(frozen=True, slots=True)
class RowValues:
    """What a sample holds in one place: `view[position]`, cast in turn.

    `view`: (positions, *shape of a sample), not a copy. `casts`: which library casts to which dtype.
    """

    view: NDArray[Any]
    position: Position
    kind: Kind
    casts: tuple[tuple[Library, str], ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.casts[-1][1]) if self.casts else self.view.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample's values."""
        return self.view.shape[1:]

    def part(self, key: tuple[int | slice, ...]) -> RowValues:
        """Return the part of each sample's values at a key of constants."""
        try:
            view = self.view[(slice(None), *key)]
        except IndexError:
            raise UnclearCode from None
        kind = self.kind if self.kind != "array" or view.ndim > 1 else "scalar"
        return dataclasses.replace(self, view=view, kind=kind)

    def cast(self, library: Library, dtype: str, kind: Kind | None = None) -> RowValues:
        """Return the values as this dtype. Raises UnclearCode where the result may depend on the processor."""
        if self.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
            raise UnclearCode  # of NaN, and of what does not fit
        casts = self.casts if self.dtype == dtype else (*self.casts, (library, dtype))
        return dataclasses.replace(self, casts=casts, kind=kind or self.kind)

    @property
    def indices(self) -> range:
        """The indices, below 2^31, of samples that lie in the array as a whole."""
        scale, offset, last = self.position.scale, self.position.offset, len(self.view) - 1
        if not scale:
            return range(_LARGEST if 0 <= offset <= last else 0)
        ends = (-offset, last - offset) if scale > 0 else (offset - last, offset)
        return range(max(0, -(-ends[0] // abs(scale))), min(_LARGEST, ends[1] // abs(scale) + 1))

    def take(self, indices: NDArray[np.int64]) -> torch.Tensor:
        """Return (n, *shape) the values of these samples, each one of `self.indices`."""
        places = self.position.numbers_at(indices)
        # np.take is the faster one, but it would copy all of a view that is not contiguous
        found: Any = np.take(self.view, places, axis=0) if self.view.flags.c_contiguous else self.view[places]
        for library, dtype in self.casts:
            if (library == "torch") == isinstance(found, np.ndarray):
                found = torch.from_numpy(found) if library == "torch" else found.numpy()
            found = found.to(getattr(torch, dtype)) if library == "torch" else found.astype(dtype)
        return torch.from_numpy(np.ascontiguousarray(found)) if isinstance(found, np.ndarray) else found.contiguous()

    def is_next_to(self, other: RowValues) -> bool:
        """Return whether samples take up the same memory as those of the other, but for a few bytes."""
        if (self.shape, self.view.strides) != (other.shape, other.view.strides) or self.position.scale != other.position.scale:
            return False
        shift = (self.position.offset - other.position.offset) * self.view.strides[0]
        return abs(shift + self.view.ctypes.data - other.view.ctypes.data) <= _FEW_NBYTES

    def spans(self, indices: NDArray[np.int64]) -> list[Span]:
        """Return the memory from which these samples are taken, if it is a mapped file."""
        strides = self.view.strides
        if not is_mapped(self.view) or min(strides, default=0) < 0:
            return []
        nbytes = self.view.itemsize + sum((num - 1) * step for num, step in zip(self.shape, strides[1:], strict=True))
        places = self.position.numbers_at(indices)
        places = places[(places >= 0) & (places < len(self.view))]
        return [Span(start, nbytes) for start in (places * strides[0] + self.view.ctypes.data).tolist()]


def rows_of_array(array: NDArray[Any] | torch.Tensor, position: Position) -> RowValues:
    """Return the values of `array[position]`. Raises UnclearCode for arrays that are not plain numbers in host memory."""
    view = _readable(array)
    kind: Kind = "tensor" if isinstance(array, torch.Tensor) else "array" if view.ndim > 1 else "scalar"
    return RowValues(view, position, kind)


def windows_of_array(array: NDArray[Any] | torch.Tensor, start: Position, stop: Position) -> RowValues:
    """Return the values of `array[start:stop]`, a slice of the same length for every sample.

    Raises UnclearCode if the length varies, is not positive, or exceeds the array.
    """
    view, length = _readable(array), stop.offset - start.offset
    if start.scale != stop.scale or not 0 < length <= len(view):
        raise UnclearCode
    shape = (len(view) - length + 1, length, *view.shape[1:])
    windows = np.lib.stride_tricks.as_strided(view, shape, (view.strides[0], *view.strides), writeable=False)
    return RowValues(windows, start, "tensor" if isinstance(array, torch.Tensor) else "array")


def is_mapped(array: Any) -> bool:
    """Return whether an array lies in a mapped file."""
    while not isinstance(array, mmap.mmap) and array is not None:
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array is not None


def _readable(array: NDArray[Any] | torch.Tensor) -> NDArray[Any]:
    if isinstance(array, torch.Tensor):
        is_plain = type(array) is torch.Tensor and array.layout is torch.strided and array.device.type == "cpu"
        if not is_plain or array.requires_grad or array.is_neg() or array.is_conj() or array.dtype not in TORCH_DTYPES:
            raise UnclearCode
        view: NDArray[Any] = array.numpy()
    elif type(array) in (np.ndarray, np.memmap):
        view = np.asarray(array)
    else:
        raise UnclearCode
    if view.dtype.name not in _READABLE or not view.dtype.isnative or view.ndim < 1:
        raise UnclearCode
    return view
