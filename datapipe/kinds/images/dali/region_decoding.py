"""Decode regions of JPEGs on one device, and say what came of it: the process that `region_trial` starts.

DALI does not say where it decoded: what the GPU refuses, nvImageCodec decodes on the CPU. So nvImageCodec by itself is asked for
the same regions first, without its backends that decode on the CPU.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from datapipe.codecs.decode import import_nvimgcodec
from datapipe.kinds.images.dali.gate import CutForm
from datapipe.kinds.images.dali.installation import loaded_nvjpeg
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.transforms.execute import cut, row_cuts
from datapipe.transforms.protocols import Cuts

_SIDE = 64  # pixels of the output images
_NUM_RUNS = 3
_CHROMA = ("4:4:4", "4:2:2", "4:2:0")  # by Pillow's numbers

# (height, width, chroma, progressive): below and above the million pixels from which the GPU also does Huffman decoding
_IMAGES = ((160, 200, 2, 0), (375, 500, 2, 0), (1200, 1600, 2, 0), (375, 500, 0, 0), (375, 500, 1, 0), (375, 500, 2, 1))


def main(device_id: int | None, uses_engines: bool) -> None:
    """Decode regions, and print the answer as JSON.

    `on_cpu`: images whose regions only a CPU decodes; `nvjpeg`: what is loaded; `too_old`: whether it is; `failure`: of
    DALI's run; `difference`: from Pillow's pixels, the mean of the worst image, of 255.
    """
    pictures = [_picture(number, height, width) for number, (height, width, _, _) in enumerate(_IMAGES)]
    encoded = [_jpeg(pixels, chroma, progressive) for pixels, (_, _, chroma, progressive) in zip(pictures, _IMAGES, strict=True)]
    cuts = _cuts(np.array([(height, width) for height, width, _, _ in _IMAGES], np.int64))
    fallen_back = regions_left_to_cpu(encoded, cuts, device_id, uses_engines=uses_engines)
    nvjpeg = loaded_nvjpeg()
    difference, failure = _difference_by_dali(encoded, cuts, device_id, uses_engines=uses_engines)
    found = {
        "on_cpu": [_name(*_IMAGES[row]) for row in fallen_back],
        "nvjpeg": "" if nvjpeg is None else str(nvjpeg),
        "too_old": device_id is not None and nvjpeg is not None and not nvjpeg.decodes_regions,
        "failure": failure,
        "difference": difference,
    }
    print(json.dumps(found), flush=True)


def regions_left_to_cpu(
    encoded: Sequence[bytes], cuts: Cuts, device_id: int | None, *, uses_engines: bool, backends: Sequence[str] = ()
) -> list[int]:
    """Return the rows whose region the GPU leaves to the CPU although it decodes the whole image; all, if it decodes none.

    `device_id`: None asks the backends of the CPU. `backends`: names of nvImageCodec's kinds, to ask others.
    """
    nvimgcodec: Any = import_nvimgcodec()
    on_gpu = ("HW_GPU_ONLY",) * uses_engines + ("GPU_ONLY", "HYBRID_CPU_GPU")
    names = backends or (("CPU_ONLY",) if device_id is None else on_gpu)
    decoder = nvimgcodec.Decoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY if device_id is None else device_id,
        backends=[nvimgcodec.Backend(getattr(nvimgcodec.BackendKind, name)) for name in names],
        options=":fancy_upsampling=1",
    )
    streams = [nvimgcodec.CodeStream(data) for data in encoded]
    regions = [
        stream.get_sub_code_stream(0, nvimgcodec.Region(top, left, top + height, left + width))
        for stream, (top, left, height, width) in zip(streams, cuts.region.tolist(), strict=True)
    ]
    params = nvimgcodec.DecodeParams(apply_exif_orientation=False)
    takes_whole, takes_region = (
        [image is not None for image in decoder.decode(asked, params=params)] for asked in (streams, regions)
    )
    if not any(takes_whole):
        return list(range(len(encoded)))
    return [row for row, takes in enumerate(takes_region) if takes_whole[row] and not takes]


def _difference_by_dali(encoded: Sequence[bytes], cuts: Cuts, device_id: int | None, *, uses_engines: bool) -> tuple[float, str]:
    """Return the difference of DALI's pixels from Pillow's, and the failure of its run, "" if there was none."""
    from datapipe.kinds.images.dali.pipeline import DaliPipeline, RunError  # needs DALI, which the parent need not import

    expected = np.stack([_by_pillow(data, how) for data, how in zip(encoded, row_cuts(cuts), strict=True)])
    load = 1.0 if uses_engines else 0.0
    options = GraphOptions(_SIDE, _SIDE, len(_IMAGES), device_id, CutForm(False, (0, 0, 0)), True, 2, load)
    pipeline = DaliPipeline(options)
    worst = 0.0
    for _ in range(_NUM_RUNS):
        stream = None if device_id is None else torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]
        try:
            pixels, _ = pipeline.run(encoded, cuts, stream)
        except RunError as exc:
            return worst, str(exc)
        if stream is not None:
            stream.synchronize()
        found = pixels.cpu().numpy().astype(np.int16)
        worst = max(worst, float(np.abs(found - expected).mean(axis=(1, 2, 3)).max()))
    return worst, ""


def _name(height: int, width: int, chroma: int, progressive: int) -> str:
    return f"{_CHROMA[chroma]}{' progressive' * progressive} of {height} x {width}"


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
