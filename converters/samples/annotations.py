"""Masks and boxes of a source, resized with their image. Labels of masks are never mixed, and their storage is lossless."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from datapipe.codecs.masks import nearest_sources, open_mask
from datapipe.codecs.npy import check_npy, read_npy_array
from datapipe.codecs.probe import encoding_of, probe
from datapipe.errors import DecodeError


def scale_boxes(boxes: NDArray[np.float64], *, height: float, width: float) -> NDArray[np.float64]:
    """Return the boxes after the image's height and width are multiplied by these factors."""
    scaled: NDArray[np.float64] = boxes * np.array([width, height, width, height, 1.0])
    return scaled


_MODES = ("1", "L", "P", "I;16", "LA", "RGB", "RGBA")  # supported by PNG and numpy


def mask_size(data: bytes) -> tuple[str, tuple[int, int]]:
    """Return (encoding, (height, width)) of a mask: any image, or a `.npy` of (height, width) whole numbers.

    Raises DecodeError for any other or truncated data.
    """
    if encoding_of(data) == "npy":
        header = check_npy(data)
        if len(header.shape) != 2 or header.dtype.kind not in "biu":
            raise DecodeError(f"an array of {header.dtype} {header.shape} is not a mask, expected (height, width) whole numbers")
        return "npy", (header.shape[0], header.shape[1])
    image = probe(data)
    if not image.complete:
        raise DecodeError(f"{image.encoding} of {len(data)} bytes is truncated: its end marker is missing")
    return image.encoding, (image.height, image.width)


def resize_mask(data: bytes, size: tuple[int, int]) -> tuple[str, bytes]:
    """Return (encoding, bytes) of the mask at (height, width); `datapipe.codecs.masks` says which source pixel each is.

    An image becomes a PNG of the same mode, palette included; an array stays an array. Raises DecodeError.
    """
    sink = io.BytesIO()
    if encoding_of(data) == "npy":
        array = read_npy_array(data)
        rows, columns = (nearest_sources(have, want) for have, want in zip(array.shape, size, strict=True))
        np.lib.format.write_array(sink, np.ascontiguousarray(array[rows][:, columns]), version=(1, 0), allow_pickle=False)
        return "npy", sink.getvalue()
    image = open_mask(data)
    if image.mode not in _MODES:
        raise DecodeError(f"a mask of mode {image.mode} cannot be stored as PNG; convert it to one of {', '.join(_MODES)}")
    _resized(image, size).save(sink, "PNG")
    return "png", sink.getvalue()


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    rows, columns = nearest_sources(image.height, size[0]), nearest_sources(image.width, size[1])
    resized = Image.fromarray(np.ascontiguousarray(np.asarray(image)[rows][:, columns]))
    if image.mode == "P":
        resized.putpalette(image.getpalette() or [])
    if "transparency" in image.info:
        resized.info["transparency"] = image.info["transparency"]
    return resized
