"""Test whether a GPU decodes regions of JPEGs: once, in a separate process, with the result cached.

Some versions of nvImageCodec end the process, or fail, on the first region that a GPU decodes (NVIDIA/nvImageCodec#55: a
segmentation fault on H100 and B200, error 8 on A100). An nvJPEG older than 13.2 refuses them, and the CPU silently takes over.
Only a test can tell.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch

from datapipe.core.environment import driver_version, importing_as_here, version_of
from datapipe.core.user_cache import TRIALS, remembered
from datapipe.core.waiting import reported_wait
from datapipe.kinds.images.dali import region_decoding
from datapipe.kinds.images.dali.installation import installation

DISTRIBUTIONS = (  # whose versions decide what a GPU decodes, and how fast
    "nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13", "nvidia-nvjpeg",
    "nvidia-nvjpeg-cu12",
)  # fmt: skip
MAX_MEAN_DIFFERENCE = 2.0  # of 255, from Pillow's pixels; chroma and resize differ by less than 0.5

_LIMIT_S = 180.0  # for the process, which imports torch and DALI and creates a context
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE))  # other signals come from outside
# In what a process says if the GPU lacked memory or time for it. Another time the trial may work.
_PASSING = re.compile(
    r"out.of.memory|bad.?alloc|MemoryError|MemoryAllocation|alloc\w* failed|cannot allocate|is busy|are busy|DevicesUnavailable|"
    r"no space left",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RegionTrial:
    """The result of a test of region decoding."""

    works: bool
    problem: str  # "" where it works
    is_certain: bool = True  # False: it may come out differently the next time


def region_problem(device_id: int, *, hw_decoder_load: float) -> str | None:
    """Return why that GPU gets whole images to decode instead of regions; None if it decodes regions."""
    found = installation()
    if found.nvjpeg is not None and not found.decodes_regions:
        return f"nvJPEG {found.nvjpeg} is older than 13.2"
    trial = region_trial(device_id, hw_decoder_load=hw_decoder_load)
    return None if trial.works else trial.problem


def region_trial(device_id: int | None, *, hw_decoder_load: float) -> RegionTrial:
    """Test whether that GPU decodes regions, or return the earlier result for this GPU, driver and libraries.

    A result that is certain is kept between runs; one that is not (the GPU was busy or out of memory, the process was killed or
    too slow) is kept in this process only. `device_id`: None tests the CPU. `hw_decoder_load`: only zero or non-zero matters,
    which decides whether engines are used.
    """
    uses_engines = hw_decoder_load > 0
    circumstances = {
        "gpu": "cpu" if device_id is None else torch.cuda.get_device_name(device_id),
        "driver": driver_version(),
        "uses_engines": uses_engines,
        "versions": {name: version_of(name) for name in DISTRIBUTIONS},
        "library_path": os.environ.get("LD_LIBRARY_PATH", ""),  # decides which nvJPEG is loaded
    }
    key = json.dumps(circumstances, sort_keys=True)
    if key not in _uncertain:
        trial = remembered(
            TRIALS,
            circumstances,
            make=lambda: asdict(_try_in_child(device_id, uses_engines=uses_engines)),
            parse=lambda found: RegionTrial(bool(found["works"]), str(found["problem"]), bool(found["is_certain"])),
            is_kept=lambda trial: trial.is_certain,
        )
        if trial.is_certain:
            return trial
        _uncertain[key] = trial
    return _uncertain[key]


_uncertain: dict[str, RegionTrial] = {}  # by circumstances; of this process


def _try_in_child(device_id: int | None, *, uses_engines: bool) -> RegionTrial:
    command = [sys.executable, "-P", "-c", f"from {region_decoding.__name__} import main; main({device_id!r}, {uses_engines!r})"]
    environment = {
        "PYNVIMGCODEC_VERBOSITY": "2",  # else it does not say why the GPU refuses an image
        **importing_as_here(),
    }
    try:
        with reported_wait("a test of DALI", "whether it decodes regions here, once for a GPU and its driver"):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return RegionTrial(False, f"its test did not end within {_LIMIT_S:.0f} s", is_certain=False)
    is_lasting = _PASSING.search(done.stderr) is None
    if done.returncode < 0:
        ended_by = signal.Signals(-done.returncode)
        return RegionTrial(False, f"its test was killed by {ended_by.name}", is_certain=is_lasting and ended_by in _CRASHES)
    if done.returncode:  # before or after the decoding, whose errors are part of the answer
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return RegionTrial(False, f"its test failed: {said[-1][:300]}", is_certain=False)
    problem = _problem_of(json.loads(done.stdout.splitlines()[-1]))
    return RegionTrial(True, "") if not problem else RegionTrial(False, problem, is_lasting and _PASSING.search(problem) is None)


def _problem_of(found: dict[str, Any]) -> str:
    """Return what is wrong with the answer of `region_decoding`; "" if regions are decoded as they should be."""
    if found["failure"]:
        return f"its test failed: {found['failure']}"
    if found["too_old"]:
        return f"{found['nvjpeg']} is loaded, which is older than 13.2"
    if found["on_cpu"]:
        by = f" with {found['nvjpeg']}" if found["nvjpeg"] else ""
        return f"regions fall back to the CPU{by}: {', '.join(found['on_cpu'])}"
    if not found["difference"] <= MAX_MEAN_DIFFERENCE:
        return f"its pixels are {found['difference']:.1f} of 255 off on average"
    return ""
