"""Models by name: two of our own, and those of torchvision and timm where they are installed."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

from datapipe.errors import DependencyError, OptionError
from datapipe.training.networks import ConvNet, VisionTransformer

BUILT_IN: dict[str, Callable[[int], nn.Module]] = {"cnn": ConvNet, "vit": VisionTransformer}
LIBRARIES = ("torchvision", "timm")
_THEIRS = "names of torchvision.models and timm.list_models() work too, as resnet50 or timm:convnext_tiny"
_SIZE_ARGUMENTS = {"torchvision": "image_size", "timm": "img_size"}


def make_model(name: str, num_classes: int, *, size: int | None = None) -> nn.Module:
    """The network of that name, its head made for `num_classes`, with random weights.

    "cnn" and "vit" are ours; any other name is looked for in torchvision and in timm, "timm:resnet18" in timm alone.
    `size`: side of the images in pixels, for networks that are made for one size, as most vision transformers are.
    Raises OptionError for a name that nothing here has, DependencyError where the library is not installed.
    """
    if name in BUILT_IN:
        return BUILT_IN[name](num_classes)
    library, colon, bare = name.partition(":")
    if colon and library not in LIBRARIES:
        raise OptionError(f"model {name!r}: no library {library!r}; choose one of {', '.join(LIBRARIES)}")
    known: list[str] = list(BUILT_IN)
    missing: list[DependencyError] = []
    for candidate in [library] if colon else LIBRARIES:
        try:
            models = _library(candidate)
        except DependencyError as exc:
            missing.append(exc)
            continue
        if (bare if colon else name) in (names := _names(candidate, models)):
            return _made(candidate, models, bare if colon else name, num_classes, size)
        known += names
    if missing and (colon or len(missing) == len(LIBRARIES)):
        reasons = "; ".join([*map(str, missing), f"once one can be imported, {_THEIRS}"])
        raise DependencyError(f"model {name!r} is not one of ours ({', '.join(BUILT_IN)}), and {reasons}")
    near = difflib.get_close_matches(bare if colon else name, sorted(set(known)), n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    ours = ", ".join(BUILT_IN)
    absent = "".join(f" ({exc})" for exc in missing)
    raise OptionError(f"model {name!r}: no such network; {hint}ours are {ours}; {_THEIRS}{absent}")


def _library(name: str) -> Any:
    """torchvision.models, or timm. By name, so that neither is needed until one is asked for."""
    try:
        return importlib.import_module({"torchvision": "torchvision.models"}.get(name, name))
    except ImportError as exc:
        raise DependencyError(f"{name} is not installed (pip install {name})") from exc
    except RuntimeError as exc:  # a torchvision that was built for another torch
        raise DependencyError(f"{name} does not go with this torch: {exc}") from exc


def _names(library: str, models: Any) -> list[str]:
    """Classifiers only: torchvision's detectors fetch weights from the network while they are made."""
    return list(models.list_models(module=models) if library == "torchvision" else models.list_models())


def _made(library: str, models: Any, name: str, num_classes: int, size: int | None) -> nn.Module:
    make = models.get_model if library == "torchvision" else models.create_model
    taken: dict[str, Any] = {"num_classes": num_classes}
    if size is not None:
        taken[_SIZE_ARGUMENTS[library]] = size
    try:
        try:
            model: nn.Module = make(name, **taken)
        except TypeError:  # most networks take images of any size, and no such argument
            model = make(name, num_classes=num_classes)
    except (TypeError, ValueError, AssertionError) as exc:  # not every one of them takes it
        raise OptionError(f"model {name!r} of {library} cannot be made with num_classes={num_classes}: {exc}") from exc
    return model
