"""The times of packets where those of a container cannot be sorted: they begin again, or are those of decoding."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.codecs.video.nal_units import REORDERING, is_bidirectional, is_packed, length_nbytes
from datapipe.codecs.video.track import Ints, ReadAt, VideoCoding, VideoPackets
from datapipe.errors import DecodeError, FormatError

_LOOKED_AT = 8  # packets at the beginning, and as many in the middle: an encoder that uses B-frames has used some
_USUAL_SHARE = 4  # at least one packet of so many is shown before an earlier one where B-frames have their times
_BEGINNING_NBYTES = 64  # of a packet that is looked at
_IN_TRANSPORT_NBYTES = 4 * 192


def has_times_of_decoding(coding: VideoCoding, packets: VideoPackets, read: ReadAt) -> bool:
    """Return True if packets have no times of their own at which they are shown, though the codec reorders frames.

    Such are AVI, which stores none, what was copied from it or from a raw stream into another container, and MPEG-4 with two
    frames in a packet. The times are those of decoding then, or guesses of FFmpeg. A B-frame shows it: it is shown before a frame
    that is decoded earlier, or its time is wrong.
    """
    if coding.codec not in REORDERING or not len(packets):
        return False
    if is_packed(coding.codec, coding.extradata):
        return True
    is_early = np.zeros(len(packets), np.bool_)
    np.less_equal(packets.pts[1:], np.maximum.accumulate(packets.pts)[:-1], out=is_early[1:])
    if _USUAL_SHARE * int(is_early.sum()) > len(packets):
        return False
    length, framing = length_nbytes(coding.codec, coding.extradata), packets.framing
    nbytes = _BEGINNING_NBYTES if framing is None else _IN_TRANSPORT_NBYTES
    doubtful = np.flatnonzero(~(is_early | packets.is_key))
    middle = max(_LOOKED_AT, len(doubtful) // 2)
    some = np.concatenate([doubtful[:_LOOKED_AT], doubtful[middle : middle + _LOOKED_AT]])
    for offset, size in zip(packets.offset[some].tolist(), packets.size[some].tolist(), strict=True):
        data = read(offset, min(nbytes, size))
        if is_bidirectional(coding.codec, data if framing is None else framing.payload(data), length):
            return True
    return False


def in_display_order(
    coding: VideoCoding, packets: VideoPackets, read: ReadAt, is_shown: NDArray[np.bool_] | None
) -> tuple[VideoPackets, NDArray[np.bool_]]:
    """Return packets with their times dealt out in the order in which the decoder gives their frames, and which are shown.

    The times of those that are shown stay the same ones, but for those that two have. A packet of which the decoder makes no
    frame is not shown. Raises FormatError if PyAV has no decoder.
    """
    try:
        order = np.array(VideoDecoder().display_order(coding, packets, read), np.int64)
    except DecodeError as exc:
        raise FormatError(str(exc)) from exc
    if is_shown is not None:
        order = order[is_shown[order]]
    pts, shown = packets.pts.copy(), np.zeros(len(packets), np.bool_)
    steps = np.arange(len(order))
    pts[order] = np.maximum.accumulate(np.sort(packets.pts[order]) - steps) + steps
    shown[order] = True
    return dataclasses.replace(packets, pts=pts), shown


def part_begins(packets: VideoPackets, is_key: NDArray[np.bool_]) -> Ints:
    """Return (k,) the packets at which time stamps begin again, and the first one: files that were joined have several.

    `is_key`: (n,) those from which decoding can begin, which are shown after all that are decoded before. In a transport stream
    times of decoding ascend; those of other containers may be guesses of FFmpeg.
    """
    goes_back = packets.dts[1:] < packets.dts[:-1]
    if not goes_back.any():
        return np.zeros(1, np.int64)
    is_begin = np.zeros(len(packets), np.bool_)
    if packets.framing is not None:
        is_begin[1:] = goes_back
    is_first = is_key | is_begin
    is_first[0] = True
    places = np.flatnonzero(is_first)
    latest = np.maximum.reduceat(packets.pts, places)  # of the frames from each to the next one
    is_begin[places[1:]] |= packets.pts[places[1:]] < latest[:-1]
    is_begin[0] = True
    return np.flatnonzero(is_begin)


def joined(packets: VideoPackets, begins: Ints) -> VideoPackets:
    """Return packets whose times go on where they began again. `begins`: as `part_begins` returns it."""
    parts = np.split(packets.pts, begins[1:])
    shift = [0]
    for before, after in itertools.pairwise(parts):
        shift.append(shift[-1] + int(before.max()) + _frame_length(before) - int(after.min()))
    each = np.array(shift, np.int64).repeat([len(part) for part in parts])
    return dataclasses.replace(packets, pts=packets.pts + each, dts=packets.dts + each)


def _frame_length(pts: Ints) -> int:
    """Return for how long a frame is usually shown."""
    steps = np.diff(np.sort(pts))
    steps = steps[steps > 0]
    return int(np.median(steps)) if len(steps) else 1
