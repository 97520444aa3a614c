"""datapipe: keeps GPUs fed.

`import datapipe` is cheap: torch is imported when a name that needs it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datapipe.errors import (
        DatapipeError,
        DecodeError,
        DependencyError,
        FormatError,
        IntegrityError,
        LifecycleError,
        MissingDataError,
        OptionError,
        StateError,
        StorageError,
        UnfinishedError,
    )
    from datapipe.loader import BadSample, DataLoader, Dataset
    from datapipe.observe import Observer, Stage, StageEvent
    from datapipe.transforms import *  # noqa: F403

__version__ = "0.1.0"

_ERRORS = (
    "DatapipeError", "DecodeError", "DependencyError", "FormatError", "IntegrityError", "LifecycleError",
    "MissingDataError", "OptionError", "StateError", "StorageError", "UnfinishedError",
)  # fmt: skip
_TRANSFORMS = (
    "IMAGENET_MEAN", "IMAGENET_STD", "CenterCrop", "ColorJitter", "CutMix", "GaussianBlur", "MixUp", "Normalize", "Pad",
    "RandAugment", "RandomCrop", "RandomErasing", "RandomGrayscale", "RandomHorizontalFlip", "RandomResizedCrop",
    "RandomVerticalFlip", "Resize", "ToDtype", "TrivialAugmentWide",
)  # fmt: skip
_HOMES = {
    **dict.fromkeys(("BadSample", "DataLoader", "Dataset"), "datapipe.loader"),
    **dict.fromkeys(("Observer", "Stage", "StageEvent"), "datapipe.observe"),
    **dict.fromkeys(_ERRORS, "datapipe.errors"),
    **dict.fromkeys(_TRANSFORMS, "datapipe.transforms"),
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'datapipe' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
