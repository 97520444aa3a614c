"""Tensors on the fake device: any operation of torch on them goes into the current stream's queue.

torch's name for their device is "meta", the one kind of device that every build of torch has and that holds no data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

META = torch.device("meta")
CPU = torch.device("cpu")
_ASKS_THE_DEVICE = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique", "_unique2")


class DeviceTensor(torch.Tensor):
    """A tensor on the fake device. `content`: what its memory, which `memory` keeps, holds by now."""

    memory: Any
    content: torch.Tensor
    is_cuda, is_cpu = True, False  # for code that asks

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, memory: Any, content: torch.Tensor) -> DeviceTensor:
        size, strides, offset = content.size(), content.stride(), content.storage_offset()
        made = torch.Tensor._make_wrapper_subclass(
            cls, size, strides=strides, storage_offset=offset, dtype=content.dtype, device=META
        )
        made.memory, made.content = memory, content
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fake = next(value.memory.fake for value in tree_leaves((args, kwargs)) if isinstance(value, DeviceTensor))
        return run(fake, func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.content.data_ptr()


class FactoriesHere(TorchDispatchMode):
    """Tensors that code under a stream makes on the device, from nothing or from a tensor in host memory."""

    def __init__(self, fake: Any) -> None:
        super().__init__()
        self._fake = fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if any(isinstance(value, DeviceTensor) for value in tensors):
            return run(self._fake, func, args, kwargs)
        if kwargs.get("device") == META and (not tensors or func is torch.ops.aten._to_copy.default):
            host_args = tree_map(lambda value: self._fake.as_read(value) if isinstance(value, torch.Tensor) else value, args)
            return _compute(self._fake, func, host_args, kwargs | {"device": CPU})
        return func(*args, **kwargs)


def run(fake: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Put an operation in the current stream's queue; its results are there at once, their values later."""
    name = func._schema.name.removeprefix("aten::")
    with fake.lock:
        host_args, host_kwargs = tree_map(_content, (args, kwargs))
        brings_back = (name == "_to_copy" and kwargs.get("device") == CPU) or (name == "copy_" and args[0].device == CPU)
        if name in _ASKS_THE_DEVICE or brings_back:
            fake.forbid(f"{name} waits for the device")
            fake.drain()
            return func(*host_args, **host_kwargs)
        if name == "copy_" and args[1].device == CPU:
            host_args = (host_args[0], fake.as_read(args[1]), *host_args[2:])
        aliases = [result.alias_info for result in func._schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases):  # a view
            base = next(value for value in tree_leaves(args) if isinstance(value, DeviceTensor))
            made = tree_map(lambda content: DeviceTensor(base.memory, content), func(*host_args, **host_kwargs))
        elif func._schema.is_mutable:
            made = next(
                kwargs.get(argument.name, args[place] if place < len(args) else None)
                for place, argument in enumerate(func._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            )
            fake.launch(lambda: func(*host_args, **host_kwargs))
        else:
            made = _compute(fake, func, host_args, host_kwargs)
        fake.tick()
        return made


def _compute(fake: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Allocate what an operation gives, and let the current stream fill it."""
    on_meta = {"device": META} if "device" in kwargs else {}
    shapes = func(*tree_map(_shape, args), **tree_map(_shape, kwargs) | on_meta)
    made = tree_map(lambda shape: fake.allocate(shape.size(), shape.stride(), shape.dtype), shapes)
    targets = [tensor.content for tensor in tree_leaves(made)]

    def fill() -> None:
        for target, result in zip(targets, tree_leaves(func(*args, **kwargs)), strict=True):
            target.copy_(result)

    fake.launch(fill)
    return made


def _content(value: Any) -> Any:
    """What an operation's argument is for the CPU, which carries the operation out."""
    if isinstance(value, DeviceTensor):
        return value.content
    assert not isinstance(value, torch.Tensor) or value.device == CPU, "a tensor that was made outside of under()"
    return CPU if isinstance(value, torch.device) and value == META else value


def _shape(value: Any) -> Any:
    """A tensor of the same shape without values."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=META)
    return value
