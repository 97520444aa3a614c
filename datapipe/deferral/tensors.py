"""Record tensors before they have values: stand-ins of torch's own type, and the mode that sees them used.

A stand-in is a `torch.Tensor` (exactly that type, not a subclass) without storage. In the recording thread a function mode
gives it its values when anything but its shape or dtype is needed. Elsewhere, in a thread or an extension that the mode
does not reach, torch raises RuntimeError for any use of it, and the sample is made again without deferral. When the
fetch ends its values are put into the same object, wherever that is held.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple, cast

import torch
from torch.overrides import TorchFunctionMode

from datapipe.deferral.blocks import COUNTED_BY_ASKING
from datapipe.deferral.graph import Step
from datapipe.deferral.recorder import Fetch, PendingPixels, SharedMemory, current
from datapipe.deferral.tensor_operations import PLANS, Derived, planned

_TV_TENSORS = "torchvision.tv_tensors"
_OF_NOBODY = 1 + COUNTED_BY_ASKING  # references to a tensor that only the loop's name holds


class _WithoutStorage(torch.Tensor):
    """The type as which a stand-in is created: operators that reach it below Python raise."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError("a deferred tensor was used where datapipe cannot give it its values")


def stand_in(
    made: Derived, fetch: Fetch, *, kind: type[torch.Tensor] = torch.Tensor, of: PendingPixels | None = None
) -> torch.Tensor:
    """Return a tensor without values, of that type, and record it in the fetch. `of`: the one that it is a view of."""
    tensor: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        _WithoutStorage, made.shape, strides=made.strides, dtype=made.dtype
    )
    tensor.__class__ = kind
    strides = tensor.stride() if made.strides is None else made.strides
    shares = of is not None and made.offset is not None
    memory, offset = (of.memory, of.offset + made.offset) if shares else (SharedMemory(), 0)  # type: ignore[union-attr, operator]
    pending = PendingPixels(made.step, fetch.sample, made.shape, made.dtype, strides, offset, memory)
    if memory.owner is None:
        memory.owner = pending
    memory.members.append(id(tensor))
    fetch.mode.open()
    fetch.tensors[id(tensor)] = (tensor, pending)
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
        if fetch is None or fetch.mode is None or id(self) not in fetch.tensors:
            return original(self, *args, **kwargs)
        kind = args[0] if len(args) == 1 and not kwargs else None
        if kind is torch.Tensor or (kind is not None and kind is getattr(sys.modules.get(_TV_TENSORS), "Image", None)):
            pending = fetch.tensors[id(self)][1]
            same = Derived(pending.node, pending.shape, pending.dtype, pending.strides, 0)
            return stand_in(same, fetch, kind=cast("type[torch.Tensor]", kind), of=pending)
        fetch.mode.materialise(self, original)
        return original(self, *args, **kwargs)

    put(torch.Tensor, "as_subclass", as_subclass)


def makes_plain_tensors() -> bool:
    """Return whether a tensor made now would be a plain one: not of inference mode, and not traced."""
    return not torch.is_inference_mode_enabled() and torch._C._get_tracing_state() is None


def give_values(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Turn a stand-in into `values`, of the same shape, strides and dtype."""
    torch._C._swap_tensor_impl(tensor, values.as_subclass(torch.Tensor))


class Sharing(NamedTuple):
    """Stand-ins that share memory: what to make, and how it lies there."""

    tensors: list[tuple[torch.Tensor, PendingPixels]]
    made: PendingPixels

    def give(self, values: torch.Tensor) -> None:
        """Turn the stand-ins into `values`, or into views of them."""
        if values.stride() != self.made.strides:
            values = torch.empty_strided(self.made.shape, self.made.strides, dtype=values.dtype).copy_(values)
        for tensor, pending in self.tensors:
            is_all = pending.node is self.made.node
            offset = pending.offset - self.made.offset
            give_values(tensor, values if is_all else values.as_strided(pending.shape, pending.strides, offset))


def sharing(tensors: list[tuple[torch.Tensor, PendingPixels]]) -> Sharing:
    """Return what to make for stand-ins that share memory: what is theirs alone, or all of the memory where they differ."""
    first = tensors[0][1]
    if all(pending.node is first.node for _, pending in tensors):
        return Sharing(tensors, first)
    assert first.memory.owner is not None
    return Sharing(tensors, first.memory.owner)


def _with_others(tensor: torch.Tensor, fetch: Fetch) -> list[tuple[torch.Tensor, PendingPixels]]:
    """Return a stand-in and those that the user's code may hold of the same memory, and forget them all."""
    found = [fetch.tensors.pop(id(tensor))]
    memory = found[0][1].memory
    for key in memory.members:
        if key in fetch.tensors and fetch.tensors[key][1].memory is memory:
            other, pending = fetch.tensors.pop(key)
            if sys.getrefcount(other) > _OF_NOBODY:
                found.append((other, pending))
    return found


def values_now(step: Step, fetch: Fetch) -> torch.Tensor:
    """Return the values of a recorded tensor. Raises what its steps raise; then the sample has failed."""
    try:
        return fetch.engine.tensor_now(step, fetch.needed_besides(step), fetch.sample)  # type: ignore[no-any-return]
    except Exception:
        fetch.has_failed = True
        raise


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
            if func in PLANS and args and id(args[0]) in held:
                made = self._recorded(func, args, kwargs)
                if made is not None:
                    return made
            for value in (*args, *kwargs.values()) if kwargs else args:
                if id(value) in held:
                    if func not in _NEEDS_NO_VALUES:
                        self.materialise(value, func)
                elif isinstance(value, (list, tuple)):
                    for item in value:
                        if id(item) in held:
                            self.materialise(item, func)
        return func(*args, **kwargs) if kwargs else func(*args)

    def _recorded(self, function: Any, args: tuple[Any, ...], kwargs: Any) -> torch.Tensor | None:
        """Return the stand-in for what a function makes of one; None where it has to be called."""
        if type(args[0]) is not torch.Tensor or not makes_plain_tensors():
            return None
        pending = self._fetch.tensors[id(args[0])][1]
        made = planned(function, pending, args[1:], kwargs)
        return None if made is None else stand_in(made, self._fetch, of=pending)

    def materialise(self, tensor: torch.Tensor, function: Any) -> None:
        """Give a stand-in its values now. Raises what its steps raise; then the sample has failed."""
        fetch = self._fetch
        fetch.note_tensor(function)
        shared = sharing(_with_others(tensor, fetch))
        shared.give(values_now(shared.made.node, fetch))

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
    "shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_sparse", "is_quantized", "is_meta", "requires_grad", "is_leaf",
)  # fmt: skip
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
