"""Plan which packets are decoded for some frames, and read them with few reads."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from datapipe.codecs.video.track import Ints, ReadAt, VideoPackets, VideoTrack

_MAX_GAP = 1 << 16  # bytes of others, such as sound, that are read in vain rather than skipped
_MAX_READ_NBYTES = 1 << 23


class Part(NamedTuple):
    """Wanted frames of one group."""

    start: int  # the packet at which decoding them can begin
    wanted: dict[int, int]  # packet -> the presented frame that comes of it


class Run(NamedTuple):
    """Packets that are decoded one after the other, from the start of the first part on."""

    parts: tuple[Part, ...]  # their starts ascend

    @property
    def first(self) -> int:
        return self.parts[0].start

    @property
    def last(self) -> int:
        """The last packet of the run."""
        return max(max(part.wanted) for part in self.parts)

    @property
    def wanted(self) -> dict[int, int]:
        return {packet: frame for part in self.parts for packet, frame in part.wanted.items()}

    def narrowed(self, packets: Collection[int]) -> Run:
        """Return the run for those of the wanted packets that are among these, at least one."""
        kept = [
            Part(one.start, {packet: frame for packet, frame in one.wanted.items() if packet in packets}) for one in self.parts
        ]
        return Run(tuple(part for part in kept if part.wanted))

    def around(self, damaged: int, packets: Collection[int]) -> list[Run]:
        """Return the runs for those of these packets that can be decoded without a damaged one."""
        before = {packet for packet in packets if packet < damaged}
        after = {packet for part in self.parts if part.start > damaged for packet in part.wanted.keys() & set(packets)}
        return [self.narrowed(some) for some in (before, after) if some]


def runs_of(track: VideoTrack, frames: Ints) -> list[Run]:
    """Return the runs that decode these frames, ascending without repeats. No packet is in two of them without need."""
    groups = track.groups_of(frames)
    packets = track.frame_packet[frames]
    runs: list[list[Part]] = []
    end = -1
    bounds = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(frames)] if len(frames) else [0]
    for begin, stop in itertools.pairwise(bounds):
        start = int(track.group_packet[groups[begin]])
        part = Part(start, dict(zip(packets[begin:stop].tolist(), frames[begin:stop].tolist(), strict=True)))
        if runs and runs[-1][-1].start < start <= end + 1:
            runs[-1].append(part)
        else:
            runs.append([part])
            end = -1
        end = max(end, *part.wanted)
    return [Run(tuple(parts)) for parts in runs]


def packets_in(packets: VideoPackets, run: Run, read: ReadAt) -> Iterator[tuple[int, memoryview]]:
    """Yield each packet of a run that is not empty with its bytes; with none if the file ends within it."""
    offset, size, framing = packets.offset, packets.size, packets.framing
    for numbers, start, nbytes in reads_of(packets, run):
        data = memoryview(read(start, nbytes))
        for number in filter(size.__getitem__, numbers):
            begin = int(offset[number]) - start
            packet = data[begin : begin + int(size[number])]
            if len(packet) < size[number]:
                packet = data[:0]
            yield number, packet if framing is None else framing.payload(packet)


def reads_of(packets: VideoPackets, run: Run) -> Iterator[tuple[range, int, int]]:
    """Yield the reads that give the packets of a run: which of them, the place of the first byte, and the number of bytes."""
    first, last = run.first, run.last
    offset, size = packets.offset[first : last + 1], packets.size[first : last + 1]
    ends = offset + size
    gaps = offset[1:] - ends[:-1]
    is_apart = (gaps < 0) | (gaps > _MAX_GAP)
    place = 0
    while place < len(offset):
        stop = place + 1
        while stop < len(offset) and not is_apart[stop - 1] and ends[stop] - offset[place] <= _MAX_READ_NBYTES:
            stop += 1
        start = int(offset[place])
        yield range(first + place, first + stop), start, int(ends[stop - 1]) - start
        place = stop
