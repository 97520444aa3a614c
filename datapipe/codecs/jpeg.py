"""Walk the markers of a JPEG: its frame and first scan, and whether its scans come to an end (ITU-T T.81, annex B).

Pillow reads a JPEG to its end, and refuses one with a misplaced marker or without the end of its scans. A decoder of regions
stops at the end of its region, and may never meet either. Damage between markers raises in no decoder, and all of them make the
same pixels of it. So a JPEG that is whole may go to any decoder, and Pillow decides about the others.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import numpy as np

from datapipe.errors import DecodeError

_END, _SCAN, _FILL = 0xD9, 0xDA, 0xFF
_SEQUENTIAL = frozenset((0xC0, 0xC1, 0xC9))
_FRAMES = _SEQUENTIAL | {0xC2, 0xCA}  # libjpeg reads no others
_SEGMENTS = frozenset((0xC4, 0xCC, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))  # tables, comments, application data
_next_marker = re.compile(rb"\xff[^\x00\xd0-\xd7]").search  # past stuffed bytes and restarts
_frame = struct.Struct(">4xBHHB").unpack_from  # bits per sample, height, width, number of components
_SMALL_NBYTES = 10_000  # of a scan that a regular expression searches faster than numpy
_PIECE_NBYTES = 1 << 17  # of a scan, looked at at once: it stays in a core's cache, and seldom reaches far beyond the end


class FirstScan(NamedTuple):
    """The first scan of a JPEG."""

    start: int  # of its coded data, in bytes
    is_only: bool  # it holds all of the image


def read_frame(data: bytes) -> tuple[int, int, int, int, FirstScan]:
    """Return bits per sample, height, width, number of channels, and the first scan.

    Raises DecodeError unless the segments up to that scan follow each other as they should.
    """
    position, last, frame, is_sequential = 2, len(data) - 10, 0, False
    while position <= last:
        if data[position] != 0xFF:
            raise DecodeError(f"jpeg header does not parse: no marker at byte {position}")
        marker = data[position + 1]
        if marker in _SEGMENTS:
            position += 2 + (data[position + 2] << 8 | data[position + 3])
        elif marker in _FRAMES and not frame:
            frame, is_sequential = position, marker in _SEQUENTIAL
            position += 2 + (data[position + 2] << 8 | data[position + 3])
        elif marker == _SCAN and frame:
            depth, height, width, num_channels = _frame(data, frame)
            start = position + 2 + (data[position + 2] << 8 | data[position + 3])
            return depth, height, width, num_channels, FirstScan(start, is_sequential and data[position + 4] == num_channels)
        elif marker == _FILL:
            position += 1
        else:
            raise DecodeError(f"jpeg header does not parse: the marker 0x{marker:02x} at byte {position} does not belong there")
    raise DecodeError("jpeg header does not parse: it ends before the first scan")


def is_whole(data: bytes, scan: FirstScan) -> bool:
    """Return True for a JPEG of which all decoders give the same pixels, as far as its markers tell: 10 us for 80 KB."""
    if scan.is_only:  # decoders need not read on after it
        return _marker_after(data, scan.start) == _END
    return _scans_end(data, scan.start)


def _marker_after(data: bytes, start: int) -> int | None:
    """Return the first marker from there on that is no restart; None without one."""
    found = _next_marker(data, start if len(data) - start < _SMALL_NBYTES else _first_marker(data, start))
    return None if found is None else data[found.start() + 1]


def _first_marker(data: bytes, start: int) -> int:
    """Return where the first marker from there on is, restarts included; the end of the data without one."""
    for first in range(start, len(data) - 1, _PIECE_NBYTES):
        piece = np.frombuffer(data, np.uint8, min(_PIECE_NBYTES + 1, len(data) - first), first)
        is_marker = piece[:-1] == 0xFF
        is_marker &= piece[1:] != 0
        at = int(is_marker.argmax())
        if is_marker[at]:
            return first + at
    return len(data)


def _scans_end(data: bytes, start: int) -> bool:
    """Return True if scans, of which the first begins at `start`, and the segments between them come to an end marker."""
    view, position = memoryview(data), start  # a view of bytes that are lent as an array has plain ints, too
    while (found := _next_marker(view, position)) is not None:
        at = found.start()
        marker = view[at + 1]
        if marker == _END:
            return True
        if (marker != _SCAN and marker not in _SEGMENTS) or at + 4 > len(view):
            return False
        position = at + 2 + (view[at + 2] << 8 | view[at + 3])
    return False
