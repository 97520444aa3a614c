"""Read image headers: kind, size, whether the image is complete.

The content decides, not the file's name. A sample is *bad* if Pillow does not decode it as a whole: crops, backends and
decoders have no influence on that. Headers of the usual forms are parsed here, all others by Pillow. Pure functions over bytes;
a JPEG costs about 3 us.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from typing import NamedTuple

from datapipe.errors import DecodeError

MAX_SAMPLE_NBYTES = 1 << 30  # a sample is held in memory; a larger one is bad and not read
MAX_PIXELS = 178_956_970  # Pillow's bomb limit: a larger image is refused before it is decoded, unless the user has changed it

# The encodings of images in shards, each with the suffix of file names that stock readers expect, without a dot. Images of other
# encodings, which only Pillow reads, are stored as PNG.
STORED_SUFFIXES = {
    "jpeg": "jpg", "png": "png", "webp": "webp", "bmp": "bmp", "gif": "gif", "tiff": "tif", "pnm": "ppm", "npy": "npy",
}  # fmt: skip


class FirstScan(NamedTuple):
    """The first scan of a JPEG."""

    start: int  # of its coded data, in bytes
    is_only: bool  # it holds all of the image


class ImageHeader(NamedTuple):
    """The header of an encoded image."""

    encoding: str  # "jpeg", "png", "webp", "bmp", "gif", "tiff", "pnm", "npy" for raw pixels, or one that only Pillow knows
    height: int  # pixels, before any EXIF orientation
    width: int
    num_channels: int  # as stored
    bit_depth: int  # per channel
    complete: bool  # False: the end marker is missing, or the form is rare; only decoding, by Pillow, tells what it is
    animated: bool = False
    scan: FirstScan | None = None  # of a JPEG of the usual form
    orientation: int = 1  # by which height and width are those of the image once it is turned, see `codecs/orientation`


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
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):  # the last two: BigTIFF
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
    limit = pixel_limit()
    header = _probe(data)
    if header.height * header.width > limit:
        raise DecodeError(
            f"{header.encoding} of {header.height}x{header.width} pixels exceeds the limit of {limit}: a decompression bomb? "
            "If not, set PIL.Image.MAX_IMAGE_PIXELS before you load it; the limit is twice that"
        )
    return header


def check_sample_size(nbytes: int) -> None:
    """Raise DecodeError for a sample that is too large to be held in memory."""
    if nbytes > MAX_SAMPLE_NBYTES:
        raise DecodeError(f"{nbytes} bytes exceed the limit of {MAX_SAMPLE_NBYTES} for one sample")


def pixel_limit() -> float:
    """Return how many pixels an image may have: as many as Pillow's `MAX_IMAGE_PIXELS` allows now; inf for any number."""
    pillow = sys.modules.get("PIL.Image")  # its import takes 40 ms; until then nobody has changed the setting
    if pillow is None:
        return MAX_PIXELS
    return math.inf if pillow.MAX_IMAGE_PIXELS is None else int(2 * pillow.MAX_IMAGE_PIXELS)


def _probe(data: bytes) -> ImageHeader:
    encoding = encoding_of(data)
    if encoding is None:
        return _probe_by_pillow(data, f"not an image: {_describe(data)}")
    try:
        header = _PROBES[encoding](data)
        if min(header.height, header.width) > 0:
            return header
        reason = f"{encoding} header gives size {header.height}x{header.width}"
    except (struct.error, IndexError, ValueError) as exc:
        reason = str(exc) if isinstance(exc, DecodeError) else f"{encoding} header does not parse: {exc}"
    if encoding in ("npy", "tiff"):
        raise DecodeError(reason)
    return _probe_by_pillow(data, reason)


def _probe_by_pillow(data: bytes, reason: str) -> ImageHeader:
    """Return the header of an image of a rare form. Raises DecodeError, with `reason` unless Pillow has a better one."""
    from datapipe.codecs import pillow

    try:
        with pillow.opened(data) as image:
            width, height = image.size
            is_animated = getattr(image, "is_animated", False)
            return ImageHeader(pillow.encoding_of_image(image), height, width, len(image.getbands()), 8, False, is_animated)
    except pillow.RefusedError:
        raise
    except DecodeError as exc:
        raise DecodeError(reason) from exc


def _describe(data: bytes) -> str:
    if not data:
        return "empty file"
    if not data.strip(b"\0"):
        return f"{len(data)} zero bytes"
    return f"{len(data)} bytes starting with {bytes(data[:8])!r}"


# -- by encoding --------------------------------------------------------------------------------


JPEG_SCAN, _FILL = 0xDA, 0xFF  # markers
JPEG_SEGMENTS = frozenset((0xC4, 0xCC, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))  # tables, comments, application data
_SEQUENTIAL = frozenset((0xC0, 0xC1, 0xC9))
_FRAMES = _SEQUENTIAL | {0xC2, 0xCA}  # libjpeg reads no others
_jpeg_frame = struct.Struct(">4xBHHB").unpack_from  # bits per sample, height, width, number of components


def _probe_jpeg(data: bytes) -> ImageHeader:
    """Read the segments of a JPEG up to its first scan, which should follow each other (ITU-T T.81, annex B)."""
    position, last, frame, is_sequential = 2, len(data) - 10, 0, False
    while position <= last:
        if data[position] != 0xFF:
            raise DecodeError(f"jpeg header does not parse: no marker at byte {position}")
        marker = data[position + 1]
        if marker in JPEG_SEGMENTS:
            position += 2 + (data[position + 2] << 8 | data[position + 3])
        elif marker in _FRAMES and not frame:
            frame, is_sequential = position, marker in _SEQUENTIAL
            position += 2 + (data[position + 2] << 8 | data[position + 3])
        elif marker == JPEG_SCAN and frame:
            bit_depth, height, width, num_channels = _jpeg_frame(data, frame)
            start = position + 2 + (data[position + 2] << 8 | data[position + 3])
            scan = FirstScan(start, is_sequential and data[position + 4] == num_channels)
            complete = data.endswith(b"\xff\xd9") or data.rfind(b"\xff\xd9", start) >= 0  # cameras append films after it
            return ImageHeader("jpeg", height, width, num_channels, bit_depth, complete, False, scan)
        elif marker == _FILL:
            position += 1
        else:
            raise DecodeError(f"jpeg header does not parse: the marker 0x{marker:02x} at byte {position} does not belong there")
    raise DecodeError("jpeg header does not parse: it ends before the first scan")


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
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    position = 13 + (6 << (flags & 7) if flags & 0x80 else 0)
    while data[position] == 0x21:  # extensions, in sub-blocks of which the last is empty
        position += 2
        while data[position]:
            position += data[position] + 1
        position += 1
    if data[position] != 0x2C:
        raise DecodeError("gif header does not parse: no image behind the extensions")
    left, top, own_width, own_height = struct.unpack_from("<HHHH", data, position + 1)
    height, width = max(height, top + own_height), max(width, left + own_width)  # the first image may reach beyond the screen
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
    reason = "a tiff that Pillow does not read: damaged, or of more than 8 bits a colour, as scenes of satellites are"
    return _probe_by_pillow(data, reason)._replace(complete=True)  # nothing says where it ends


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
    "jpeg": _probe_jpeg, "png": _probe_png, "gif": _probe_gif, "webp": _probe_webp, "bmp": _probe_bmp,
    "pnm": _probe_pnm, "tiff": _probe_tiff, "npy": _probe_npy,
}  # fmt: skip
