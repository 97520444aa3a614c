"""Record tensors before they have values: stand-ins of torch's own type, and the mode that sees them used.

A stand-in is a `torch.Tensor` (exactly that type, not a subclass) without storage. In the recording thread a function mode
gives it its values when anything but its shape or dtype is needed. Elsewhere, in a thread or an extension that the mode
does not reach, torch raises RuntimeError for any use of it, and the sample is made again without deferral. When the
fetch ends its values are put into the same object, wherever that is held.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from datapipe.adapt.deferral.graph import Step
from datapipe.adapt.deferral.recorder import Fetch, PendingPixels, current


class _WithoutStorage(torch.Tensor):
    """The type as which a stand-in is created: operators that reach it below Python raise."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError("a deferred tensor was used where datapipe cannot give it its values")


def stand_in(
    step: Step,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    strides: tuple[int, ...] | None,
    fetch: Fetch,
    *,
    kind: type[torch.Tensor] = torch.Tensor,
) -> torch.Tensor:
    """Return a tensor without values for the result of `step`, of that type, and record it in the fetch."""
    tensor: torch.Tensor = torch.Tensor._make_wrapper_subclass(_WithoutStorage, shape, strides=strides, dtype=dtype)
    tensor.__class__ = kind
    fetch.mode.open()
    fetch.tensors[id(tensor)] = (tensor, PendingPixels(step, fetch.sample))
    fetch.has_recorded = fetch.has_recorded_tensors = True
    return tensor


@functools.cache
def install() -> None:
    """Replace, for the rest of the process, torch's methods that read a tensor without asking a function mode."""
    put: Any = setattr
    original = torch.Tensor.as_subclass

    @functools.wraps(original)
    def as_subclass(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        fetch = current()
        if fetch is not None and fetch.mode is not None and id(self) in fetch.tensors:
            fetch.mode.materialise(self, original)
        return original(self, *args, **kwargs)

    put(torch.Tensor, "as_subclass", as_subclass)


def give_values(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Turn a stand-in into `values`, of the same shape, strides and dtype."""
    torch._C._swap_tensor_impl(tensor, values.as_subclass(torch.Tensor))


def values_now(step: Step, fetch: Fetch) -> torch.Tensor:
    """Return the values of a recorded tensor. Raises what its steps raise; then the sample has failed."""
    try:
        return fetch.engine.tensor_now(step, fetch.is_held)  # type: ignore[no-any-return]
    except Exception:
        fetch.has_failed = True
        raise


def step_of(tensor: Any, fetch: Fetch) -> Step | None:
    """Return the step behind a stand-in; None for a tensor with values."""
    held = fetch.tensors.get(id(tensor))
    return None if held is None or not isinstance(held[1].node, Step) else held[1].node


class TensorMode(TorchFunctionMode):
    """Gives stand-ins their values when they are passed to torch's functions, whichever those are."""

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self._fetch = fetch
        self._depth = 0
        self._is_open = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = self._fetch.tensors
        if held:
            for value in (*args, *kwargs.values()) if kwargs else args:
                if id(value) in held:
                    if func not in _NEEDS_NO_VALUES:
                        self.materialise(value, func)
                elif isinstance(value, (list, tuple)):
                    for item in value:
                        if id(item) in held:
                            self.materialise(item, func)
        return func(*args, **kwargs) if kwargs else func(*args)

    def materialise(self, tensor: torch.Tensor, function: Any) -> None:
        """Give a stand-in its values now. Raises what its steps raise; then the sample has failed."""
        fetch = self._fetch
        _, pending = fetch.tensors[id(tensor)]
        assert isinstance(pending.node, Step)
        fetch.note_tensor(function)
        give_values(tensor, values_now(pending.node, fetch))
        del fetch.tensors[id(tensor)]

    def begin_sample(self, *, opens: bool) -> None:
        """Note where the sample's own modes begin. `opens`: its code may come by stand-ins of samples before it."""
        self._depth = torch._C._len_torch_function_stack()
        self._is_open = False
        if opens:
            self.open()

    def open(self) -> None:
        """Put the mode on the stack, unless it is there: each of torch's functions costs more as long as it is."""
        if not self._is_open:
            self._is_open = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def end_sample(self) -> None:
        """Pop the mode, and whatever the sample's code left above it."""
        while self._is_open and torch._C._len_torch_function_stack() > self._depth:
            torch._C._pop_torch_function_stack()

    @property
    def is_innermost(self) -> bool:
        """Whether no mode of the user's is above, or would be below: that would have to see what is computed."""
        return torch._C._len_torch_function_stack() == self._depth + self._is_open


_GETTERS = (
    "shape",
    "dtype",
    "device",
    "ndim",
    "layout",
    "is_cuda",
    "is_sparse",
    "is_quantized",
    "is_meta",
    "requires_grad",
    "is_leaf",
)
_NEEDS_NO_VALUES = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in _GETTERS),
        *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "nelement", "ndimension", "stride", "__len__")),
        *(getattr(torch.Tensor, name) for name in ("is_floating_point", "is_complex", "is_contiguous", "element_size")),
        torch.is_floating_point,
        torch.is_complex,
        torch.numel,
    ]
)
