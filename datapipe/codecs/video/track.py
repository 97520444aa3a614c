"""The track of a video file: how it is coded, where its packets lie, and which frames a player shows.

Packets are in decode order. Frames are those that are presented, in the order and at the times of a player: with the edit list
applied, without packets that are only decoded for the sake of others. A *group* is a run of frames that are decoded from one
packet on: a group of pictures, where the leading frames of an open one belong to the group before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.video.transport import Framing
from datapipe.errors import FormatError

Ints = NDArray[np.int64]
ReadAt = Callable[[int, int], bytes]  # (offset, number of bytes) of a file, or of a range of one -> its bytes; fewer at the end

ROTATIONS = (0, 90, 180, 270)


@dataclass(frozen=True, slots=True)
class VideoCoding:
    """How a track is coded. Equal codings can be decoded by one codec context."""

    codec: str  # FFmpeg's name, such as "h264"
    extradata: bytes  # for the decoder: the parameter sets, as in avcC and hvcC; often empty
    width: int  # pixels, before the rotation
    height: int
    pixel_format: str = ""  # FFmpeg's name; "" if it is not known without decoding
    rotation: int = 0  # degrees clockwise by which a player turns the decoded frames: 0, 90, 180 or 270
    changes_parameters: bool = False  # some groups bring parameter sets, and others rely on those of `extradata`

    def __post_init__(self) -> None:
        if self.rotation not in ROTATIONS:
            raise FormatError(f"the rotation is {self.rotation}; it must be one of {', '.join(map(str, ROTATIONS))}")
        if self.width < 1 or self.height < 1:
            raise FormatError(f"the frames have {self.width} x {self.height} pixels; get the file again")

    @property
    def shown_size(self) -> tuple[int, int]:
        """Return (height, width) in pixels of the frames that a player shows."""
        return (self.width, self.height) if self.rotation in (90, 270) else (self.height, self.width)


@dataclass(frozen=True, slots=True, eq=False)
class VideoPackets:
    """The packets of a track in decode order. Times are in units of the track's time base."""

    pts: Ints  # (n,) when the frame is shown
    dts: Ints  # (n,) when it is decoded
    offset: Ints  # (n,) bytes from the start of the file
    size: Ints  # (n,) bytes
    is_key: NDArray[np.bool_]  # (n,) as the container says it
    framing: Framing | None = None  # how a packet lies in its stretch of the file; None: as it is

    def __len__(self) -> int:
        return len(self.pts)


@dataclass(frozen=True, slots=True, eq=False)
class VideoTrack:
    """The video track of a file that a player shows. Raises FormatError if its arrays do not fit together."""

    coding: VideoCoding
    time_base: tuple[int, int]  # seconds of a unit of time, as a fraction
    packets: VideoPackets
    frame_packet: Ints  # (m,) the packet of each presented frame
    shift: int  # from the times of packets to those at which a player shows their frames, in units of the time base
    group_packet: Ints  # (g,) the packet at which decoding the frames of a group begins
    group_frame: Ints  # (g,) the first frame of each group, ascending from 0
    num_others: int = 0  # video tracks of the file besides this one

    def __post_init__(self) -> None:
        packets, num = self.packets, len(self.packets)
        lengths = {len(one) for one in (packets.pts, packets.dts, packets.offset, packets.size, packets.is_key)}
        is_consistent = (
            len(lengths) == 1
            and _lie_within(self.frame_packet, num)
            and _lie_within(self.group_packet, num)
            and len(self.group_packet) == len(self.group_frame)
            and (len(self.group_frame) == 0) == (len(self.frame_packet) == 0)
            and not self.group_frame[:1].any()
            and _ascend(self.group_frame, len(self.frame_packet))
            and min(self.time_base) > 0
        )
        if not is_consistent:
            raise FormatError("the frames of an index do not fit its packets; make the index again")

    def __len__(self) -> int:
        """Return the number of presented frames."""
        return len(self.frame_packet)

    @property
    def frame_pts(self) -> Ints:
        """Return (m,) when the frames are shown, in units of the time base."""
        return self.packets.pts[self.frame_packet] + self.shift

    @property
    def times(self) -> NDArray[np.float64]:
        """Return (m,) the seconds at which the frames are shown."""
        num, den = self.time_base
        return self.frame_pts * num / den

    def groups_of(self, frames: Ints) -> Ints:
        """Return (k,) the group of each of these frames."""
        return np.searchsorted(self.group_frame, frames, side="right") - 1

    def around(self, first: int, after: int) -> tuple[VideoTrack, int]:
        """Return the whole groups that hold the frames of [first, after) as a track, and which frame is its first."""
        begin, end = (int(one) for one in self.groups_of(np.array([first, after - 1])))
        frame = int(self.group_frame[begin])
        last = int(self.group_frame[end + 1]) if end + 1 < len(self.group_frame) else len(self)
        packet, stop = self.packets_around(first, after)
        whole, some = self.packets, slice(packet, stop)
        packets = VideoPackets(
            whole.pts[some], whole.dts[some], whole.offset[some], whole.size[some], whole.is_key[some], whole.framing
        )
        part = VideoTrack(
            self.coding,
            self.time_base,
            packets,
            self.frame_packet[frame:last] - packet,
            self.shift,
            self.group_packet[begin : end + 1] - packet,
            self.group_frame[begin : end + 1] - frame,
        )
        return part, frame

    def packets_around(self, first: int, after: int) -> tuple[int, int]:
        """Return the first packet of the whole groups that hold the frames of [first, after), and the one after the last."""
        begin, end = (int(one) for one in self.groups_of(np.array([first, after - 1])))
        last_frame = int(self.group_frame[end + 1]) if end + 1 < len(self.group_frame) else len(self)
        frames = self.frame_packet[int(self.group_frame[begin]) : last_frame]
        return int(self.group_packet[begin : end + 1].min()), int(frames.max()) + 1


def _lie_within(numbers: NDArray[Any], num: int) -> bool:
    return not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < num)


def _ascend(numbers: Ints, end: int) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all()) and not (numbers[-1:] >= end).any()
