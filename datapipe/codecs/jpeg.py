"""Walk the markers of a JPEG from its first scan on, to see whether its scans come to an end (ITU-T T.81, annex B).

Pillow reads a JPEG to its end, and refuses one with a misplaced marker or without the end of its scans. A decoder of regions
stops at the end of its region, and may never meet either. Damage between markers raises in no decoder, and all of them make the
same pixels of it. So a JPEG that is whole may go to any decoder, and Pillow decides about the others.
"""

from __future__ import annotations

import re

import numpy as np

from datapipe.codecs.probe import JPEG_SCAN, JPEG_SEGMENTS, FirstScan

_END = 0xD9
_next_marker = re.compile(rb"\xff[^\x00\xd0-\xd7]").search  # past stuffed bytes and restarts
_SMALL_NBYTES = 10_000  # of a scan that a regular expression searches faster than numpy
_PIECE_NBYTES = 1 << 17  # of a scan, looked at at once: it stays in a core's cache, and seldom reaches far beyond the end


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
        if (marker != JPEG_SCAN and marker not in JPEG_SEGMENTS) or at + 4 > len(view):
            return False
        position = at + 2 + (view[at + 2] << 8 | view[at + 3])
    return False
