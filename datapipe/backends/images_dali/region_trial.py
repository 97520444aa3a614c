"""Test whether a GPU decodes regions of JPEGs: once, in a separate process, with the result cached.

Some versions of nvImageCodec end the process, or fail, on the first region that a GPU decodes (NVIDIA/nvImageCodec#55: a
segmentation fault on H100 and B200, error 8 on A100). Only a test can tell.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from datapipe.backends.images_dali.gate import CutForm
from datapipe.backends.images_dali.installation import installation
from datapipe.backends.images_dali.settings import GraphOptions
from datapipe.core.environment import version_of
from datapipe.core.user_cache import TRIALS, remembered
from datapipe.core.waiting import reported_wait
from datapipe.transforms.execute import cut, row_cuts
from datapipe.transforms.protocols import Cuts

_LIMIT_S = 180.0  # for the process, which imports torch and DALI and creates a context
_SIDE = 64  # pixels of the output images
_NUM_RUNS = 3
MAX_MEAN_DIFFERENCE = 2.0  # of 255, from Pillow's pixels; chroma and resize differ by less than 0.5

# (height, width, chroma, progressive): below and above the million pixels from which the GPU also does Huffman decoding
_IMAGES = ((160, 200, 2, 0), (375, 500, 2, 0), (1200, 1600, 2, 0), (375, 500, 0, 0), (375, 500, 1, 0), (375, 500, 2, 1))
_DISTRIBUTIONS = (
    "nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13", "nvidia-nvjpeg",
    "nvidia-nvjpeg-cu12",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RegionTrial:
    """The result of a test of region decoding."""

    works: bool
    problem: str  # "" where it works


def region_problem(device_id: int, *, hw_decoder_load: float) -> str | None:
    """Return why that GPU gets whole images to decode instead of regions; None if it decodes regions."""
    found = installation()
    if not found.decodes_regions:
        return f"nvJPEG {found.nvjpeg or 'of unknown version'} is older than 13.2"
    trial = region_trial(device_id, hw_decoder_load=hw_decoder_load)
    return None if trial.works else trial.problem


def region_trial(device_id: int | None, *, hw_decoder_load: float) -> RegionTrial:
    """Test whether that GPU decodes regions, or return the cached result for this GPU, driver and libraries.

    `device_id`: None tests the CPU. `hw_decoder_load`: only zero or non-zero matters, which decides whether engines are used.
    """
    uses_engines = hw_decoder_load > 0
    circumstances = {
        "gpu": "cpu" if device_id is None else torch.cuda.get_device_name(device_id),
        "driver": _driver_version(),
        "uses_engines": uses_engines,
        "versions": {name: version_of(name) for name in _DISTRIBUTIONS},
    }
    return remembered(
        TRIALS,
        circumstances,
        make=lambda: asdict(_try_in_child(device_id, uses_engines=uses_engines)),
        parse=lambda found: RegionTrial(bool(found["works"]), str(found["problem"])),
    )


def _try_in_child(device_id: int | None, *, uses_engines: bool) -> RegionTrial:
    command = [sys.executable, "-P", "-c", f"from {__name__} import main; main({device_id!r}, {uses_engines!r})"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        with reported_wait("a test of DALI", "whether it decodes regions here, once for a GPU and its driver"):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return RegionTrial(False, f"its test did not end within {_LIMIT_S:.0f} s")
    if done.returncode < 0:
        return RegionTrial(False, f"its test was killed by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return RegionTrial(False, f"its test failed: {said[-1][:300]}")
    difference = float(json.loads(done.stdout.splitlines()[-1]))
    if not difference <= MAX_MEAN_DIFFERENCE:
        return RegionTrial(False, f"its pixels are {difference:.1f} of 255 off on average")
    return RegionTrial(True, "")


def main(device_id: int | None, uses_engines: bool) -> None:
    """Decode regions, and print how much they differ from Pillow's: the mean of the worst image, of 255."""
    from datapipe.backends.images_dali.pipeline import DaliPipeline  # needs DALI, which the parent process need not import

    pictures = [_picture(number, height, width) for number, (height, width, _, _) in enumerate(_IMAGES)]
    encoded = [_jpeg(pixels, chroma, progressive) for pixels, (_, _, chroma, progressive) in zip(pictures, _IMAGES, strict=True)]
    cuts = _cuts(np.array([(height, width) for height, width, _, _ in _IMAGES], np.int64))
    expected = np.stack([_by_pillow(data, how) for data, how in zip(encoded, row_cuts(cuts), strict=True)])
    load = 1.0 if uses_engines else 0.0
    options = GraphOptions(_SIDE, _SIDE, len(_IMAGES), device_id, CutForm(False, (0, 0, 0)), True, 2, load)
    pipeline = DaliPipeline(options)
    worst = 0.0
    for _ in range(_NUM_RUNS):
        stream = None if device_id is None else torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]
        pixels, _ = pipeline.run(encoded, cuts, stream)
        if stream is not None:
            stream.synchronize()
        found = pixels.cpu().numpy().astype(np.int16)
        worst = max(worst, float(np.abs(found - expected).mean(axis=(1, 2, 3)).max()))
    print(json.dumps(worst), flush=True)


def _cuts(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> Cuts:
    """Return a region in the middle of each image, at odd positions."""
    region = np.concatenate([sizes // 5 | 1, sizes // 2 | 1], axis=1)
    size = np.full((len(sizes), 2), _SIDE, np.int64)
    window = np.concatenate([np.zeros_like(size), size], axis=1)
    return Cuts(region, size, window, np.zeros((len(sizes), 2), np.bool_))


def _picture(number: int, height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return smooth coloured blotches, in which a region from another position differs a lot."""
    coarse = np.random.default_rng(number).integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def _jpeg(pixels: np.ndarray[Any, np.dtype[np.uint8]], chroma: int, progressive: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=92, subsampling=chroma, progressive=bool(progressive))
    return file.getvalue()


def _by_pillow(data: bytes, how: Any) -> np.ndarray[Any, np.dtype[np.int16]]:
    top, left, height, width = how.region
    with Image.open(io.BytesIO(data)) as image:
        region = np.array(image.convert("RGB").crop((left, top, left + width, top + height)))
    out = np.empty((_SIDE, _SIDE, 3), np.uint8)
    cut(region, how, out)
    return out.astype(np.int16)


def _driver_version() -> str:
    """Return the version of NVIDIA's kernel driver from its files; "" if there is none."""
    with contextlib.suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return ""
