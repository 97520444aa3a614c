"""The results of trials, from which predictions are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OURS, CACHED, CONVERTED, RESIZED = "ours", "cached", "converted", "resized"  # names of the trials


@dataclass(frozen=True, slots=True)
class Trials:
    """The results of trying datapipe's loader on some of the data."""

    rates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> sample_s, spread, num_threads, num_samples
    reasons: Mapping[str, str] = field(default_factory=dict)  # name, or "" for all -> why there is no result
    resized_to: int | None = None  # shorter side, pixels
    where: str = ""  # the dataset's root
    batch_size: int | None = None  # of the loader's batches, whichever component makes them
    reads_shards: bool = False  # the dataset already streams from shards
    deferral: Mapping[str, Any] | None = None  # "ratio" of CPU time, "spread"; or "reason"; or "rows"; None: no own Dataset
    scaling: Mapping[str, Any] | None = None  # the result of `trials.scaling.try_scaling`; None: it was not tried
