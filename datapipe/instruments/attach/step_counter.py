"""Count the floating point operations and the bytes of a few training steps, and measure the peaks of their device."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from datapipe.instruments.attach.ours import complain
from datapipe.instruments.measure.observed import ModelCost

if TYPE_CHECKING:
    import torch

COUNT_FROM, COUNT_STEPS = 20, 4
_PEAK_S = 0.2  # of each measurement, in all of its rounds
_SIDES = {"cpu": 1024}  # of matrices, by kind of device; others:
_SIDE = 8192
_COPIED_NBYTES = 1 << 28
_NUM_LAUNCHES = 200
# What tensors that are no plain ones ask about themselves; torch's own counter leaves these to them, too.
_ABOUT_LAYOUT = (
    *("sym_is_contiguous", "is_contiguous", "is_strides_like_format", "is_non_overlapping_and_dense", "dim", "layout"),
    *("size", "sym_size", "stride", "sym_stride", "storage_offset", "sym_storage_offset", "numel", "sym_numel"),
)


class StepCounter:
    """A `Tap` that counts the operations of a few training steps. They are not measured, since counting slows them down.

    torch shows us each operation, and runs it as it would: results stay the same. What torch.compile has compiled runs
    uncompiled meanwhile, which may round otherwise, and is counted by the operations that it was made of.
    """

    def __init__(self) -> None:
        self._mode: Any = None
        self._window = ExitStack()  # while steps are counted
        self._is_over = False
        self._has_failed = False

    def __call__(self, num_done: int) -> bool:
        if self._is_over or num_done < COUNT_FROM:
            return True
        try:
            if self._mode is None:
                self._begin()
            elif num_done >= COUNT_FROM + COUNT_STEPS:
                self._end()
            self._mode.is_in_step = False
        except Exception as exc:
            self._fail(exc)
        return self._is_over

    def begin_step(self) -> None:
        """Count what follows: a batch has been handed out."""
        if self._mode is not None:
            self._mode.is_in_step = True

    def finish(self) -> ModelCost | None:
        """Return what was counted, after measuring the peaks of the device; None if nothing was counted. The training is over."""
        try:
            if not self._is_over and self._mode is not None:  # too few steps
                self._end()
                return None
            counted = self._mode
            if counted is None or self._has_failed:
                return None
            if counted.failure is not None:
                raise counted.failure
            if counted.device is None:  # no operation has a formula
                return None
            dtype = counted.by_dtype.most_common(1)[0][0]
            return ModelCost(
                dtype=str(dtype).removeprefix("torch."),
                flops=counted.by_dtype.total() / COUNT_STEPS,
                nbytes=counted.nbytes / COUNT_STEPS,
                num_operations=counted.num_operations / COUNT_STEPS,
                uncounted=tuple(sorted(counted.uncounted)),
                **_peaks(counted.device, dtype),
            )
        except Exception as exc:
            self._fail(exc)
        return None

    def _begin(self) -> None:
        mode = _mode()
        if "torch._dynamo" in sys.modules:  # with a mode, compiled code runs uncompiled or, with fullgraph=True, not at all
            import torch

            self._window.enter_context(torch.compiler.set_stance("force_eager"))
        self._mode = self._window.enter_context(mode)

    def _end(self) -> None:
        self._is_over = True
        self._window.close()

    def _fail(self, exc: Exception) -> None:
        self._window.close()
        self._is_over = self._has_failed = True
        complain("what a step costs the device is not known", exc)


def _mode() -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Sees each operation below autograd; torch's own `FlopCounterMode` counts by the same formulas."""

        supports_higher_order_operators = True

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.is_in_step = False
            self.nbytes = self.num_operations = 0
            self.by_dtype: Counter[torch.dtype] = Counter()  # floating point operations
            self.device: torch.device | None = None  # of the latest of these
            self.uncounted: set[str] = set()  # operations of which torch has no formula, but that surely compute
            self.failure: Exception | None = None

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if isinstance(func, torch._ops.HigherOrderOperator):
                self.uncounted.add(str(func))
                return func(*args, **kwargs)
            if func._schema.name.rpartition("::")[2] in _ABOUT_LAYOUT:
                return NotImplemented
            formula = flop_registry.get(func._overloadpacket)
            if formula is None and func is not torch.ops.prim.device.default:
                with self:
                    parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
            out = func(*args, **kwargs)
            if self.is_in_step and self.failure is None:
                try:
                    self._count(func, formula, out, args, kwargs)
                except Exception as exc:  # the operation itself is well
                    self.failure = exc
            return out

        def _count(self, func: Any, formula: Any, out: Any, args: Any, kwargs: Any) -> None:
            inputs, outputs = _tensors((args, kwargs)), _tensors(out)
            if formula is not None and inputs:
                self.by_dtype[inputs[0].dtype] += formula(*args, **kwargs, out_val=out)
                self.device = inputs[0].device
            if func._schema.is_mutable or not _is_view(inputs, outputs):
                self.num_operations += 1
                self.nbytes += sum(one.nbytes for one in inputs + outputs)

    return Mode()


def _tensors(nest: Any) -> list[torch.Tensor]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(nest) if isinstance(one, torch.Tensor)]


def _is_view(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    """Return whether all outputs lie in memory of the inputs."""
    places = {one.untyped_storage()._cdata for one in inputs}
    return all(one.untyped_storage()._cdata in places for one in outputs)


def _peaks(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return the peaks of a device as fields of `ModelCost`, each the best of several rounds."""
    import torch

    from datapipe.kernel.accelerators import device_name, synchronize

    def best_s(work: Callable[[], object]) -> float:
        work()
        rounds, until_s = list[float](), time.perf_counter() + _PEAK_S
        while not rounds or time.perf_counter() < until_s:
            synchronize(device)
            started_s = time.perf_counter()
            work()
            synchronize(device)
            rounds.append(time.perf_counter() - started_s)
        return min(rounds)

    side = _SIDES.get(device.type, _SIDE)
    with torch.no_grad():
        matrix = torch.ones(side, side, dtype=dtype, device=device)
        product_s = best_s(lambda: matrix @ matrix)
        source = torch.zeros(_COPIED_NBYTES, dtype=torch.uint8, device=device)
        into = torch.empty_like(source)
        copy_s = best_s(lambda: into.copy_(source))
        few = torch.zeros(8, device=device)
        launches_s = best_s(lambda: [few.add_(1) for _ in range(_NUM_LAUNCHES)])
    return {
        "device": device_name(device),
        "peak_flops_per_s": 2 * side**3 / product_s,
        "peak_nbytes_per_s": 2 * _COPIED_NBYTES / copy_s,
        "launch_s": launches_s / _NUM_LAUNCHES,
    }
