"""What one of nvImageCodec's engines decodes, and how exactly."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.gpu.libraries import told_libraries
from benchmarks.gpu.settings import Check

_CPU_ONLY = -99999  # 0.9 has a name for it; 0.8 has not, and decodes nothing where there is no driver
_HEIGHT, _WIDTH = 375, 500
_REGION = (101, 53, 301, 403)  # top, left, bottom, right
_FORMS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> Pillow's mode, its options
    "4:2:0": ("RGB", {"subsampling": 2}),
    "4:2:2": ("RGB", {"subsampling": 1}),
    "4:4:4": ("RGB", {"subsampling": 0}),
    "grey": ("L", {}),
    "4:2:0 progressive": ("RGB", {"subsampling": 2, "progressive": True}),
}
ENGINES = ("HW_GPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU", "CPU_ONLY")


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """The version, a result per form, region or whole, smooth chroma or not; then what was loaded. `arguments`: engine."""
    from nvidia import nvimgcodec

    yield {"version": nvimgcodec.__version__, "cuda": str(nvimgcodec.__cuda_version__)}
    engine = arguments["engine"]
    for is_smooth in (True, False):
        about = {"engine": engine, "smooth_chroma": is_smooth}
        try:
            decoder = nvimgcodec.Decoder(
                device_id=0 if check.device == "cuda" else getattr(nvimgcodec, "NVIMGCODEC_DEVICE_CPU_ONLY", _CPU_ONLY),
                backends=[nvimgcodec.Backend(getattr(nvimgcodec.BackendKind, engine))],
                options=f":fancy_upsampling={int(is_smooth)}",
            )
        except RuntimeError as exc:
            yield {**about, "error": str(exc)[:300]}
            continue
        for form, (mode, options) in _FORMS.items():
            data, expected = _encoded(mode, options)
            for view in ("whole", "region"):
                yield {**about, "form": form, "view": view, **_decoded(nvimgcodec, decoder, data, expected, view)}
    yield told_libraries()


def _decoded(nvimgcodec: Any, decoder: Any, data: bytes, expected: NDArray[np.uint8], view: str) -> dict[str, Any]:
    """Whether it was decoded at all, and how far from Pillow's pixels, of 255."""
    stream = nvimgcodec.CodeStream(data)
    if view == "region":
        top, left, bottom, right = _REGION
        stream = stream.get_sub_code_stream(0, nvimgcodec.Region(top, left, bottom, right))
        expected = expected[top:bottom, left:right]
    try:
        image = decoder.decode(stream, params=nvimgcodec.DecodeParams(apply_exif_orientation=False))
    except RuntimeError as exc:
        return {"is_decoded": False, "error": str(exc)[:300]}
    if image is None:
        return {"is_decoded": False}
    pixels = np.asarray(image.cpu())
    if pixels.shape != expected.shape:
        return {"is_decoded": True, "shape": list(pixels.shape)}
    difference = np.abs(pixels.astype(np.int16) - expected)
    return {"is_decoded": True, "max": int(difference.max()), "mean": round(float(difference.mean()), 4)}


def _encoded(mode: str, options: dict[str, Any]) -> tuple[bytes, NDArray[np.uint8]]:
    """A picture with smooth areas and colour edges, as JPEG, and what Pillow makes of that."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:_HEIGHT, :_WIDTH]
    waves = np.stack([np.sin(x / 9), np.cos(y / 13), np.sin((x + y) / 17)], axis=-1)
    pixels = np.clip(128 + 70 * waves + 40 * ((x // 32 + y // 24) % 2)[..., None] + rng.normal(0, 4, waves.shape), 0, 255)
    sink = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(sink, "JPEG", quality=90, **options)
    with Image.open(io.BytesIO(sink.getvalue())) as opened:
        return sink.getvalue(), np.asarray(opened.convert("RGB"))
