"""Read image headers: kind, size, whether the image is complete.

The content decides, not the file's name. A sample is *bad* if its header does not parse here, if its end
marker is missing, or if the whole image does not decode (`datapipe.codecs.decode`); crops and backends
have no influence on that. Pure functions over bytes; a JPEG costs about 2 us.
"""

from __future__ import annotations

import io
import re
import struct
from typing import NamedTuple

from datapipe.errors import DecodeError

MAX_SAMPLE_NBYTES = 1 << 30  # a sample is held in memory; a larger one is bad and not read
MAX_PIXELS = 178_956_970  # PIL's bomb limit: a larger image is refused before it is decoded

_SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp", "bmp": "bmp", "gif": "gif", "tiff": "tif", "pnm": "ppm", "npy": "npy"}


class ImageHeader(NamedTuple):
    """The header of an encoded image."""

    encoding: str  # "jpeg", "png", "webp", "bmp", "gif", "tiff", "pnm", or "npy" for raw pixels
    height: int  # pixels, before any EXIF orientation
    width: int
    num_channels: int  # as stored
    bit_depth: int  # per channel
    complete: bool  # the end marker is present; True if the encoding has none
    animated: bool = False

    @property
    def suffix(self) -> str:
        """The file name suffix that stock readers expect, without a dot."""
        return _SUFFIXES[self.encoding]


def encoding_of(data: bytes) -> str | None:
    """Return the encoding that the first bytes announce, or None."""
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if data[:4] in (b"II*\0", b"MM\0*"):
        return "tiff"
    if data[:6] == b"\x93NUMPY":
        return "npy"
    if data[:2] == b"BM" and len(data) >= 26:
        return "bmp"
    if data[:2] in (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6") and data[2:3].isspace():
        return "pnm"
    return None


def probe(data: bytes) -> ImageHeader:
    """Read an image's header.

    `data`: the whole encoded image. Raises DecodeError, with the reason but not the place, which the
    caller knows, if the bytes are not an image, the header does not parse, or the image is too large.
    """
    if data[:3] == b"\xff\xd8\xff":
        header = _probe_jpeg(data)
    else:
        encoding = encoding_of(data)
        if encoding is None:
            raise DecodeError(f"not an image: {_describe(data)}")
        try:
            header = _PROBES[encoding](data)
        except (struct.error, IndexError, ValueError) as exc:
            if isinstance(exc, DecodeError):
                raise
            raise DecodeError(f"{encoding} header does not parse: {exc}") from exc
    if header.height < 1 or header.width < 1:
        raise DecodeError(f"{header.encoding} header gives size {header.height}x{header.width}")
    if header.height * header.width > MAX_PIXELS:
        raise DecodeError(
            f"{header.encoding} of {header.height}x{header.width} pixels exceeds the limit of {MAX_PIXELS}: a decompression bomb?"
        )
    return header


def checked_header(data: bytes) -> ImageHeader:
    """Return the header of an image whose end marker is present too. Raises DecodeError for others."""
    header = probe(data)
    if not header.complete:
        raise DecodeError(f"{header.encoding} of {len(data)} bytes is truncated: its end marker is missing")
    return header


def _describe(data: bytes) -> str:
    if not data:
        return "empty file"
    if not data.strip(b"\0"):
        return f"{len(data)} zero bytes"
    return f"{len(data)} bytes starting with {bytes(data[:8])!r}"


# -- JPEG: ITU-T T.81, annex B ------------------------------------------------------------------

_SOF = frozenset((0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD8)))
_SCAN_OR_END = frozenset((0xDA, 0xD9, 0x00))
_FILL = 0xFF
_NO_SEGMENT = _SOF | _STANDALONE | _SCAN_OR_END | {_FILL}
_frame = struct.Struct(">4xBHHB").unpack_from  # bits per sample, height, width, number of components


def _probe_jpeg(data: bytes) -> ImageHeader:
    position, last = 2, len(data) - 10
    while position <= last:
        if data[position] != 0xFF:
            raise DecodeError(f"jpeg header does not parse: no marker at byte {position}")
        marker = data[position + 1]
        if marker not in _NO_SEGMENT:
            position += 2 + (data[position + 2] << 8 | data[position + 3])
        elif marker in _SOF:
            bit_depth, height, width, num_channels = _frame(data, position)
            complete = data.endswith(b"\xff\xd9") or data.rfind(b"\xff\xd9", position) >= 0  # cameras append films behind it
            return ImageHeader("jpeg", height, width, num_channels, bit_depth, complete)
        elif marker == _FILL:
            position += 1
        elif marker in _STANDALONE:
            position += 2
        else:
            raise DecodeError("jpeg header does not parse: no frame header before the first scan")
    raise DecodeError("jpeg header does not parse: it ends before the frame header")


