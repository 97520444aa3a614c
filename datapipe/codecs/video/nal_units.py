"""Look into the packets of H.264, HEVC and MPEG-4 as far as random access needs it: no parameter is decoded.

A packet of H.264 or HEVC is a row of NAL units: each after its length, as in mp4, or after a start code (Annex B).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

H264, HEVC, MPEG4 = "h264", "hevc", "mpeg4"
_START_CODE = b"\0\0\1"
_LONG_START_CODE = b"\0\0\0\1"
_VOP_START = b"\0\0\1\xb6"  # of a picture of MPEG-4 part 2
_B_VOP = 2

Data = bytes | bytearray | memoryview


class Access(enum.IntEnum):
    """What decoding that begins at a packet yields."""

    NONE = 0  # frames that differ: something before it is needed
    OPEN = 1  # the frames that are shown after it; those shown before it need the group before
    CLOSED = 2  # all frames that follow


def length_nbytes(codec: str, extradata: bytes) -> int:
    """Return the bytes of the length before each NAL unit; 0 for Annex B, and for codecs without NAL units."""
    if codec == H264 and len(extradata) > 6 and extradata[0] == 1:
        return (extradata[4] & 3) + 1
    if codec == HEVC and len(extradata) > 22 and (extradata[0] == 1 or extradata[:3] != _START_CODE != extradata[1:4]):
        return (extradata[21] & 3) + 1
    return 0


def nal_units(data: Data, length: int) -> Iterator[tuple[int, int]]:
    """Yield where the NAL units of a packet begin and end. The last one may end after the data, if this is cut.

    `length`: as `length_nbytes` returns it.
    """
    end = len(data)
    if length:
        place = 0
        while place + length < end:
            start = place + length
            place = start + int.from_bytes(data[place:start], "big")
            if place > start:
                yield start, place
        return
    held = bytes(data)
    place = held.find(_START_CODE)
    while place >= 0:
        start = place + 3
        place = held.find(_START_CODE, start)
        yield start, (place if place >= 0 else end)


def in_annex_b(data: Data, length: int) -> bytes:
    """Return a packet with a start code in the place of each length; as it is, if it has start codes or none.

    `length`: as `length_nbytes` returns it.
    """
    if not length:
        return bytes(data)
    return b"".join(part for start, end in nal_units(data, length) for part in (_LONG_START_CODE, data[start:end]))


def parameter_sets(codec: str, extradata: bytes) -> bytes:
    """Return the parameter sets of `extradata` in Annex B: those of avcC, of hvcC, or `extradata` if it is such already.

    Nothing for other codecs than H.264 and HEVC, whose packets bring theirs.
    """
    if codec not in (H264, HEVC):
        return b""
    if not length_nbytes(codec, extradata):
        return extradata
    found: list[bytes] = []

    def take(place: int, num: int) -> int:
        """Take units, each after its length in two bytes; return the place after them."""
        for _ in range(num):
            start = place + 2
            place = start + int.from_bytes(extradata[place:start], "big")
            found.append(_LONG_START_CODE + extradata[start:place])
        return place

    if codec == H264:  # avcC: sequence sets, then picture sets
        place = take(6, extradata[5] & 31)
        take(place + 1, int.from_bytes(extradata[place : place + 1], "big"))
    else:  # hvcC: arrays, each of one kind
        place = 23
        for _ in range(extradata[22]):
            place = take(place + 3, int.from_bytes(extradata[place + 1 : place + 3], "big"))
    return b"".join(found)


def access_of(codec: str, data: Data, length: int) -> tuple[Access, list[bytes]] | None:
    """Return what decoding that begins at a key packet yields, and the parameter sets in the packet.

    `data`: the packet, or its beginning. None: the beginning is too short to tell. Other codecs than H.264 and HEVC are taken for
    open ones, as nothing is lost by it.
    """
    if codec not in (H264, HEVC):
        return Access.OPEN, []
    sets: list[bytes] = []
    is_recovery_point = False
    for start, end in nal_units(data, length):
        if start >= len(data):
            return None
        kind = data[start] & 31 if codec == H264 else data[start] >> 1 & 63
        if codec == HEVC and kind < 32:
            access = (Access.NONE, Access.OPEN, Access.CLOSED)[(16 <= kind <= 21) + (kind in (19, 20))]
            return access, sets
        if codec == H264 and kind in (1, 2, 5):
            return (Access.CLOSED if kind == 5 else Access.OPEN if is_recovery_point else Access.NONE), sets
        if kind in ((7, 8) if codec == H264 else (32, 33, 34)) or (codec == H264 and kind == 6):
            if end > len(data):
                return None
            held = bytes(data[start:end])
            if kind == 6 and codec == H264:
                is_recovery_point = is_recovery_point or _is_exact_recovery(held)
            else:
                sets.append(held.rstrip(b"\0"))
    return None


def _is_exact_recovery(unit: bytes) -> bool:
    """Return True if a unit of supplemental information says that frames are right from this one on."""
    data = unit[1:].replace(b"\0\0\3", b"\0\0")
    place = 0
    while place + 2 < len(data):  # the last byte holds the end of the unit
        numbers = []
        for _ in range(2):  # type and size of a message: each a sum of bytes up to the first below 255
            number = 0
            while place < len(data) and data[place] == 255:
                number, place = number + 255, place + 1
            if place >= len(data):
                return False
            numbers.append(number + data[place])
            place += 1
        if numbers[0] == 6:
            return place < len(data) and data[place] >= 128  # recovery_frame_cnt, Exp-Golomb, is 0
        place += numbers[1]
    return False


def layer_of(data: Data, length: int) -> tuple[bool, int]:
    """Return whether a packet of HEVC is a sub-layer non-reference picture, and its temporal sub-layer."""
    for start, _ in nal_units(data, length):
        if start + 1 < len(data) and (kind := data[start] >> 1 & 63) < 32:
            return kind < 16 and kind % 2 == 0, (data[start + 1] & 7) - 1
    return False, 0


def is_never_referenced(codec: str, data: Data, length: int) -> bool:
    """Return True if no other frame needs a packet: of H.264, whose every slice must say so, or MPEG-4."""
    if codec == MPEG4:
        place = bytes(data[:64]).find(_VOP_START)
        return 0 <= place < min(60, len(data) - 4) and data[place + 4] >> 6 == _B_VOP
    if codec != H264:
        return False
    found = False
    for start, end in nal_units(data, length):
        if start >= len(data) or end > len(data):
            return False
        if data[start] & 31 in (1, 2, 3, 4, 5):
            if data[start] >> 5 & 3:
                return False
            found = True
    return found
