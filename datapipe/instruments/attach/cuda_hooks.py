"""Observe a training loop's use of the GPU: waits for it, copies to it, optimiser steps, and how busy NVML calls it.

Methods of `torch.Tensor` that can wait or copy are replaced; for a tensor on the CPU they add one comparison. Only in builds
of torch for a GPU.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from datapipe.instruments.measure.watching import Hooks, Meter
from datapipe.instruments.torch_stages.patching import forget_us

_SYNCING_METHODS = ("item", "tolist", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__")
_COPYING_METHODS = ("to", "cpu", "cuda", "copy_")
_MARK = "_datapipe_watches"
_PERIOD_S = 0.5

FindMeter = Callable[[], Meter | None]  # called every time


_find_meter: FindMeter = lambda: None  # noqa: E731
_has_update_hook = False


def install(find_meter: FindMeter) -> Hooks:
    """Notify the meter that `find_meter` returns, from now on. torch must be imported."""
    global _find_meter, _has_update_hook
    _find_meter = find_meter
    if not _has_update_hook:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_note_update)
        _has_update_hook = True
    torch = sys.modules["torch"]
    has_device = bool(torch.version.cuda or getattr(torch.version, "hip", None))
    if has_device:
        replace_methods(torch.Tensor)
        cuda = torch.cuda
        for place, owner in (("torch.cuda", cuda), ("torch.cuda.Stream", cuda.Stream), ("torch.cuda.Event", cuda.Event)):
            wrap = functools.partial(_syncing, name=f"{place}.synchronize", always=True)
            owner.synchronize = _once(owner.synchronize, wrap)
    return Hooks(syncs=has_device, copies=has_device, updates=True)


def _note_update(optimizer: Any, *_: Any) -> None:
    first: Any = next((parameter for group in optimizer.param_groups for parameter in group["params"]), None)
    device = first.device.index if getattr(first, "is_cuda", False) else None
    _tell(lambda meter: meter.note_update(device))


def replace_methods(tensor: Any) -> None:
    """Replace the methods of `torch.Tensor` that wait for the device, or copy to it."""
    for names, wrap in ((_SYNCING_METHODS, _syncing), (_COPYING_METHODS, _copying)):
        for name in names:
            setattr(tensor, name, _once(getattr(tensor, name), functools.partial(wrap, name=f"Tensor.{name}")))


def _once(method: Any, wrap: Callable[[Any], Any]) -> Any:
    if hasattr(method, _MARK):
        return method
    wrapped = wrap(method)
    with suppress(Exception):  # keeps torch.compile from trying to compile this and warning
        frames = sys.modules["torch"]._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(wrapped.__code__, frames._FrameExecStrategy(skip, skip))
    wrapped = functools.wraps(method)(wrapped)
    setattr(wrapped, _MARK, True)
    return wrapped


def _syncing(function: Callable[..., Any], name: str, *, always: bool = False) -> Callable[..., Any]:
    """Wrap a function that waits for the device; unless `always`, only where its first argument, a tensor, is on it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        start_ns = time.perf_counter_ns()
        try:
            result = function(*args, **kwargs)
        except BaseException as exc:
            forget_us(exc)
            raise
        if always or args[0].is_cuda:
            _note_sync(name, start_ns)
        return result

    return call


def _copying(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a method: to the device it is a copy. From the device it counts as a wait, unless `non_blocking=True`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_upload = _goes_to_device(self, name, args, kwargs)
        start_ns = time.perf_counter_ns()
        if is_upload:
            _tell(lambda meter: meter.begin_copy())
        try:
            result = method(self, *args, **kwargs)
        except BaseException as exc:
            forget_us(exc)
            raise
        finally:
            if is_upload:
                _tell(lambda meter: meter.end_copy())
        if name != "Tensor.copy_" and self.is_cuda and not result.is_cuda and not kwargs.get("non_blocking"):
            _note_sync(name, start_ns)
        return result

    return call


def _goes_to_device(self: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = args[0] if args else kwargs.get("src" if name == "Tensor.copy_" else "device", kwargs.get("other"))
    if name == "Tensor.copy_":
        return bool(self.is_cuda and not getattr(given, "is_cuda", True))
    if name == "Tensor.cpu" or self.is_cuda:
        return False
    if name == "Tensor.cuda":
        return True
    kind = getattr(given, "device", given)  # a tensor to match, a device, its name or number
    if isinstance(kind, bool):
        return False
    return isinstance(kind, int) or str(getattr(kind, "type", kind)).startswith("cuda")


def _note_sync(name: str, start_ns: int) -> None:
    host_s = (time.perf_counter_ns() - start_ns) * 1e-9
    _tell(lambda meter: meter.note_sync(name, host_s))


def _tell(tell: Callable[[Meter], None]) -> None:
    try:
        meter = _find_meter()
        if meter is not None:
            tell(meter)
    except Exception:
        pass  # a failing meter is dropped at the next step


class BusySampler:
    """The mean of `read()`, called every `period_s` in a thread that ends with the process or at the first failure."""

    def __init__(self, read: Callable[[], float | None], *, period_s: float = _PERIOD_S) -> None:
        self._read, self._period_s = read, period_s
        self._total, self._num = 0.0, 0
        self._stopped = threading.Event()
        threading.Thread(target=self._sample, name="datapipe-nvml", daemon=True).start()

    def mean(self) -> float | None:
        """Return 0 to 1; None if nothing was read."""
        return self._total / self._num if self._num else None

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped.set()

    def _sample(self) -> None:
        with suppress(Exception):
            while not self._stopped.wait(self._period_s):
                share = self._read()
                if share is not None:
                    self._total, self._num = self._total + share, self._num + 1


def read_busy() -> float | None:
    """Return the mean utilisation of this process's GPUs, 0 to 1; None without a CUDA context. Raises if NVML is not available.

    Its GPUs are those with a context: the current device is no answer, as it is 0 in every thread that has not set another.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    has_context: Any = vars(torch._C)["_cuda_hasPrimaryContext"]
    used = [number for number in range(torch.cuda.device_count()) if has_context(number)]
    return sum(map(torch.cuda.utilization, used)) / (100 * len(used)) if used else None
