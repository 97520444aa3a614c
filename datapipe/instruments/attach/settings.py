"""The settings of attached processes, and the remedy that is applied in them, passed through their environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

SETTINGS = "DATAPIPE_ATTACH_SETTINGS"  # `Settings` as JSON
ROOT_DIRECTORY = "DATAPIPE_ATTACH_ROOT"  # the directory of this package; `boot/sitecustomize.py` uses the name
WATCH = "DATAPIPE_ATTACH_WATCH"  # module:function: an OpenWatch that takes the environment too
RESULTS = "DATAPIPE_ATTACH_RESULTS"  # the directory for the results of each process
RECORDING = "datapipe.instruments.attach.recording:open_recording"


@dataclass(frozen=True, slots=True)
class Applied:
    """A remedy that needs no edit of the user's code, for the loader made at one place."""

    site: str | None  # file:line; None: every loader
    num_workers: int | None = None  # None: as in the script
    prefetch_factor: int | None = None
    in_order: bool | None = None
    from_torch: bool = False  # datapipe makes its batches
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an attachment. The defaults change nothing."""

    nvtx: bool = False  # NVTX ranges around what is measured
    max_steps: int | None = None  # training steps to measure; the script continues after that
    ends_after: int | None = None  # training steps; at the next batch the script is ended, as by `sys.exit(0)`
    tries_dataset_s: float = 0.0  # for which the script's Dataset is tried, in forks at the end of the measurement; 0: not
    keeps_samples: bool = False  # record the files that a loader reads, so that remedies can be tried on some of them
    snapshot_s: float = 10.0  # a snapshot is written after this time, twice this time, and so on: a signal may end the script
    profile: str | None = None  # a directory for a window of `torch.profiler`
    counts_operations: bool = False  # those of a few steps, for a roofline of the model
    applied: Applied | None = None


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Return the settings; the defaults if there are none."""
    return msgspec.json.decode(environment.get(SETTINGS) or "{}", type=Settings)
