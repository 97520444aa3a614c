"""What a run of the check is given; the same for all stages."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Minutes that each stage is given, in the order in which they are run. A result file each.
FIRST_HALF = {"tests": 2.0, "correct": 6.0, "sweep": 8.0, "train": 7.0, "diagnose": 4.0}
SECOND_HALF = {"damaged": 2.0, "survive": 4.0, "overlap": 2.0, "tokens": 3.0, "further": 4.0}
APART = {"tables": 8.0, "clips": 5.0}  # need cuDF, or PyAV and PyNvVideoCodec, in place of DALI
STAGES = FIRST_HALF | SECOND_HALF | APART
_ROOMY = 10_000_000_000  # bytes that the photographs take, with room to spare


@dataclass(frozen=True, slots=True)
class Check:
    """Where, on what, and for how long."""

    out: Path  # results, a JSON file per stage
    data: Path  # photographs, made where they are missing
    is_dry: bool = False  # the same lines on the CPU, over tiny images; says nothing about a GPU
    minutes: float | None = None  # per stage; None: as in STAGES
    spare: str = ""  # folder with another nvImageCodec, to be asked by itself; empty: there is none
    photos: str = "generated"  # or an image folder whose JPEGs are taken
    commit: str = ""  # where git cannot say

    @property
    def device(self) -> str:
        return "cpu" if self.is_dry else "cuda"

    def minutes_of(self, stage: str) -> float:
        """How long a stage may take."""
        return STAGES[stage] if self.minutes is None else self.minutes

    def pick(self, real: Any, dry: Any) -> Any:
        """A size for the GPU, or the one that is enough to run the lines."""
        return dry if self.is_dry else real

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "out": str(self.out), "data": str(self.data)})

    @classmethod
    def from_json(cls, text: str) -> Check:
        value = json.loads(text)
        return cls(**{**value, "out": Path(value["out"]), "data": Path(value["data"])})


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a stage must be done."""

    at: float  # time.monotonic

    @classmethod
    def after(cls, minutes: float) -> Deadline:
        return cls(time.monotonic() + 60 * minutes)

    def less(self, seconds: float) -> Deadline:
        """One that is so much earlier."""
        return Deadline(self.at - seconds)

    @property
    def left_s(self) -> float:
        return self.at - time.monotonic()


def num_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def default_data() -> Path:
    """A place in memory if there is room for the photographs, else on disk: reading is not what is measured."""
    shared = Path("/dev/shm")
    if shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > _ROOMY:
        return shared / "datapipe-gpu"
    return Path(tempfile.gettempdir()) / "datapipe-gpu"
