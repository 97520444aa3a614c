"""Choose the reads that serve some extents best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from datapipe.index.entries import Extents

MAX_GAP = 1 << 16  # bytes read in vain rather than skipped


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """A run of bytes of one file."""

    path: str
    offset: int
    nbytes: int


def plan_reads(extents: Extents, *, max_gap: int = MAX_GAP) -> list[ByteSpan]:
    """Return spans that cover all extents of bytes, joining those within `max_gap` bytes of each other."""
    spans: list[ByteSpan] = []
    path, start, end = "", 0, -1
    wanted: Iterable[tuple[str, int, int]] = zip(extents.paths, extents.offset.tolist(), extents.nbytes.tolist(), strict=True)
    if extents.row_groups is not None:
        wanted = (span for span, group in zip(wanted, extents.row_groups, strict=True) if group is None)
    for here, offset, nbytes in sorted(wanted):
        if here == path and offset <= end + max_gap:
            end = max(end, offset + nbytes)
            continue
        if end >= 0:
            spans.append(ByteSpan(path, start, end - start))
        path, start, end = here, offset, offset + nbytes
    if end >= 0:
        spans.append(ByteSpan(path, start, end - start))
    return spans
