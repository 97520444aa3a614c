"""Try remedies on a sample of a script's data, in a process of its own and for a limited time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datapipe.analysis.judge.analysis import Analysis
from datapipe.instruments.attach.ours import ROOT
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.trials import CACHED, CONVERTED, OURS, RESIZED

_GRACE_S = 20.0  # beyond the time for trials: for imports, and for the trial in progress


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


@dataclass(frozen=True, slots=True)
class Trying:
    """A `Try`. One rank records for all: loaders are numbered alike on each."""

    results: Path  # where the script's processes left their records
    processes: Sequence[Process]
    seconds: float  # for all trials; 0: none
    tell: Callable[[str], None]

    def __call__(self, found: Analysis) -> Trials:
        assert found.loader is not None
        key, dataset = found.loader.key, found.loader.dataset
        alike = (one for one in self.processes if key in one.loaders and one.loaders[key].dataset == dataset)
        source = next((one.sources[key] for one in alike if key in one.sources), None)
        if not self.seconds:
            return Trials(reasons={"": "trials were not requested (--trials 0)"})
        if source is None or source.file is None:
            reason = (source.reason if source else None) or "its data was not recorded"
            none = Trials(reasons={"": reason})
            return none if source is None else dataclasses.replace(none, deferral=source.deferral, scaling=source.scaling)
        self.tell(f"trying datapipe's loader on some of its samples, for about {self.seconds:.0f} s")
        tried = self._try(self.results / source.file, evicts=_waits_for_storage(found))
        return dataclasses.replace(tried, scaling=source.scaling)

    def _try(self, sample: Path, *, evicts: bool) -> Trials:
        result = sample.with_suffix(".json")
        # -P and the path: folders in the user's working directory may have our names
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        arguments = [str(sample), str(result), str(self.seconds), str(int(evicts))]
        note = "there was no time left to try it"
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = subprocess.run(
                [sys.executable, "-P", "-m", "datapipe.instruments.trials.process", *arguments],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=os.environ | {"PYTHONPATH": path},
                timeout=self.seconds + _GRACE_S,
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


def _waits_for_storage(found: Analysis) -> bool:
    """Return True if the script's files came from storage rather than memory, as they then must in trials."""
    nbytes = [profile.made.counters.storage_nbytes for profile in found.profiles]
    known = [one for one in nbytes if one is not None]
    read = [one for profile in found.profiles if (one := profile.made.counters.read_nbytes) is not None]
    return bool(known) and sum(known) > 0.5 * sum(read)