# -- the others ---------------------------------------------------------------------------------

_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def _probe_png(data: bytes) -> ImageHeader:
    if data[12:16] != b"IHDR":
        raise DecodeError("png header does not parse: no IHDR")
    width, height, depth, color = struct.unpack_from(">IIBB", data, 16)
    if color not in _PNG_CHANNELS:
        raise DecodeError(f"png header does not parse: colour type {color}")
    complete, animated = _ends_with(data, b"IEND"), b"acTL" in data[:256]
    return ImageHeader("png", height, width, _PNG_CHANNELS[color], depth, complete, animated)


def _probe_gif(data: bytes) -> ImageHeader:
    width, height = struct.unpack_from("<HH", data, 6)
    return ImageHeader("gif", height, width, 3, 8, _ends_with(data, b"\x3b"), animated=data.count(b"\x21\xf9\x04") > 1)


def _probe_webp(data: bytes) -> ImageHeader:
    complete = struct.unpack_from("<I", data, 4)[0] + 8 <= len(data)
    form = data[12:16]
    if form == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise DecodeError("webp header does not parse: no VP8 start code")
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageHeader("webp", height & 0x3FFF, width & 0x3FFF, 3, 8, complete)
    if form == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return ImageHeader("webp", (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3, 8, complete)
    if form == b"VP8X":
        flags = data[20]
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        return ImageHeader("webp", height, width, 4 if flags & 0x10 else 3, 8, complete, animated=bool(flags & 0x02))
    raise DecodeError(f"webp header does not parse: chunk {form!r}")


def _probe_bmp(data: bytes) -> ImageHeader:
    nbytes, header_size = struct.unpack_from("<I", data, 2)[0], struct.unpack_from("<I", data, 14)[0]
    if header_size == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    elif header_size >= 40:
        width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
    else:
        raise DecodeError(f"bmp header does not parse: header of {header_size} bytes")
    return ImageHeader("bmp", abs(height), abs(width), max(1, bits // 8), 8, nbytes <= len(data))


def _probe_pnm(data: bytes) -> ImageHeader:
    match = re.match(rb"P([1-6])(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)", data[:1024])
    if match is None:
        raise DecodeError("pnm header does not parse")
    form, width, height = (int(group) for group in match.groups())
    return ImageHeader("pnm", height, width, 3 if form in (3, 6) else 1, 8, complete=True)


def _probe_tiff(data: bytes) -> ImageHeader:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            return ImageHeader("tiff", height, width, len(image.getbands()), 8, complete=True)
    except (UnidentifiedImageError, OSError, SyntaxError, KeyError, TypeError, ValueError, Image.DecompressionBombError) as exc:
        raise DecodeError(f"tiff header does not parse: {exc}") from exc


_NPY_HEADER = re.compile(rb"\{'descr': '\|u1', 'fortran_order': False, 'shape': \((\d+), (\d+)(?:, (\d+))?\), \}\s*\Z")


def npy_pixels_offset(data: bytes) -> int:
    """Return where the pixels of a version 1 .npy file start, in bytes."""
    return 10 + (data[8] | data[9] << 8)


def _probe_npy(data: bytes) -> ImageHeader:
    start = npy_pixels_offset(data)
    match = _NPY_HEADER.match(data[10:start]) if data[6:8] == b"\x01\x00" else None
    if match is None:
        raise DecodeError("npy header is not that of a (height, width) or (height, width, channels) uint8 image")
    height, width, channels = (int(group) for group in match.groups(default=b"1"))
    if channels not in (1, 3):
        raise DecodeError(f"npy image has {channels} channels, expected 3, or 1 for a grey image")
    return ImageHeader("npy", height, width, channels, 8, len(data) - start >= height * width * channels)


def _ends_with(data: bytes, marker: bytes) -> bool:
    return data.rfind(marker) >= 0  # anything may follow it


_PROBES = {
    "png": _probe_png, "gif": _probe_gif, "webp": _probe_webp, "bmp": _probe_bmp,
    "pnm": _probe_pnm, "tiff": _probe_tiff, "npy": _probe_npy,
}  # fmt: skip
