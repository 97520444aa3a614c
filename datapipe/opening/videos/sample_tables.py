"""The packets of a track of an mp4 file from its sample tables, with numpy. Tables are run-length coded, and may lie."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.video.track import Ints, VideoPackets
from datapipe.errors import FormatError
from datapipe.opening.videos.boxes import Box


def packets_of(data: bytes, tables: dict[bytes, Box], nbytes: int) -> VideoPackets:
    """Return the packets that the boxes of a box `stbl` describe, in a file of `nbytes` bytes.

    Raises FormatError for packets in several codings, and one of `boxes.DAMAGE` if the tables do not fit together, or say that
    packets lie outside of the file.
    """
    size = _sizes(data, tables, nbytes)
    num = len(size)
    dts = _decode_times(data, tables[b"stts"], num)
    pts = dts
    if (box := tables.get(b"ctts")) is not None:
        shift = _expanded(data, box, ">i4", num)
        pts = dts.copy()
        pts[: len(shift)] += shift
    is_key = np.ones(num, np.bool_)
    if (box := tables.get(b"stss")) is not None:
        keys = _numbers(data, box.start + 8, _count(data, box, 4), ">u4") - 1
        is_key[:] = False
        is_key[keys[(keys >= 0) & (keys < num)]] = True
    offset = _offsets(data, tables, size)
    if num and (int(offset.min()) < 0 or int((offset + size).max()) > nbytes):
        beyond = int(np.flatnonzero((offset < 0) | (offset + size > nbytes))[0])
        raise ValueError(f"packet {beyond} of {num} ends at byte {int(offset[beyond] + size[beyond])} of {nbytes}: cut")
    return VideoPackets(pts, dts, offset, size, is_key)


def _sizes(data: bytes, tables: dict[bytes, Box], nbytes: int) -> Ints:
    if b"stsz" not in tables:
        raise ValueError("it has no box stsz")
    box = tables[b"stsz"]
    fixed, num = struct.unpack_from(">II", data, box.start + 4)
    if not fixed:
        return _numbers(data, box.start + 12, num, ">u4", box.end)
    if fixed * num > nbytes:
        raise ValueError(f"it says that {num} packets of {fixed} bytes lie in {nbytes}")
    return np.full(num, fixed, np.int64)


def _decode_times(data: bytes, box: Box, num: int) -> Ints:
    delta = _expanded(data, box, ">u4", num)
    if len(delta) < num:
        raise ValueError(f"it has times for {len(delta)} of {num} packets")
    dts = np.zeros(num, np.int64)
    np.cumsum(delta[:-1], out=dts[1:])
    return dts


def _offsets(data: bytes, tables: dict[bytes, Box], size: Ints) -> Ints:
    num = len(size)
    if (box := tables.get(b"stco")) is not None:
        chunks = _numbers(data, box.start + 8, _count(data, box, 4), ">u4")
    else:
        box = tables[b"co64"]
        chunks = _numbers(data, box.start + 8, _count(data, box, 8), ">i8")
    if not num:
        return np.zeros(0, np.int64)
    box = tables[b"stsc"]
    runs = _numbers(data, box.start + 8, 3 * _count(data, box, 12), ">u4").reshape(-1, 3)
    if not len(runs):
        raise ValueError("its table of chunks (stsc) is empty")
    if len(runs) > 1 and (runs[:, 2] != runs[0, 2]).any():
        raise FormatError("its coding changes on the way (several sample descriptions); encode it again as one")
    first, per_chunk = runs[:, 0] - 1, np.minimum(runs[:, 1], num)
    num_chunks = np.empty(len(runs), np.int64)  # of each run
    num_chunks[-1] = len(chunks) - first[-1]
    np.subtract(first[1:], first[:-1], out=num_chunks[:-1])
    if first[0] or num_chunks.min() < 1:
        raise ValueError("its table of chunks (stsc) does not ascend")
    end = per_chunk.repeat(num_chunks).cumsum()  # the packets before the end of each chunk
    if end[-1] < num:
        raise ValueError(f"its chunks have {end[-1]} of {num} packets")
    end = end[: int(end.searchsorted(num)) + 1]  # the chunks that have all packets
    end[-1] = num
    start = np.zeros(len(end), np.int64)
    start[1:] = end[:-1]
    before = size.cumsum() - size
    offset: Ints = before + (chunks[: len(end)] - before[np.minimum(start, num - 1)]).repeat(end - start)
    return offset


def _count(data: bytes, box: Box, item_nbytes: int) -> int:
    """Return the number of entries of a table. Raises ValueError for more than it has bytes."""
    num = int(struct.unpack_from(">I", data, box.start + 4)[0])
    if box.start + 8 + num * item_nbytes > box.end:
        raise ValueError(f"its table {box.kind.decode('latin-1')} says that it has {num} entries and ends before")
    return num


def _expanded(data: bytes, box: Box, dtype: str, num: int) -> Ints:
    """Return the values of a run-length coded table, at most `num` of them. Lengths of runs are unsigned."""
    runs = np.frombuffer(data, [("length", ">u4"), ("value", dtype)], _count(data, box, 8), box.start + 8)
    lengths, values = runs["length"].astype(np.int64), runs["value"].astype(np.int64)
    if lengths.sum() > num:
        ends = np.minimum(np.cumsum(lengths), num)
        lengths = ends - np.append(0, ends[:-1])
    return values.repeat(lengths)


def _numbers(data: bytes, place: int, num: int, dtype: str, end: int | None = None) -> NDArray[Any]:
    if end is not None and place + num * np.dtype(dtype).itemsize > end:
        raise ValueError(f"a table of {num} entries ends before")
    return np.frombuffer(data, dtype, num, place).astype(np.int64)
