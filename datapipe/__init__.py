"""Keep GPUs fed: convert small-file datasets into shards, load them fast, and diagnose training that waits for data.

`import datapipe` is cheap: torch is imported when a name that needs it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from datapipe import errors

if TYPE_CHECKING:
    from datapipe import transforms
    from datapipe.adapt import from_torch
    from datapipe.columns.recipe import Columns
    from datapipe.containers.form import Form
    from datapipe.core.observe import Observer, Stage, StageEvent
    from datapipe.diagnostics.monitor import Monitor
    from datapipe.kernel.bad_samples import BadSample
    from datapipe.kernel.cache_settings import Cache
    from datapipe.kernel.explanation import explain
    from datapipe.kernel.prefetching import prefetch
    from datapipe.kernel.samplers import WeightedSampler
    from datapipe.kinds.audio.data import Audio
    from datapipe.kinds.clips.data import Clips
    from datapipe.kinds.conversations.data import Conversations
    from datapipe.kinds.images.dali.settings import Dali
    from datapipe.kinds.images.data import Images
    from datapipe.kinds.loader import DataLoader
    from datapipe.kinds.registry import mix
    from datapipe.kinds.tables.data import Table, TableLoader
    from datapipe.kinds.tables.jagged import Jagged
    from datapipe.kinds.tokens.data import Tokens
    from datapipe.remote_workers.settings import Workers
    from datapipe.stores.settings import Remote
    from datapipe.transforms.buckets import Buckets

__version__ = "0.2.0"

__all__ = [
    "Audio",
    "BadSample",
    "Buckets",
    "Cache",
    "Clips",
    "Columns",
    "Conversations",
    "Dali",
    "DataLoader",
    "Form",
    "Images",
    "Jagged",
    "Monitor",
    "Observer",
    "Remote",
    "Stage",
    "StageEvent",
    "Table",
    "TableLoader",
    "Tokens",
    "WeightedSampler",
    "Workers",
    "__version__",
    "errors",
    "explain",
    "from_torch",
    "mix",
    "prefetch",
    "transforms",
]

# Where each name is defined.
_HOMES = {
    "Audio": "datapipe.kinds.audio.data",
    "BadSample": "datapipe.kernel.bad_samples",
    "Cache": "datapipe.kernel.cache_settings",
    "Clips": "datapipe.kinds.clips.data",
    "Columns": "datapipe.columns.recipe",
    "Conversations": "datapipe.kinds.conversations.data",
    "Dali": "datapipe.kinds.images.dali.settings",
    "DataLoader": "datapipe.kinds.loader",
    "Form": "datapipe.containers.form",
    "Buckets": "datapipe.transforms.buckets",
    "Images": "datapipe.kinds.images.data",
    "Jagged": "datapipe.kinds.tables.jagged",
    "Monitor": "datapipe.diagnostics.monitor",
    "Observer": "datapipe.core.observe",
    "Remote": "datapipe.stores.settings",
    "Stage": "datapipe.core.observe",
    "StageEvent": "datapipe.core.observe",
    "Table": "datapipe.kinds.tables.data",
    "TableLoader": "datapipe.kinds.tables.data",
    "Tokens": "datapipe.kinds.tokens.data",
    "WeightedSampler": "datapipe.kernel.samplers",
    "Workers": "datapipe.remote_workers.settings",
    "explain": "datapipe.kernel.explanation",
    "from_torch": "datapipe.adapt",
    "mix": "datapipe.kinds.registry",
    "prefetch": "datapipe.kernel.prefetching",
}


def __getattr__(name: str) -> Any:
    if name == "transforms":
        return importlib.import_module("datapipe.transforms")
    if name not in _HOMES:
        raise AttributeError(f"module 'datapipe' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
