"""Make JPEGs of every kind that cameras and libraries write, to try decoders on. They are the same in every process."""

from __future__ import annotations

import io
from collections.abc import Hashable
from typing import Any, cast

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

_HEIGHT, _WIDTH = 72, 88
_SUBSAMPLINGS = {(1, 1): "444", (2, 1): "422", (2, 2): "420", (1, 2): "440"}
_BY_PILLOW = {"444": 0, "422": 1, "420": 2}
_YCC, _RGB, _FROM_ZERO = (1, 2, 3), (82, 71, 66), (0, 1, 2)  # what components are called
_SOF, _SOS, _ADOBE = (0xC0, 0xC1, 0xC2), 0xDA, 0xEE


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """Return (height, width, 3) RGB with gradients, edges, saturated colours and noise."""
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([x * 255 / width, y * 255 / height, 127 + 127 * np.sin(x / 9 + y / 5)], -1)
    noise = np.random.default_rng(17).normal(0, 20, smooth.shape)
    edges = ((x // 11 + y // 7) % 5 == 0)[:, :, None] * np.array([255, -255, 120])
    made: NDArray[np.uint8] = np.clip(smooth + noise + edges, 0, 255).astype(np.uint8)
    return made


def jpeg_of(kind: Hashable) -> bytes | None:
    """Return a JPEG of a source's kind; None for a kind that is not known to be decoded alike by all decoders."""
    mode, layers, transform, is_progressive, is_jfif = cast(Any, kind)
    if mode == "L":
        if len(layers) != 1 or layers[0][1] != layers[0][2] or layers[0][1] > 2:
            return None
        data = _encoded(Image.fromarray(picture(_HEIGHT, _WIDTH)[:, :, 0]), progressive=is_progressive)
        return _relabelled(data, (layers[0][0],), None, is_jfif=is_jfif)
    if len(layers) != 3:
        return None
    names, factors = tuple(layer[0] for layer in layers), tuple(layer[1:] for layer in layers)
    subsampling = _SUBSAMPLINGS.get(factors[0])
    if subsampling is None or factors[1:] != ((1, 1), (1, 1)) or names not in (_YCC, _RGB, _FROM_ZERO):
        return None
    if transform not in (None, 0, 1):
        return None
    if subsampling in _BY_PILLOW:
        data = _encoded(
            Image.fromarray(picture(_HEIGHT, _WIDTH)), progressive=is_progressive, subsampling=_BY_PILLOW[subsampling]
        )
    elif is_progressive:
        return None
    else:
        data = simplejpeg.encode_jpeg(picture(_HEIGHT, _WIDTH), quality=90, colorspace="RGB", colorsubsampling=subsampling)
    return _relabelled(data, names, transform, is_jfif=is_jfif)


def _encoded(image: Image.Image, **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=90, **options)
    return sink.getvalue()


def _relabelled(data: bytes, names: tuple[int, ...], transform: int | None, *, is_jfif: bool) -> bytes:
    """Return a JPEG whose components have those names, with Adobe's marker (None: without), and with JFIF's or without."""
    made, position = bytearray(b"\xff\xd8"), 2
    if transform is not None:
        made += b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([transform])
    while True:
        marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        segment = bytearray(data[position : position + 2 + length])
        position += 2 + length
        if marker in _SOF:
            for number, name in enumerate(names):
                segment[10 + 3 * number] = name
        is_dropped = marker == _ADOBE or (marker == 0xE0 and not is_jfif)
        if marker != _SOS:
            made += b"" if is_dropped else segment
            continue
        return bytes(made) + _with_scans(data, position - 2 - length, names)


def _with_scans(data: bytes, position: int, names: tuple[int, ...]) -> bytes:
    """Return the scans from `position` to the end, with their components renamed."""
    made, before = bytearray(data[position:]), {number + 1: name for number, name in enumerate(names)}
    at = 0
    while True:
        at = made.find(b"\xff\xda", at)
        if at < 0:
            return bytes(made)
        for number in range(made[at + 4]):
            place = at + 5 + 2 * number
            made[place] = before[made[place]]
        at += 2
