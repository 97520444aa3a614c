"""Keep GPUs fed: convert small-file datasets into shards, load them fast, and diagnose training that waits for data.

`import datapipe` is cheap: torch is imported when a name that needs it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datapipe.adapt import from_torch
    from datapipe.columns.recipe import Columns
    from datapipe.core.errors import (
        BackendError,
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
    from datapipe.core.observe import Observer, Stage, StageEvent
    from datapipe.diagnostics.monitor import Monitor
    from datapipe.kernel.bad_samples import BadSample
    from datapipe.kernel.explanation import explain
    from datapipe.kernel.prefetching import prefetch
    from datapipe.kernel.samplers import WeightedSampler
    from datapipe.kinds.images.dali.settings import Dali
    from datapipe.kinds.images.dataset import Dataset, mix
    from datapipe.kinds.images.loader import DataLoader
    from datapipe.kinds.tables.jagged import Jagged
    from datapipe.kinds.tables.loader import TableLoader
    from datapipe.stores.settings import Remote
    from datapipe.transforms import (
        IMAGENET_MEAN,
        IMAGENET_STD,
        CenterCrop,
        ColorJitter,
        CutMix,
        GaussianBlur,
        MixUp,
        Normalize,
        Pad,
        RandAugment,
        RandomAdjustSharpness,
        RandomApply,
        RandomAutocontrast,
        RandomChoice,
        RandomCrop,
        RandomEqualize,
        RandomErasing,
        RandomGrayscale,
        RandomHorizontalFlip,
        RandomInvert,
        RandomOrder,
        RandomPosterize,
        RandomResizedCrop,
        RandomSolarize,
        RandomVerticalFlip,
        Resize,
        ToDtype,
        TrivialAugmentWide,
    )

__version__ = "0.1.0"

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "BackendError",
    "BadSample",
    "CenterCrop",
    "ColorJitter",
    "Columns",
    "CutMix",
    "Dali",
    "DataLoader",
    "DatapipeError",
    "Dataset",
    "DecodeError",
    "DependencyError",
    "FormatError",
    "GaussianBlur",
    "IntegrityError",
    "Jagged",
    "LifecycleError",
    "MissingDataError",
    "MixUp",
    "Monitor",
    "Normalize",
    "Observer",
    "OptionError",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Remote",
    "Resize",
    "Stage",
    "StageEvent",
    "StateError",
    "StorageError",
    "TableLoader",
    "ToDtype",
    "TrivialAugmentWide",
    "UnfinishedError",
    "WeightedSampler",
    "__version__",
    "explain",
    "from_torch",
    "mix",
    "prefetch",
]

_NAMES = {
    "datapipe.kernel.bad_samples": ("BadSample",),
    "datapipe.kernel.explanation": ("explain",),
    "datapipe.kernel.prefetching": ("prefetch",),
    "datapipe.kernel.samplers": ("WeightedSampler",),
    "datapipe.kinds.images.dali.settings": ("Dali",),
    "datapipe.kinds.images.dataset": ("Dataset", "mix"),
    "datapipe.kinds.images.loader": ("DataLoader",),
    "datapipe.adapt": ("from_torch",),
    "datapipe.kinds.tables.jagged": ("Jagged",),
    "datapipe.kinds.tables.loader": ("TableLoader",),
    "datapipe.columns.recipe": ("Columns",),
    "datapipe.diagnostics.monitor": ("Monitor",),
    "datapipe.core.observe": ("Observer", "Stage", "StageEvent"),
    "datapipe.stores.settings": ("Remote",),
    "datapipe.core.errors": tuple(name for name in __all__ if name.endswith("Error")),
}
_HOMES = dict.fromkeys(__all__, "datapipe.transforms") | {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES or name.startswith("_"):
        raise AttributeError(f"module 'datapipe' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
