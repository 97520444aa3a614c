"""Walk the boxes of an mp4 or QuickTime file without trusting them (ISO/IEC 14496-12)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from datapipe.codecs.video.track import ReadAt
from datapipe.errors import FormatError

MAX_BOX_NBYTES = 1 << 30  # of a box that is read as a whole
_HEADER = struct.Struct(">I4s")
_HEADER_NBYTES = 16  # of a box whose size has eight bytes

# The exceptions that the parsers raise for boxes that end too early or lead nowhere.
DAMAGE = (ValueError, struct.error, IndexError, KeyError, OverflowError)  # KeyError: a box is missing


class Box(NamedTuple):
    """A box: its type, and where its contents lie."""

    kind: bytes
    start: int
    end: int


def boxes(data: bytes | memoryview, start: int, end: int) -> Iterator[Box]:
    """Yield the boxes between two places. Raises ValueError for one that does not fit there."""
    while start + 8 <= end:
        size, kind = _HEADER.unpack_from(data, start)
        header = 8
        if size == 1:
            size, header = struct.unpack_from(">Q", data, start + 8)[0], 16
        elif size == 0:
            size = end - start
        if size < header or start + size > end:
            raise ValueError(f"a box {kind!r} of {size} bytes does not fit into the {end - start} that are left")
        yield Box(kind, start + header, start + size)
        start += size


def children(data: bytes, parent: Box) -> dict[bytes, Box]:
    """Return the boxes in another one by their types, the first of each. Raises ValueError."""
    found: dict[bytes, Box] = {}
    for box in boxes(data, parent.start, parent.end):
        found.setdefault(box.kind, box)
    return found


def top_boxes(read: ReadAt, nbytes: int) -> Iterator[tuple[int, Box]]:
    """Yield the boxes of a file of `nbytes` bytes with where each begins; the last one may end after the file.

    Raises ValueError for what no box is.
    """
    place = 0
    while place + 8 <= nbytes:
        header = read(place, _HEADER_NBYTES)
        if len(header) < 8:
            return
        size, kind = _HEADER.unpack_from(header)
        start = 8
        if size == 1 and len(header) == _HEADER_NBYTES:
            size, start = struct.unpack_from(">Q", header, 8)[0], _HEADER_NBYTES
        elif size == 0:
            size = nbytes - place
        if size < start:
            raise ValueError(f"a box of {size} bytes at byte {place}")
        yield place, Box(kind, place + start, place + size)
        place += size


def read_moov(read: ReadAt, nbytes: int, where: str) -> bytes:
    """Return the contents of the box `moov` of a file of `nbytes` bytes. Raises FormatError if it has none, or was cut."""
    end = 0
    try:
        for _, box in top_boxes(read, nbytes):
            end = box.end
            if box.kind == b"moov":
                size = box.end - box.start
                if box.end > nbytes or size > MAX_BOX_NBYTES:
                    raise FormatError(
                        f"{where}: its table of contents (moov) has {size} bytes of {nbytes}: cut; get the file again"
                    )
                return read(box.start, size)
    except ValueError as exc:
        if isinstance(exc, FormatError):
            raise
        raise FormatError(f"{where}: not an mp4 or mov file, or damaged ({exc}); get the file again") from exc
    missing = f"it has {nbytes:,} bytes of at least {end:,}: cut" if end > nbytes else "its recording was not finished"
    raise FormatError(f"{where}: it has no table of contents (moov); {missing}; get the file again")
