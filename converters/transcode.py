"""Store images as other bytes: resized with Pillow's antialiased bilinear filter, and encoded again.

EXIF and colour profiles are dropped; EXIF orientation is not applied, as in torchvision's loaders.
"""

from __future__ import annotations

import functools
import io
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from converters.options import Encode, Resize
from datapipe.codecs.probe import MAX_PIXELS, ImageHeader, probe
from datapipe.core.errors import DecodeError

if TYPE_CHECKING:
    from PIL import Image

    from datapipe.codecs.decode import Decoder

_MAX_WEBP_SIDE = 16383  # pixels
_RESIZED_QUALITY = 90  # of JPEG for --encode keep with --resize


@functools.cache
def decoder(name: str = "auto") -> Decoder:
    """Return this process's decoder of that name: converters decode in one thread."""
    from datapipe.codecs.decode import open_decoder

    return open_decoder(name)


def resized_size(resize: Resize, height: int, width: int) -> tuple[int, int]:
    """Return (height, width) after resizing; the other side is rounded down, as in torchvision."""
    if resize.mode == "exact":
        return resize.size, resize.width or resize.size
    scaled, other = (min, max) if resize.mode == "shorter" else (max, min)
    follows = max(1, math.floor(resize.size * other(height, width) / scaled(height, width)))
    return (resize.size, follows) if scaled(height, width) == height else (follows, resize.size)


def transcode(data: bytes, header: ImageHeader, *, resize: Resize | None, encode: Encode) -> tuple[bytes, ImageHeader]:
    """Return the bytes to store for an image, and their header.

    `encode` "keep" keeps the bytes of an image that already has the right size; otherwise it stores JPEG of quality 90, or PNG
    if the source is PNG. Raises DecodeError if the image does not decode, or would exceed the size limit of images.
    """
    size = (header.height, header.width)
    wanted = size if resize is None else resized_size(resize, *size)
    if encode.form == "keep":
        if wanted == size:
            return data, header
        encode = Encode("png") if header.encoding == "png" else Encode("jpeg", _RESIZED_QUALITY)
    if wanted[0] * wanted[1] > MAX_PIXELS:
        raise DecodeError(f"{size[0]}x{size[1]} pixels resized to {wanted[0]}x{wanted[1]} exceed the limit of {MAX_PIXELS}")
    pixels = decoder()(data, header)
    stored = encode_image(_resize(pixels, wanted), encode)
    return stored, probe(stored)


def _resize(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    if pixels.shape[:2] == size:
        return pixels
    from PIL import Image

    resized = Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def encode_image(pixels: NDArray[np.uint8], encode: Encode) -> bytes:
    """Encode (h, w, 3) uint8 RGB as "jpeg" (4:2:0), "webp", "png", or "raw", which is a version 1 .npy file.

    Raises DecodeError for an image that WebP cannot hold.
    """
    sink = io.BytesIO()
    if encode.form == "raw":
        np.lib.format.write_array(sink, np.ascontiguousarray(pixels), version=(1, 0), allow_pickle=False)
        return sink.getvalue()
    from PIL import Image

    image = Image.fromarray(pixels)
    if encode.form == "png":
        image.save(sink, "PNG")
    elif encode.form == "webp":
        _save_webp(image, sink, encode.quality)
    else:
        image.save(sink, "JPEG", quality=encode.quality or _RESIZED_QUALITY)
    return sink.getvalue()


def _save_webp(image: Image.Image, sink: io.BytesIO, quality: int | None) -> None:
    if max(image.size) > _MAX_WEBP_SIDE:
        raise DecodeError(f"{image.height}x{image.width} pixels do not fit WebP, whose sides have at most {_MAX_WEBP_SIDE}")
    if quality is None:
        image.save(sink, "WEBP", lossless=True, quality=75)
    else:
        image.save(sink, "WEBP", quality=quality)
