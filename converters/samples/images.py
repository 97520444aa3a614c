"""Store images as other bytes: resized and encoded again, or the same pixels without metadata.

Resizing uses Pillow's antialiased bilinear filter. EXIF and colour profiles are dropped when an image is encoded again; EXIF
orientation is not applied, as in torchvision's loaders. Without metadata, colour profiles stay.
(JPEG: ITU-T T.81, annex B, and JFIF 1.02; PNG: 3rd edition, section 11.3; WebP: its container specification.)
"""

from __future__ import annotations

import functools
import io
import math
import re
import struct
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from converters.options import Encode, ResizeRule
from datapipe.codecs.probe import STORED_SUFFIXES, ImageHeader, pixel_limit, probe
from datapipe.errors import DecodeError

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


def resized_size(resize: ResizeRule, height: int, width: int) -> tuple[int, int]:
    """Return (height, width) after resizing; the other side is rounded down, as in torchvision."""
    if resize.mode == "exact":
        return resize.size, resize.width or resize.size
    scaled, other = (min, max) if resize.mode == "shorter" else (max, min)
    follows = max(1, math.floor(resize.size * other(height, width) / scaled(height, width)))
    return (resize.size, follows) if scaled(height, width) == height else (follows, resize.size)


def transcode(data: bytes, header: ImageHeader, *, resize: ResizeRule | None, encode: Encode) -> tuple[bytes, ImageHeader]:
    """Return the bytes to store for an image, and their header.

    `encode` "keep" keeps the bytes of an image that already has the right size; otherwise it stores JPEG of quality 90, or PNG
    if the source is PNG. What only Pillow reads (AVIF, TGA, ...) becomes PNG, which every reader of shards decodes. Raises
    DecodeError if the image does not decode, or would exceed the size limit of images.
    """
    size = (header.height, header.width)
    wanted = size if resize is None else resized_size(resize, *size)
    if encode.form == "keep":
        if wanted == size and header.encoding in STORED_SUFFIXES:
            return data, header
        encode = Encode("png") if wanted == size or header.encoding == "png" else Encode("jpeg", _RESIZED_QUALITY)
    limit = pixel_limit()
    if wanted[0] * wanted[1] > limit:
        raise DecodeError(f"{size[0]}x{size[1]} pixels resized to {wanted[0]}x{wanted[1]} exceed the limit of {limit}")
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


_NEXT_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]").search  # within a scan
_SCAN, _END, _COMMENT = 0xDA, 0xD9, 0xFE
_KEPT_APPS = {0xE0: b"", 0xEE: b"", 0xE2: b"ICC_PROFILE\0"}  # JFIF, Adobe's colour transform, profiles; MPF and the like go
_PNG_DROPPED = frozenset((b"eXIf", b"tEXt", b"zTXt", b"iTXt", b"tIME"))
_WEBP_DROPPED = frozenset((b"EXIF", b"XMP "))
_WEBP_FLAGS = 0x08 | 0x04  # EXIF and XMP


def without_metadata(data: bytes, encoding: str) -> bytes:
    """Return an image without metadata: the same pixels, and what comes after its end left out.

    Raises DecodeError for a damaged image, and for TIFF, which cannot be told apart from its metadata so simply.
    """
    try:
        if encoding == "jpeg":
            return _jpeg(data)
        if encoding == "png":
            return _png(data)
        if encoding == "webp":
            return _webp(data)
    except (struct.error, IndexError) as exc:
        raise DecodeError(f"{encoding} does not parse, so its metadata cannot be taken out: {exc}") from exc
    if encoding == "tiff":
        raise DecodeError("tiff: its metadata cannot be taken out; store it otherwise, such as with --encode png")
    return data  # the others have none


def _jpeg(data: bytes) -> bytes:
    kept, position = [data[:2]], 2
    while True:
        if data[position] != 0xFF:
            raise DecodeError(f"jpeg does not parse: no marker at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker == _END:
            kept.append(data[position : position + 2])
            return b"".join(kept)
        end = position + 2
        if not (marker == 1 or 0xD0 <= marker <= 0xD7):
            end += struct.unpack_from(">H", data, end)[0]
        if marker == _SCAN:
            found = _NEXT_MARKER(data, end)
            if found is None:
                raise DecodeError("jpeg is truncated: its end marker is missing")
            end = found.start()
        is_app = 0xE0 <= marker <= 0xEF
        if marker != _COMMENT and (not is_app or (marker in _KEPT_APPS and data.startswith(_KEPT_APPS[marker], position + 4))):
            kept.append(data[position:end])
        position = end


def _png(data: bytes) -> bytes:
    kept, position = [data[:8]], 8
    while True:
        nbytes, kind = struct.unpack_from(">L4s", data, position)
        end = position + 12 + nbytes
        if end > len(data):
            raise DecodeError("png is truncated: a chunk reaches beyond its end")
        if kind not in _PNG_DROPPED:
            kept.append(data[position:end])
        if kind == b"IEND":
            return b"".join(kept)
        position = end


def _webp(data: bytes) -> bytes:
    end = min(len(data), struct.unpack_from("<L", data, 4)[0] + 8)
    kept, position = [], 12
    while position + 8 <= end:
        kind, nbytes = struct.unpack_from("<4sL", data, position)
        after = position + 8 + nbytes + nbytes % 2
        chunk = data[position : min(after, end)]
        if kind == b"VP8X":
            chunk = chunk[:8] + bytes([chunk[8] & ~_WEBP_FLAGS]) + chunk[9:]
        if kind not in _WEBP_DROPPED:
            kept.append(chunk)
        position = after
    body = b"".join(kept)
    return b"RIFF" + struct.pack("<L", len(body) + 4) + b"WEBP" + body
