"""torchvision's transforms v2: its kernels for Pillow's images, and those that make tensors of them.

v2 finds a kernel by the type of what it is given, in a registry, so that is where kernels are replaced. What `to_image` gives
is a `tv_tensors.Image`, and so is its stand-in.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from datapipe.adapt.deferral import tensors
from datapipe.adapt.deferral.graph import Step
from datapipe.adapt.deferral.recorder import call_site, current

_FUNCTIONAL = "torchvision.transforms.v2.functional"
Replaced = dict[int, tuple[Any, Any]]  # by id of the original: it, and what stands in its place
Steps = dict[str, Callable[..., Any]]
CanRecord = Callable[[Any], bool]


def is_imported() -> bool:
    """Return whether the user's process has imported all of v2."""
    functional = sys.modules.get(_FUNCTIONAL)
    return functional is not None and hasattr(functional, "to_image") and hasattr(functional, "normalize")


def install(replaced: Replaced, steps: Steps, make_image: Callable[..., Any], can_record: CanRecord) -> None:
    """Replace v2's kernels. `replaced`: functions of v1 that are; `make_image`: records `to_image` of a Pillow image.

    Adds the original functions to `steps`, and what is to be replaced by name to `replaced`.
    """
    functional: Any = sys.modules[_FUNCTIONAL]
    registry: dict[Any, dict[type, Any]] = functional._utils._KERNEL_REGISTRY
    for kernels in registry.values():
        for kind, kernel in kernels.items():
            if id(kernel) in replaced:
                kernels[kind] = replaced[id(kernel)][1]
    steps["to_image"] = original = functional.to_image
    replaced[id(original)] = (original, functools.wraps(original)(functools.partial(make_image, original)))
    for name, kernel_name, plan in (("to_dtype", "to_dtype_image", _to_dtype), ("normalize", "normalize_image", _normalize)):
        steps[f"v2 {name}"] = getattr(functional, kernel_name)
        kernels = registry[getattr(functional, name)]
        for kind in (torch.Tensor, sys.modules["torchvision.tv_tensors"].Image):
            kernel = kernels[kind]
            kernels[kind] = functools.wraps(kernel)(functools.partial(_recording, kernel, f"v2 {name}", plan, can_record))


def image_type() -> type[torch.Tensor]:
    """Return the type of what `to_image` gives."""
    return sys.modules["torchvision.tv_tensors"].Image  # type: ignore[no-any-return]


def _recording(
    kernel: Callable[..., Any], name: str, plan: Callable[..., Any], can_record: CanRecord, image: Any, *args: Any, **kwargs: Any
) -> Any:
    fetch = current()
    parent = None if fetch is None else tensors.step_of(image, fetch)
    given = None if parent is None or not can_record(fetch) else plan(image, *args, **kwargs)
    if fetch is None or parent is None or given is None:
        return kernel(image, *args, **kwargs)
    site = call_site() if fetch.notes_sites else None
    step = Step(parent, name, given, "tensor", parent.size, given, site)
    return tensors.stand_in(step, tuple(image.shape), torch.float32, image.stride(), fetch, kind=type(image))


def _to_dtype(image: torch.Tensor, dtype: torch.dtype = torch.float32, scale: bool = False) -> tuple[Any, ...] | None:
    return (dtype, True) if scale and dtype is torch.float32 and image.dtype is torch.uint8 else None


def _normalize(image: torch.Tensor, mean: Any, std: Any, inplace: bool = False) -> tuple[Any, ...] | None:
    given = floats(mean, image.shape[0]), floats(std, image.shape[0])
    if inplace or image.dtype is not torch.float32 or given[0] is None or given[1] is None:
        return None
    return given if all(abs(value) > 1e-30 for value in given[1]) else None


def floats(values: Any, number: int) -> tuple[float, ...] | None:
    """Return that many numbers, one for each channel; None for anything else."""
    if isinstance(values, torch.Tensor):
        if values.dtype is not torch.float32 or values.dim() != 1:
            return None
        values = values.tolist()
    if not isinstance(values, (list, tuple)) or len(values) != number:
        return None
    if not all(isinstance(value, (int, float)) for value in values):
        return None
    return tuple(map(float, values))
