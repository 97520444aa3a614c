"""Run the trials of a script's data, in a process of its own and for a limited time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datapipe.instruments.attach.ours import ROOT
from datapipe.instruments.measure.recorded import TrialSource
from datapipe.instruments.trials.results import CACHED, CONVERTED, OURS, RESIZED, Trials

_GRACE_S = 20.0  # beyond the time for trials: for imports, and for the trial in progress


def run_trials(
    source: TrialSource | None, directory: Path, *, seconds: float, evicts: bool, tell: Callable[[str], None]
) -> Trials:
    """Try remedies on what was kept of a loader's data, and return the results, with those of its own process.

    `directory`: where that process left its records. `seconds`: for all trials; 0: none. `evicts`: files are read from storage
    each time. `tell` is called when trials begin.
    """
    if not seconds:
        return Trials(reasons={"": "trials were not requested (--trials 0)"})
    if source is None or source.file is None:
        reason = (source.reason if source else None) or "its data was not recorded"
        none = Trials(reasons={"": reason})
        return none if source is None else dataclasses.replace(none, deferral=source.deferral, scaling=source.scaling)
    tell(f"trying datapipe's loader on some of its samples, for about {seconds:.0f} s")
    tried = _tried(directory / source.file, seconds=seconds, evicts=evicts)
    return dataclasses.replace(tried, scaling=source.scaling)


def _tried(sample: Path, *, seconds: float, evicts: bool) -> Trials:
    result = sample.with_suffix(".json")
    # -P and the path: folders in the user's working directory may have our names
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    arguments = [str(sample), str(result), str(seconds), str(int(evicts))]
    note = "there was no time left to try it"
    with contextlib.suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "datapipe.instruments.trials.process", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONPATH": path},
            timeout=seconds + _GRACE_S,
        )
        if ended.returncode:
            last = ended.stderr.strip().rpartition("\n")[2] or f"status {ended.returncode}"
            note = f"trying it failed: {last}"
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(result.read_text())
    if not found:
        return Trials(reasons={"": note})
    missing = dict.fromkeys((OURS, CONVERTED, CACHED, RESIZED), note)
    facts = {name: found[name] for name in ("resized_to", "where", "batch_size", "reads_shards")}
    return Trials(found["rates"], {**missing, **found["reasons"]}, **facts)
