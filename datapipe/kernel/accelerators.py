"""The accelerator that torch has here: NVIDIA's or AMD's GPUs as "cuda", Intel's as "xpu", Ascend's as "npu", and others.

Nothing here creates a context on a device, except where it says so.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from datapipe.errors import OptionError
from datapipe.kernel.cuda_runtime import cuda_runtime
from datapipe.kernel.device_runtime import AcceleratorRuntime, DeviceRuntime

_WITHOUT_STREAMS = ("mps",)  # Apple's: nothing is copied there while it computes
_FIRST_TORCH = (2, 11)  # whose torch.accelerator has all that is needed of accelerators besides CUDA


def accelerator() -> torch.device | None:
    """Return the type of device to which batches can be moved, without an index; None: there is none that has streams."""
    found = _built_for()
    if found is None or found.type in _WITHOUT_STREAMS or not torch.get_device_module(found).is_available():
        return None
    return found if found.type == "cuda" or _version() >= _FIRST_TORCH else None


def devices() -> list[torch.device]:
    """Return the devices of the accelerator; none without one."""
    found = accelerator()
    if found is None:
        return []
    return [torch.device(found.type, number) for number in range(torch.get_device_module(found).device_count())]


def current_device() -> torch.device:
    """Return the calling thread's current device, with its index. There must be an accelerator. May create a context."""
    found = accelerator()
    assert found is not None  # `checked_device` has refused it otherwise
    return torch.device(found.type, torch.get_device_module(found).current_device())


def device_name(device: torch.device) -> str:
    """Return the name of the model, such as "NVIDIA H100 80GB HBM3"; "cpu" for the CPU. May create a context."""
    if device.type == "cpu":
        return "cpu"
    own: Any = torch.get_device_module(device)
    return str(own.get_device_name(device)) if hasattr(own, "get_device_name") else device.type


def synchronize(device: torch.device) -> None:
    """Wait for all work of a device, which need not be the current one. Returns at once for the CPU."""
    if device.type != "cpu":
        wait: Any = getattr(torch.get_device_module(device), "synchronize", torch.accelerator.synchronize)
        wait(device)


def runtime_of(device: torch.device) -> DeviceRuntime:
    """Return the runtime of an accelerator's device; without an index, of the calling thread's current one.

    Call it in the consumer's thread, at first use: other threads start on device 0.
    """
    if device.type == "cuda":
        return cuda_runtime(device)
    return _runtime_besides_cuda(current_device() if device.index is None else device)


_runtime_besides_cuda = cache(AcceleratorRuntime)


def checked_device(device: str | torch.device) -> torch.device:
    """Return the CPU or an available device of torch's accelerator. Raises OptionError for any other."""
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as exc:
        raise OptionError(
            f"device is {device!r:.60}, which torch does not accept ({exc}); pass 'cpu', 'cuda' or 'cuda:N', or import the "
            "package that adds the device to torch"
        ) from exc
    if checked.type == "cpu":
        return checked
    found = accelerator()
    if found is None or found.type != checked.type:
        raise OptionError(f"device is {str(checked)!r}, but {_what_torch_finds(found)}")
    num_devices = len(devices())
    if checked.index is not None and checked.index >= num_devices:
        there = "is 1 device" if num_devices == 1 else f"are {num_devices} devices"
        raise OptionError(
            f"device is {str(checked)!r}, but there {there} of that type; pass '{found.type}:N' with N below {num_devices}, or "
            f"{found.type!r} for this process's current one"
        )
    return checked


def torch_build() -> str:
    """Return for what torch is built: "built for CUDA: 12.8", "built for ROCm: 6.4", "built for xpu", "built for CUDA: no"."""
    if torch.version.cuda is None and torch.version.hip:
        return f"built for ROCm: {torch.version.hip}"
    found = _built_for()
    if found is not None and found.type != "cuda":
        return f"built for {found.type}"
    return f"built for CUDA: {torch.version.cuda or 'no'}"


def _what_torch_finds(found: torch.device | None) -> str:
    build = f"torch {torch.__version__} ({torch_build()})"
    if found is not None:
        return f"{build} moves batches to {found.type!r}; pass device={found.type!r} or 'cpu'"
    other = _built_for()
    if other is not None and other.type not in ("cuda", *_WITHOUT_STREAMS) and _version() < _FIRST_TORCH:
        return f"batches are moved to {other.type!r} by torch {'.'.join(map(str, _FIRST_TORCH))} or later, and this is {build}"
    return (
        f"{build} finds no device that batches can be moved to; pass device='cpu', or install a torch built for your accelerator "
        "and check its driver (nvidia-smi for NVIDIA's)"
    )


def _built_for() -> torch.device | None:
    """Return the accelerator for which torch is built; None: the CPU alone."""
    try:
        found = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6, which has one or raises
        return None
    return None if found is None or found.type == "cpu" else found


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
