"""Look into the packets of H.264, HEVC and MPEG-1 to 4 as far as random access and the order of frames need it.

A packet of H.264 or HEVC is a row of NAL units: each after its length, as in mp4, or after a start code (Annex B).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator

H264, HEVC, MPEG4 = "h264", "hevc", "mpeg4"
_MPEG_1_AND_2 = ("mpeg1video", "mpeg2video")
REORDERING = (H264, HEVC, MPEG4, *_MPEG_1_AND_2)  # codecs whose packets may lie in another order than their frames are shown
_START_CODE = b"\0\0\1"
_LONG_START_CODE = b"\0\0\0\1"
_VOP_START = b"\0\0\1\xb6"  # of a picture of MPEG-4 part 2
_VOP_WITHIN = 1 << 10  # bytes of a packet, after headers
_I_VOP, _B_VOP = 0, 2
_PLACEHOLDER_NBYTES = 19  # at most, of a packet of MPEG-4 that says that a frame was in the packet before
_PICTURE_START = b"\0\0\1\0"  # of MPEG-1 and MPEG-2
_B_PICTURE = 3
_PACKED = re.compile(rb"DivX\d+(b|Build)\d+p")  # what encoders write into a stream that keeps B-frames with others

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
    open ones, as nothing is lost by it; but a packet of MPEG-4 must have a key frame of its own.
    """
    if codec == MPEG4:
        is_key = len(data) > _PLACEHOLDER_NBYTES and _coding_type(data) == _I_VOP
        return (Access.OPEN if is_key else Access.NONE), []
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
        return _coding_type(data) == _B_VOP
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


def is_bidirectional(codec: str, data: Data, length: int) -> bool:
    """Return True for a B-frame, which is usually shown before a frame that is decoded before it.

    `data`: the packet, or its beginning; not of a key frame. False for other codecs than H.264, HEVC and MPEG-1 to 4.
    """
    if codec == MPEG4:
        return _coding_type(data) == _B_VOP
    if codec in _MPEG_1_AND_2:
        held = bytes(data)
        place = held.find(_PICTURE_START)
        return 0 <= place < len(held) - 5 and held[place + 5] >> 3 & 7 == _B_PICTURE
    if codec not in (H264, HEVC):
        return False
    for start, _ in nal_units(data, length):
        if start >= len(data):
            break
        if codec == H264 and data[start] & 31 in (1, 2):  # after first_mb_in_slice comes slice_type
            return _exp_golomb(data[start + 1 : start + 9], 0, 2) % 5 == 1
        if codec == HEVC and data[start] >> 1 & 63 < 16:  # after first_slice_segment_in_pic_flag and the number of the set
            return _exp_golomb(data[start + 2 : start + 10], 1, 2) == 0
    return False


def is_packed(codec: str, extradata: bytes) -> bool:
    """Return True if a stream of MPEG-4 says in its header that packets hold a B-frame besides the frame that it needs.

    The packet after such a one is a placeholder.
    """
    return codec == MPEG4 and _PACKED.search(extradata) is not None


def _exp_golomb(data: Data, skip: int, number: int) -> int:
    """Return the `number`-th of the unsigned Exp-Golomb codes that begin after `skip` bits of the data; -1 if it ends before."""
    left = 8 * len(data) - skip
    bits = int.from_bytes(data, "big") & (1 << left) - 1
    value = -1
    for _ in range(number):
        zeros = left - bits.bit_length()
        left -= 2 * zeros + 1
        if left < 0:
            return -1
        value = (bits >> left) - 1
        bits &= (1 << left) - 1
    return value


def _coding_type(data: Data) -> int:
    """Return the type of the first picture in a packet of MPEG-4, or its beginning; -1 if there is none."""
    place = bytes(data[:_VOP_WITHIN]).find(_VOP_START)
    return data[place + 4] >> 6 if 0 <= place < len(data) - 4 else -1
