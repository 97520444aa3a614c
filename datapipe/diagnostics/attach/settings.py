"""The settings that an attached process reads from its environment, and the environment that carries them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipe.diagnostics.attach.ours import ROOT

SETTINGS = "DATAPIPE_ATTACH_SETTINGS"  # `Settings` as JSON


@dataclass(frozen=True, slots=True)
class Applied:
    """A remedy that needs no edit of the user's code, for the loader made at one place."""

    site: str | None  # file:line; None: every loader
    num_workers: int | None = None  # None: as in the script
    prefetch_factor: int | None = None
    in_order: bool | None = None
    from_torch: bool = False  # datapipe makes its batches


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
    applied: Applied | None = None

    def to_environment(self) -> dict[str, str]:
        return {SETTINGS: json.dumps(dataclasses.asdict(self))}


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Return the settings; the defaults if there are none."""
    found: dict[str, Any] = json.loads(environment.get(SETTINGS) or "{}")
    applied = found.pop("applied", None)
    return Settings(**found, applied=None if applied is None else Applied(**applied))


ROOT_DIRECTORY = "DATAPIPE_ATTACH_ROOT"  # the directory of this package; `boot/sitecustomize.py` uses the name
WATCH = "DATAPIPE_ATTACH_WATCH"  # module:function, an OpenWatch
RESULTS = "DATAPIPE_ATTACH_RESULTS"  # the directory for the results of each process

_BOOT = Path(__file__).resolve().parent / "boot"


def child_environment(
    environment: Mapping[str, str], results: Path, *, open_watch: str, settings: Settings | None = None
) -> dict[str, str]:
    """Return `environment` with what attaches Python processes that get it.

    That is a `sitecustomize` in a directory put first on PYTHONPATH: the one place where Python looks in every process,
    without anything installed. A `.pth` file would have to be written to the user's site-packages.
    """
    python_path = [str(_BOOT), *filter(None, [environment.get("PYTHONPATH")])]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(python_path),
        ROOT_DIRECTORY: str(ROOT),
        WATCH: open_watch,
        RESULTS: str(results.resolve()),
        **(settings or Settings()).to_environment(),
    }
