"""Whether DALI's decoder makes pixels on this device: of regions or of whole images, and which nvJPEG is loaded."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.gpu.device import open_device
from benchmarks.gpu.libraries import told_libraries
from benchmarks.gpu.settings import Check

_TOP, _LEFT, _HEIGHT, _WIDTH = 24, 16, 30, 40  # of the region
_RUNS = 5  # the first may be well where a later one is not


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: data (an image folder), of ("regions", "whole images"), load (of the JPEG engines), batch_size."""
    on_gpu = open_device(check.device).name == "cuda"
    files = sorted(Path(arguments["data"]).glob("*/*"))
    encoded = [files[number % len(files)].read_bytes() for number in range(arguments["batch_size"])]
    expected = [_by_pillow(data) for data in encoded]
    pipeline = _pipeline(arguments["of"], len(encoded), arguments["load"], on_gpu=on_gpu)
    differences = []
    for _ in range(_RUNS):
        pipeline.feed_input("encoded", [np.frombuffer(data, np.uint8) for data in encoded])
        (made,) = pipeline.run()
        pixels = np.asarray((made.as_cpu() if on_gpu else made).as_tensor())
        differences += [float(np.abs(a.astype(np.int16) - b).mean()) for a, b in zip(pixels, expected, strict=True)]
    found = {"load": arguments["load"], "num_images": len(differences), "worst_mean_difference": round(max(differences), 4)}
    yield {**found, **told_libraries()}


def _pipeline(of: str, batch_size: int, load: float, *, on_gpu: bool) -> Any:
    from nvidia.dali import Pipeline, fn, types

    pipeline = Pipeline(batch_size=batch_size, num_threads=4, device_id=0 if on_gpu else None, prefetch_queue_depth=1)
    region: dict[str, Any] = {"start": [_TOP, _LEFT], "shape": [_HEIGHT, _WIDTH], "axes": [0, 1]}
    how: dict[str, Any] = {"adjust_orientation": False, "jpeg_fancy_upsampling": True}
    how |= {"device": "mixed", "hw_decoder_load": load, "affine": False} if on_gpu else {"device": "cpu"}
    with pipeline:
        data = fn.external_source(name="encoded", ndim=1, dtype=types.UINT8, batch=True)
        if of == "regions":
            pipeline.set_outputs(fn.decoders.image_slice(data, **region, **how))
        else:
            pipeline.set_outputs(fn.slice(fn.decoders.image(data, **how), **region))
    pipeline.build()
    return pipeline


def _by_pillow(data: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as opened:
        return np.asarray(opened.convert("RGB"))[_TOP : _TOP + _HEIGHT, _LEFT : _LEFT + _WIDTH]
