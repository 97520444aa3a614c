"""The packets of a fragmented mp4 file: those of the runs (`trun`) in its boxes `moof`, with numpy (ISO/IEC 14496-12, 8.8)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from datapipe.codecs.video.track import Ints, ReadAt, VideoPackets
from datapipe.opening.videos.boxes import MAX_BOX_NBYTES, Box, boxes, children, top_boxes

_BASE_OFFSET, _DESCRIPTION, _DURATION, _SIZE, _FLAGS, _BASE_IS_MOOF = 1, 2, 8, 16, 32, 0x20000  # of a box tfhd
_RUN_OFFSET, _FIRST_FLAGS = 1, 4  # of a box trun
_RUN_FIELDS = (0x100, 0x200, 0x400, 0x800)  # what a run says of each packet: duration, size, flags, delay
_NO_KEY = 0x10000 | 0x1000000  # flags of a packet: it is no key, or depends on others


class UnusualError(Exception):
    """Fragments that are left to FFmpeg."""


class _Defaults(NamedTuple):
    """What packets have where their run does not say it."""

    duration: int
    size: int
    flags: int


class _Run(NamedTuple):
    """Packets that lie one after the other; (n,) arrays."""

    duration: Ints
    size: Ints
    flags: Ints
    delay: Ints  # from the time when it is decoded to that when it is shown
    offset: Ints


def fragmented_packets(moov: bytes, track: int, read: ReadAt, nbytes: int) -> VideoPackets:
    """Return the packets of a track in the fragments of a file of `nbytes` bytes.

    Raises UnusualError for what is left to FFmpeg, and one of `boxes.DAMAGE` for fragments that do not fit together, or say that
    packets lie outside of the file.
    """
    defaults = _defaults(moov, track)
    parts: list[tuple[Ints, ...]] = []
    time, left = 0, nbytes  # bytes that no packet has yet: no two lie in the same ones
    for start, moof in _fragments(read, nbytes):
        for box in boxes(moof, 0, len(moof)):
            inner = children(moof, box) if box.kind == b"traf" else {}
            if b"tfhd" not in inner or struct.unpack_from(">I", moof, inner[b"tfhd"].start + 4)[0] != track:
                continue
            base, own = _header(moof, inner[b"tfhd"], defaults, start)
            if b"tfdt" in inner:
                place = inner[b"tfdt"].start
                time = struct.unpack_from(">Q" if moof[place] else ">I", moof, place + 4)[0]
            for one in boxes(moof, box.start, box.end):
                if one.kind == b"trun":
                    run = _run(moof, one, own, base, left)
                    left -= max(int(run.size.sum()), len(run.size))
                    dts = time + np.cumsum(run.duration) - run.duration
                    time += int(run.duration.sum())
                    parts.append((dts + run.delay, dts, run.offset, run.size, run.flags))
    if not parts:
        raise ValueError("its fragments have no packets")
    pts, dts, offset, size, flags = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(dts) and ((pts < dts).any() or (dts[1:] <= dts[:-1]).any()):
        raise UnusualError(
            "frames are shown before they are decoded, or are not in order"
        )  # FFmpeg has its ways with their times
    if len(offset) and (int(offset.min()) < 0 or int((offset + size).max()) > nbytes):
        raise ValueError(f"a packet ends at byte {int((offset + size).max())} of {nbytes}: cut")
    return VideoPackets(pts, dts, offset, size, (flags & _NO_KEY) == 0)


def refuse_claims(read: ReadAt, nbytes: int) -> None:
    """Raise ValueError for runs of more packets than a file of `nbytes` bytes can hold, for which FFmpeg would take memory."""
    num = 0
    for _, moof in _fragments(read, nbytes):
        for box in boxes(moof, 0, len(moof)):
            for one in boxes(moof, box.start, box.end) if box.kind == b"traf" else ():
                num += struct.unpack_from(">I", moof, one.start + 4)[0] if one.kind == b"trun" else 0
    if num > nbytes:
        raise ValueError(f"its runs say that they have {num} packets in {nbytes} bytes")


def _fragments(read: ReadAt, nbytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield where each box `moof` begins, and its contents."""
    for place, box in top_boxes(read, nbytes):
        if box.kind == b"moof":
            if box.end > nbytes or box.end - box.start > MAX_BOX_NBYTES:
                raise ValueError(f"a fragment (moof) ends at byte {box.end} of {nbytes}: cut")
            yield place, read(box.start, box.end - box.start)


def _defaults(moov: bytes, track: int) -> _Defaults:
    mvex = children(moov, Box(b"moov", 0, len(moov)))[b"mvex"]
    for box in boxes(moov, mvex.start, mvex.end):
        if box.kind == b"trex":
            number, _, *values = struct.unpack_from(">5I", moov, box.start + 4)
            if number == track:
                return _Defaults(*values)
    return _Defaults(0, 0, 0)


def _header(moof: bytes, tfhd: Box, defaults: _Defaults, start: int) -> tuple[int, _Defaults]:
    """Return the place in the file that the offsets of a fragment of a track count from, and its defaults.

    `start`: of the box `moof` in the file.
    """
    flags = struct.unpack_from(">I", moof, tfhd.start)[0] & 0xFFFFFF
    place, base = tfhd.start + 8, start
    if flags & _BASE_OFFSET:
        base, place = struct.unpack_from(">Q", moof, place)[0], place + 8
    elif not flags & _BASE_IS_MOOF and sum(box.kind == b"traf" for box in boxes(moof, 0, len(moof))) > 1:
        raise UnusualError("offsets count from the end of another track's data")
    place += 4 * bool(flags & _DESCRIPTION)
    values = []
    for flag, default in zip((_DURATION, _SIZE, _FLAGS), defaults, strict=True):
        values.append(struct.unpack_from(">I", moof, place)[0] if flags & flag else default)
        place += 4 * bool(flags & flag)
    return base, _Defaults(*values)


def _run(moof: bytes, trun: Box, defaults: _Defaults, base: int, left: int) -> _Run:
    """Return the packets of a run. `left`: bytes that they can have. Raises ValueError for more of them than that."""
    version = moof[trun.start]
    word, num = struct.unpack_from(">II", moof, trun.start)
    if not word & _RUN_OFFSET:
        raise UnusualError("a run follows the one before")
    place = trun.start + 8
    offset, place = base + struct.unpack_from(">i", moof, place)[0], place + 4
    first_flags = struct.unpack_from(">I", moof, place)[0] if word & _FIRST_FLAGS else None
    place += 4 * (first_flags is not None)
    has = [bool(word & field) for field in _RUN_FIELDS]
    if place + 4 * sum(has) * num > trun.end or (not any(has) and num * max(1, defaults.size) > left):
        raise ValueError(f"a run says that it has {num} packets, and has no place for them")
    table = np.frombuffer(moof, ">u4", sum(has) * num, place).reshape(num, sum(has))
    columns: list[Ints] = []
    for field, default in enumerate((*defaults, 0)):
        if not has[field]:
            columns.append(np.full(num, default, np.int64))
            continue
        is_signed = field == len(defaults) and version > 0
        columns.append(table[:, sum(has[:field])].astype(np.uint32).view(np.int32 if is_signed else np.uint32).astype(np.int64))
    duration, size, flags, delay = columns
    if first_flags is not None:
        flags[:1] = first_flags
    return _Run(duration, size, flags, delay, offset + np.cumsum(size) - size)
