"""From packets to the frames that a player shows, and the groups that are decoded at once."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.video.nal_units import H264, HEVC, Access, access_of, length_nbytes
from datapipe.codecs.video.track import Ints, ReadAt, VideoCoding, VideoPackets, VideoTrack
from datapipe.opening.videos.display_order import has_times_of_decoding, in_display_order, joined, part_begins

_BEGINNING_NBYTES = 1 << 10  # of a key packet, in which its parameter sets and its kind are looked for
_MAX_BEGINNING_NBYTES = 1 << 22


def track_of(
    coding: VideoCoding,
    time_base: tuple[int, int],
    packets: VideoPackets,
    read: ReadAt,
    *,
    is_shown: NDArray[np.bool_] | None = None,
    shift: int = 0,
    num_others: int = 0,
) -> VideoTrack:
    """Return the track with the frames that a player shows, and their groups.

    `is_shown`: (n,) which packets are presented; None: all. `shift`: from times of packets to those of frames. `num_others`: of
    the file, video tracks besides this one. `read` gives the beginnings of key packets: what the container calls a key may need
    what lies before it.
    """
    if len(packets) and not packets.size.min():  # an empty packet says that the frame before stays
        is_shown = packets.size > 0 if is_shown is None else is_shown & (packets.size > 0)
    access, changes = _access(coding, packets, read)
    begins = part_begins(packets, access > 0)
    if len(begins) > 1:
        packets = joined(packets, begins)
    if has_times_of_decoding(coding, packets, read):
        packets, is_shown = in_display_order(coding, packets, read, is_shown)
        access, changes = _access(coding, packets, read, trusts_keys=False)
    starts = access.nonzero()[0]
    if not len(starts) and len(packets):  # from the first packet on it is as in sequential decoding
        starts, access[0] = np.zeros(1, np.int64), Access.CLOSED
    order = packets.pts.argsort(kind="stable")
    if is_shown is not None:
        order = order[is_shown[order]]
    group = starts.searchsorted(order, side="right") - 1
    first = starts[group]  # of packets before the first group: any, they are left out
    group -= (access[first] == int(Access.OPEN)) & (packets.pts[order] < packets.pts[first])
    least = starts.searchsorted(begins)  # of each part, the first group that begins in it: what it shows before needs others
    is_led = group >= (least[begins.searchsorted(order, side="right") - 1] if len(begins) > 1 else 0)
    if not is_led.all():
        order, group = order[is_led], group[is_led]
    is_first = np.ones(len(group), np.bool_)
    np.not_equal(group[1:], group[:-1], out=is_first[1:])
    group_frame = is_first.nonzero()[0]
    return VideoTrack(
        coding=dataclasses.replace(coding, changes_parameters=changes) if changes else coding,
        time_base=time_base,
        packets=packets,
        frame_packet=order,
        shift=shift,
        group_packet=starts[group[group_frame]],
        group_frame=group_frame,
        num_others=num_others,
    )


def _access(coding: VideoCoding, packets: VideoPackets, read: ReadAt, *, trusts_keys: bool = True) -> tuple[Ints, bool]:
    """Return (n,) what decoding from each packet on yields, and whether some groups bring parameter sets of their own.

    `trusts_keys`: whether what the container calls a key of other codecs than H.264 and HEVC is one.
    """
    access = packets.is_key * int(Access.OPEN)
    if coding.codec not in (H264, HEVC) and trusts_keys:
        return access, False
    length = length_nbytes(coding.codec, coding.extradata)
    num_with_sets = num_new = num_keys = 0
    for packet in packets.is_key.nonzero()[0].tolist():
        found = _look(coding.codec, length, read, packets, packet)
        access[packet], sets = found
        if found[0] != Access.NONE:
            num_keys += 1
            num_with_sets += bool(sets)
            num_new += any(one not in coding.extradata for one in sets)
    return access, num_new > 0 and num_with_sets < num_keys


def _look(codec: str, length: int, read: ReadAt, packets: VideoPackets, packet: int) -> tuple[Access, list[bytes]]:
    offset, size, framing = int(packets.offset[packet]), int(packets.size[packet]), packets.framing
    nbytes = _BEGINNING_NBYTES
    while True:
        data = read(offset, min(nbytes, size))
        found = access_of(codec, data if framing is None else framing.payload(data), length)
        if found is not None:
            return found
        if nbytes >= min(size, _MAX_BEGINNING_NBYTES):
            return Access.NONE, []
        nbytes *= 16
