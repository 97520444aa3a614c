"""Files of many kinds that show one picture of 40 x 48 pixels, for what must tell them apart."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from fixtures import encode, picture
from numpy.typing import NDArray
from PIL import Image

from datapipe.transforms.protocols import Cuts

HEIGHT, WIDTH = 40, 48
PIXELS = picture(3, HEIGHT, WIDTH)


def _saved(image: Image.Image, form: str, **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, form, **options)
    return sink.getvalue()


def _oriented(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x112] = orientation
    return exif


def png_block(name: bytes, data: bytes) -> bytes:
    """One part of a PNG file: length, name, data, CRC."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _deep_png(pixels: NDArray[np.uint8]) -> bytes:
    """16 bits a channel."""
    rows = b"".join(b"\0" + (row.astype(">u2") * 257).tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, 2, 0, 0, 0)
    blocks = (png_block(b"IHDR", header), png_block(b"IDAT", zlib.compress(rows)), png_block(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(blocks)


def png_with_wrong_crc() -> bytes:
    """Its pixels are whole; Pillow reads it, libpng and so DALI does not."""
    data = bytearray(encode(PIXELS, "PNG"))
    start = data.find(b"IDAT")
    data[start + 4 + int.from_bytes(data[start - 4 : start], "big")] ^= 1
    return bytes(data)


def jpeg_with_frame(marker: int, depth: int = 8) -> bytes:
    """A baseline JPEG whose frame header says something else."""
    return encode(PIXELS, "JPEG").replace(b"\xff\xc0\x00\x11\x08", bytes((0xFF, marker, 0, 17, depth)))


def _with_alpha(image: Image.Image) -> Image.Image:
    copy = image.copy()
    copy.putalpha(Image.fromarray((np.arange(HEIGHT * WIDTH) % 256).astype(np.uint8).reshape(HEIGHT, WIDTH)))
    return copy


def _deep_bmp(pixels: NDArray[np.uint8]) -> bytes:
    """16 bits a pixel, 5 of each colour."""
    red, green, blue = (pixels[::-1, :, channel].astype(np.uint16) >> 3 for channel in range(3))
    data = (red << 10 | green << 5 | blue).astype("<u2").tobytes()
    fields = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 16, 0, len(data), 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(data), 0, 0, 54) + fields + data


def _raw() -> bytes:
    sink = io.BytesIO()
    np.save(sink, PIXELS)
    return sink.getvalue()


_COLOR = Image.fromarray(PIXELS)
_GREY = _COLOR.convert("L")
_PALETTE = _COLOR.quantize(200)
_JPEG = encode(PIXELS, "JPEG")

# What DALI decodes to the very pixels that Pillow gives.
FOR_DALI: dict[str, bytes] = {
    **{f"jpeg {n}": _saved(_COLOR, "JPEG", subsampling=n) for n in ("4:4:4", "4:2:2", "4:2:0", "4:1:1")},
    "jpeg, progressive": _saved(_COLOR, "JPEG", progressive=True),
    "jpeg, restarts": _saved(_COLOR, "JPEG", restart_marker_blocks=2),
    "jpeg, grey": _saved(_GREY, "JPEG"),
    "jpeg, rgb": _saved(_COLOR, "JPEG", keep_rgb=True),
    "jpeg, arithmetic": jpeg_with_frame(0xC9),
    "jpeg, no jfif": _JPEG[:2] + _JPEG[20:],
    "jpeg, film behind it": _JPEG + bytes(500),
    **{f"jpeg, orientation {n}": _saved(_COLOR, "JPEG", exif=_oriented(n)) for n in (3, 6, 7)},
    "png": _saved(_COLOR, "PNG"),
    "png, orientation 6": _saved(_COLOR, "PNG", exif=_oriented(6)),
    "png, grey": _saved(_GREY, "PNG"),
    "png, one bit": _saved(_GREY.convert("1"), "PNG"),
    "png, alpha": _saved(_with_alpha(_COLOR), "PNG"),
    "png, grey, alpha": _saved(_with_alpha(_GREY), "PNG"),
    "png, palette": _saved(_PALETTE, "PNG"),
    "png, small palette": _saved(_COLOR.quantize(4), "PNG", bits=2),
    "png, transparent colour": _saved(_COLOR, "PNG", transparency=(1, 2, 3)),
    "png, transparent palette": _saved(_PALETTE, "PNG", transparency=3),
    "webp": _saved(_COLOR, "WEBP"),
    "webp, lossless": _saved(_COLOR, "WEBP", lossless=True),
    "webp, orientation 6": _saved(_COLOR, "WEBP", exif=_oriented(6)),
    "webp, alpha": _saved(_with_alpha(_COLOR), "WEBP", lossless=True),
}

# What DALI refuses, or decodes otherwise.
BY_HAND: dict[str, bytes] = {
    "jpeg, cmyk": _saved(_COLOR.convert("CMYK"), "JPEG"),
    "png, 16 bits": _deep_png(PIXELS),
    "png, 16 bits, grey": _saved(Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 257), "PNG"),
    "png, animated": _saved(_COLOR, "PNG", save_all=True, append_images=[_COLOR.rotate(90)]),
    "webp, animated": _saved(_COLOR, "WEBP", save_all=True, append_images=[_COLOR.rotate(90)]),
    "webp, lossless, orientation 6": _saved(_COLOR, "WEBP", lossless=True, exif=_oriented(6)),  # nvImageCodec does not parse it
    "gif": _saved(_COLOR, "GIF"),
    "bmp": _saved(_COLOR, "BMP"),
    "bmp, 16 bits": _deep_bmp(PIXELS),
    "tiff": _saved(_COLOR, "TIFF"),
    "tiff, grey, alpha": _saved(_with_alpha(_GREY), "TIFF"),
    "tiff, lab": _saved(_COLOR.convert("LAB"), "TIFF"),
    "tiff, pages": _saved(_COLOR, "TIFF", save_all=True, append_images=[_COLOR.rotate(90)]),
    "ppm, to 100": b"P6 %d %d 100\n" % (WIDTH, HEIGHT) + (PIXELS // 3).tobytes(),
    "npy": _raw(),
}


def whole(num: int) -> Cuts:
    """Images of 40 x 48 as they are."""
    box = np.tile([0, 0, HEIGHT, WIDTH], (num, 1))
    return Cuts(box, box[:, 2:], box, np.zeros((num, 2), np.bool_))
