"""Select the samples that DALI may see.

Bytes whose header does not parse can crash DALI's process (a segmentation fault, seen with text and with empty samples), so
nvImageCodec's own parser checks each sample, in 2 us.
"""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
from PIL import Image

from datapipe.codecs.decode import import_nvimgcodec
from datapipe.codecs.probe import ImageHeader

PLACEHOLDER_SIDE = 16  # pixels
_UINT8 = np.dtype(np.uint8)
_CHANNELS = {"jpeg": (1, 3), "png": (1, 2, 3, 4), "webp": (3, 4)}  # as stored, by encoding


def can_decode(data: bytes, header: ImageHeader) -> bool:
    """Return True if DALI decodes these bytes to the pixels that Pillow would give.

    Excluded are CMYK and 12-bit JPEGs, 16-bit PNGs, animations, GIF and raw pixels. Also excluded, since some of their forms
    decode differently: TIFF (grey with alpha, Lab), BMP (16 bits, some palettes) and PNM (maximum value other than 255).
    `header` is the result of `datapipe.codecs.probe`; nvImageCodec must report the same size.
    """
    if header.num_channels not in _CHANNELS.get(header.encoding, ()) or header.animated or header.bit_depth > 8:
        return False
    try:
        stream: Any = import_nvimgcodec().CodeStream(data)
        is_same = stream.height == header.height and stream.width == header.width
        return bool(is_same and stream.dtype == _UINT8 and stream.num_images == 1)
    except (RuntimeError, TypeError, ValueError):  # for some undecodable images its dtype has no numpy equivalent
        return False


@functools.cache
def placeholder() -> bytes:
    """Return a JPEG of PLACEHOLDER_SIDE x PLACEHOLDER_SIDE pixels, for rows that are filled in another way."""
    file = io.BytesIO()
    Image.new("RGB", (PLACEHOLDER_SIDE, PLACEHOLDER_SIDE)).save(file, "JPEG")
    return file.getvalue()
