"""How a track of an mp4 file is coded, from its box `stsd`: codec, parameter sets, size, pixel format, rotation."""

from __future__ import annotations

import contextlib
import struct

from datapipe.codecs.video.nal_units import H264, HEVC, MPEG4
from datapipe.codecs.video.track import VideoCoding
from datapipe.opening.videos.boxes import Box, boxes

_VISUAL_NBYTES = 78  # of a visual sample entry before its boxes
_CODECS = {  # type of the sample entry -> codec, and the box that holds the parameter sets
    b"avc1": (H264, b"avcC"), b"avc3": (H264, b"avcC"), b"hvc1": (HEVC, b"hvcC"), b"hev1": (HEVC, b"hvcC"),
    b"av01": ("av1", b"av1C"), b"vp09": ("vp9", b"vpcC"), b"vp08": ("vp8", b"vpcC"), b"mp4v": (MPEG4, b"esds"),
}  # fmt: skip
_OBJECT_TYPES = {0x20: MPEG4}  # of MPEG-4 systems
_CHROMA = ("gray", "yuv420p", "yuv422p", "yuv444p")  # by chroma_format_idc of H.264 and HEVC
_HIGH_PROFILES = (100, 110, 122, 144, 244)  # of H.264, whose avcC says the chroma format


def coding_of(data: bytes, tkhd: Box, stsd: Box) -> VideoCoding | None:
    """Return how a track is coded; None for codecs that are left to FFmpeg. Raises ValueError or struct.error."""
    size, kind = struct.unpack_from(">I4s", data, stsd.start + 8)
    entry = Box(kind, stsd.start + 16, stsd.start + 8 + size)
    if entry.end > stsd.end or kind not in _CODECS:
        return None
    width, height = struct.unpack_from(">HH", data, entry.start + 24)
    codec, name = _CODECS[kind]
    inner = Box(kind, entry.start + _VISUAL_NBYTES, entry.end)
    box = next((one for one in _lenient_boxes(data, inner) if one.kind == name), None)
    held = b"" if box is None else data[box.start : box.end]
    extradata = held
    if codec == MPEG4:
        found = _decoder_config(held)
        if found is None:
            return None
        extradata = found
    elif codec in (H264, HEVC) and not held:
        raise ValueError(f"its {codec} has no parameter sets ({name.decode()})")
    elif codec in ("vp8", "vp9"):
        extradata = b""
    rotation = rotation_of(data, tkhd)
    return VideoCoding(codec, extradata, width, height, _pixel_format(codec, held), rotation)


def rotation_of(data: bytes, tkhd: Box) -> int:
    """Return the degrees clockwise by which the matrix of a track turns its frames; 0 if not by quarters."""
    place = tkhd.start + (52 if data[tkhd.start] == 1 else 40)
    a, b, _, c, d = struct.unpack_from(">5i", data, place)
    return {(1, 0): 0, (0, 1): 90, (-1, 0): 180, (0, -1): 270}.get((_sign(a), _sign(b)), 0) if abs(a * d - b * c) else 0


def track_number(data: bytes, tkhd: Box) -> int:
    """Return the number by which fragments name a track."""
    return int(struct.unpack_from(">I", data, tkhd.start + (20 if data[tkhd.start] == 1 else 12))[0])


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _lenient_boxes(data: bytes, parent: Box) -> list[Box]:
    """Return the boxes of a sample entry; QuickTime ends them with four zeros, or garbage."""
    found: list[Box] = []
    with contextlib.suppress(ValueError):
        found.extend(boxes(data, parent.start, parent.end))
    return found


def _decoder_config(esds: bytes) -> bytes | None:
    """Return the header of MPEG-4 part 2 in an elementary stream descriptor; None if it describes another codec."""
    place = 4
    codec = None
    while place < len(esds):
        tag, place = esds[place], place + 1
        size = 0
        for _ in range(4):
            byte = esds[place]
            size, place = size << 7 | byte & 127, place + 1
            if byte < 128:
                break
        if tag == 3:
            flags = esds[place + 2]
            place += 3 + 2 * (flags >> 7) + (1 + esds[place + 3] if flags & 64 else 0) + 2 * (flags >> 5 & 1)
        elif tag == 4:
            codec = _OBJECT_TYPES.get(esds[place])
            place += 13
        elif tag == 5:
            return None if codec is None else esds[place : place + size]
        else:
            place += size
    return None if codec is None else b""


def _pixel_format(codec: str, held: bytes) -> str:
    """Return FFmpeg's name of the pixel format that a configuration record describes; "" if it does not."""
    chroma, depth = -1, 8
    if codec == H264 and len(held) > 6:
        if held[1] not in _HIGH_PROFILES:
            chroma = 1
        else:
            place = _after_sets(held, 6, held[5] & 31)
            place = _after_sets(held, place + 1, held[place]) if place < len(held) else place
            if place + 1 < len(held):
                chroma, depth = held[place] & 3, (held[place + 1] & 7) + 8
    elif codec == HEVC and len(held) > 17:
        chroma, depth = held[16] & 3, (held[17] & 7) + 8
    elif codec == "av1" and len(held) > 2:
        flags = held[2]
        chroma = 0 if flags & 16 else {0b11: 1, 0b10: 2, 0b00: 3}.get(flags >> 2 & 3, -1)
        depth = 8 if not flags & 64 else 12 if flags & 32 else 10
    elif codec == "vp9" and len(held) > 6:
        chroma, depth = {0: 1, 1: 1, 2: 2, 3: 3}.get(held[6] >> 1 & 7, -1), held[6] >> 4
    elif codec in ("vp8", MPEG4):
        chroma = 1
    if chroma < 0 or depth not in (8, 9, 10, 12, 14):
        return ""
    return _CHROMA[chroma] + (f"{depth}le" if depth > 8 else "")


def _after_sets(held: bytes, place: int, num: int) -> int:
    """Return where a row of parameter sets, each after its length, ends."""
    for _ in range(num):
        place += 2 + int.from_bytes(held[place : place + 2], "big")
    return place


def time_scale(data: bytes, header: Box) -> int:
    """Return the units of time in a second of a box `mdhd` or `mvhd`. Raises ValueError for none."""
    scale = int(struct.unpack_from(">I", data, header.start + (20 if data[header.start] == 1 else 12))[0])
    if not scale:
        raise ValueError("a second has no units of time")
    return scale


def is_video(data: bytes, hdlr: Box) -> bool:
    """Return True for the handler of a track of video."""
    return data[hdlr.start + 8 : hdlr.start + 12] == b"vide"


def is_enabled(data: bytes, tkhd: Box) -> bool:
    """Return True for a track that is meant to be shown."""
    return bool(data[tkhd.start + 3] & 1)
