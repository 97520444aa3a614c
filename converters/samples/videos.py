"""Make the stored form of videos: whole ones or parts, their packets kept as they are, or encoded again."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from converters.options import Check
from converters.samples.examine import VideoTreatment
from converters.samples.muxing import Mp4Writer, Shown
from converters.samples.reading import HeldField
from converters.samples.video_encoding import encoded
from converters.writers import StoredField
from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.codecs.video.runs import Part, Run, packets_in
from datapipe.codecs.video.track import Ints, ReadAt, VideoTrack
from datapipe.errors import DecodeError, FormatError
from datapipe.index.grids import frames_between, no_frame
from datapipe.opening.videos.reading import open_template, read_track
from datapipe.sources.lists.parts_source import part_of

_WHERE = "video"  # in the messages of a reader, which people see with the sample's name instead


class VideoMaker:
    """Makes the stored bytes of videos; see `reading.made_samples`."""

    def __init__(self, treatment: VideoTreatment, check: Check) -> None:
        self._treatment, self._check = treatment, check
        self._decoder = VideoDecoder()

    def made(self, held: HeldField, values: Mapping[str, str]) -> StoredField:
        """Return a video, or the part of one that `values` name. Raises DecodeError for a bad one."""
        part = part_of(values)
        origin = held.origin
        read: ReadAt
        if part is not None:  # the range is that of its packets
            read, nbytes = held.read, origin.file_nbytes
        elif origin.codec:
            data = held.value()
            read, nbytes = _reader(data), len(data)
        else:
            read, nbytes = _shifted(held.read, origin.offset, origin.nbytes), origin.nbytes
        start, end = part or (0.0, math.inf)
        try:
            return StoredField("bytes", self._stored(read, nbytes, start, end, is_part=part is not None))
        except FormatError as exc:
            raise DecodeError(str(exc).removeprefix(f"{_WHERE}: ")) from exc

    def _stored(self, read: ReadAt, nbytes: int, start: float, end: float, *, is_part: bool) -> bytes:
        track = read_track(read, nbytes, _WHERE)
        first, after = frames_between(track.times, start, end) if is_part else (0, len(track))
        if first >= after:
            raise DecodeError(no_frame(track.times, start, end))
        frames = range(first, after)
        delay = 0 if is_part else max(0, int(track.frame_pts[0]) * track.time_base[0])
        if self._treatment.encodes:
            data = encoded(self._decoder, track, read, frames, self._treatment, delay=delay, end=_end(track, after))
        else:
            with open_template(read, nbytes, _WHERE) as template:
                data = copied(template, track, read, frames, delay=delay)
        self._compare(data, track, frames, delay)
        return data

    def _compare(self, data: bytes, track: VideoTrack, frames: range, delay: int) -> None:
        """Raise DecodeError for a stored video of other frames than these, or, if that is checked, one that does not decode."""
        stored = read_track(_reader(data), len(data), _WHERE)
        times = (track.frame_pts[frames.start : frames.stop] - track.frame_pts[frames.start]) * track.time_base[0]
        found = stored.frame_pts * stored.time_base[0] * (track.time_base[1] // stored.time_base[1])
        if len(found) != len(times) or (found != times + delay).any():
            raise DecodeError(
                f"{len(found)} of its {len(times)} frames would be shown as now if it were kept as an mp4;"
                " encode it again: --video-size N"
            )
        if self._check is Check.DECODE:
            for _, frame in self._decoder.decode(stored, _reader(data), np.arange(len(stored))):
                if isinstance(frame, DecodeError):
                    raise frame


def copied(template: object, track: VideoTrack, read: ReadAt, frames: range, *, delay: int) -> bytes:
    """Return an mp4 with the packets of the whole groups of pictures that hold some frames, of which only these are shown.

    `template`: PyAV's stream of the video. `delay`: before the first frame is shown, in units of 1 / `track.time_base[1]` s.
    Raises DecodeError for a video that an mp4 cannot hold.
    """
    packets, unit = track.packets, track.time_base[0]
    first, last = track.packets_around(frames.start, frames.stop)
    numbers = first + np.flatnonzero(packets.size[first:last] > 0)
    pts, shown = packets.pts[numbers] * unit, packets.pts[track.frame_packet[frames.start : frames.stop]] * unit
    is_shown = np.isin(numbers, track.frame_packet[frames.start : frames.stop])
    if ((pts >= shown[0]) & (pts <= shown[-1]) & ~is_shown).any():
        raise DecodeError("hides frames between those that it shows; encode it again: --video-size N")
    dts = _decode_times(pts)
    end = _end(track, frames.stop)
    by_number = dict(zip(numbers.tolist(), zip(pts.tolist(), dts.tolist(), strict=True), strict=True))
    run = Run((Part(first, {last - 1: 0}),))
    with Mp4Writer(track.time_base[1]) as writer:
        stream = writer.copy_of(template)
        for number, data in packets_in(packets, run, read):
            if not len(data):
                raise DecodeError(f"ends within packet {number}: cut; get the file again")
            times = by_number[number]
            is_key = bool(packets.is_key[number])
            writer.put(stream, bytes(data), pts=times[0], dts=times[1], duration=end - int(shown[-1]), is_key=is_key)
        return writer.finish(Shown(int(shown[0]), end, delay, track.coding.rotation))


def _decode_times(pts: Ints) -> Ints:
    """Return (n,) times of decoding, ascending and not after those at which packets are shown, for packets in decode order."""
    steps = np.arange(len(pts))
    ascending = np.maximum.accumulate(np.sort(pts) - steps) + steps
    times: Ints = ascending - int((ascending - pts).max())
    return times


def _end(track: VideoTrack, after: int) -> int:
    """Return when the frame before `after` ends, in units of 1 / `track.time_base[1]` s; the last as long as the one before."""
    pts = track.packets.pts
    last = int(pts[track.frame_packet[after - 1]])
    following = pts[pts > last]
    if len(following):
        length = int(following.min()) - last
    elif after > 1:
        length = last - int(pts[track.frame_packet[after - 2]])
    else:
        length = round(track.time_base[1] / track.time_base[0] / 25)
    return (last + max(1, length)) * track.time_base[0]


def _reader(data: bytes) -> ReadAt:
    return lambda offset, nbytes: data[offset : offset + nbytes]


def _shifted(read: ReadAt, start: int, nbytes: int) -> ReadAt:
    """Return what reads a range of a file."""
    return lambda offset, size: read(start + offset, min(size, nbytes - offset)) if offset < nbytes else b""
