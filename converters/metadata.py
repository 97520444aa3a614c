"""Take EXIF, XMP and comments out of encoded images without touching a pixel; colour profiles stay.

(JPEG: ITU-T T.81, annex B, and JFIF 1.02; PNG: 3rd edition, section 11.3; WebP: its container specification.)
"""

from __future__ import annotations

import re
import struct

from datapipe.core.errors import DecodeError

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
