"""Check that a JPEG's markers are those of a whole image, so that all decoders agree on it.

libjpeg, and so Pillow, raises for a misplaced marker, which a decoder of a region may never reach.
Damage between markers raises in no decoder, and all of them make the same pixels of it.
"""

from __future__ import annotations

import re

_next_marker = re.compile(rb"\xff[^\x00\xd0-\xd7]").search  # past stuffed bytes and restarts
_END, _SCAN = 0xD9, 0xDA
# Tables, comments and application data may come between the scans of a progressive image; ITU-T T.81, B.2.
_SEGMENTS = frozenset((0xC4, 0xDA, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))


def is_whole(data: bytes) -> bool:
    """Return whether the segments and scans of a JPEG, from its start to its end marker, are all where they may be."""
    position, num_frames, num_scans = 2, 0, 0
    while True:
        if num_scans:
            found = _next_marker(data, position)
            if found is None:
                return False
            position = found.start()
        elif data[position : position + 1] != b"\xff":
            return False
        if position + 4 > len(data):
            return num_scans > 0 and data[position : position + 2] == b"\xff\xd9"
        marker = data[position + 1]
        if marker == _END:
            return num_scans > 0
        if marker in _FRAMES:
            num_frames += 1
            if num_frames > 1 or num_scans:
                return False
        elif marker not in _SEGMENTS:
            return False
        length = data[position + 2] << 8 | data[position + 3]
        if length < 2:
            return False
        num_scans += marker == _SCAN
        position += 2 + length
