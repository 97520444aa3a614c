"""The video track of an mp4 or QuickTime file from its boxes; no library opens the file."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Iterator
from typing import NamedTuple

from datapipe.codecs.video.track import ReadAt, VideoTrack
from datapipe.errors import FormatError
from datapipe.opening.videos.boxes import DAMAGE, Box, boxes, children, read_moov
from datapipe.opening.videos.codings import coding_of, is_enabled, is_video, time_scale, track_number
from datapipe.opening.videos.fragments import UnusualError, fragmented_packets, refuse_claims
from datapipe.opening.videos.presentation import track_of
from datapipe.opening.videos.sample_tables import packets_of

Children = dict[bytes, Box]


class _Edit(NamedTuple):
    """What an edit list shows of a track, in its units of time."""

    start: int  # the time that is shown first
    end: int
    delay: int  # before the first frame


def read_mp4(read: ReadAt, nbytes: int, where: str) -> VideoTrack | None:
    """Return the video track of a file of `nbytes` bytes.

    Of several it is the first one that is enabled, as for players. None for what is left to FFmpeg: other codecs, edit lists of
    several parts, some fragments. Raises FormatError, which names `where`, if there is no video, and for a file that is cut or
    damaged.
    """
    moov = read_moov(read, nbytes, where)
    try:
        top = list(boxes(moov, 0, len(moov)))
        tracks = list(_video_tracks(moov, top))
        if not tracks:
            raise FormatError(f"{where}: has no video track; remove it from the data")
        shown = next((one for one in tracks if is_enabled(moov, one[0][b"tkhd"])), tracks[0])
        found = None
        with contextlib.suppress(UnusualError):
            found = _track(moov, {box.kind: box for box in reversed(top)}, *shown, read=read, nbytes=nbytes)
        if found is None:
            refuse_claims(read, nbytes)
            return None
        return dataclasses.replace(found, num_others=len(tracks) - 1) if len(tracks) > 1 else found
    except FormatError:
        raise
    except DAMAGE as exc:
        what = f"it has no box {exc.args[0]!r}" if isinstance(exc, KeyError) else str(exc)
        raise FormatError(f"{where}: damaged mp4: {what}; get the file again") from exc


def _video_tracks(moov: bytes, top: list[Box]) -> Iterator[tuple[Children, Children]]:
    """Yield the boxes in `trak`, and those in its `mdia`, of each track of video."""
    for box in top:
        if box.kind == b"trak":
            trak = children(moov, box)
            mdia = children(moov, trak[b"mdia"]) if b"mdia" in trak else {}
            if b"hdlr" in mdia and is_video(moov, mdia[b"hdlr"]):
                yield trak, mdia


def _track(moov: bytes, top: Children, trak: Children, mdia: Children, *, read: ReadAt, nbytes: int) -> VideoTrack | None:
    tables = children(moov, children(moov, mdia[b"minf"])[b"stbl"])
    coding = coding_of(moov, trak[b"tkhd"], tables[b"stsd"])
    if coding is None:
        return None
    scale = time_scale(moov, mdia[b"mdhd"])
    packets = packets_of(moov, tables, nbytes)
    elst = children(moov, trak[b"edts"]).get(b"elst") if b"edts" in trak else None
    has_edits = elst is not None and struct.unpack_from(">I", moov, elst.start + 4)[0] > 0
    if b"mvex" in top:
        if len(packets) or has_edits:
            return None
        packets = fragmented_packets(moov, track_number(moov, trak[b"tkhd"]), read, nbytes)
    if elst is None or not has_edits:
        return track_of(coding, (1, scale), packets, read)
    edit = _edit(moov, elst, scale, time_scale(moov, top[b"mvhd"]))
    if edit is None:
        return None
    is_shown = (packets.pts >= edit.start) & (packets.pts < edit.end)
    first = int(packets.pts[is_shown].min()) if is_shown.any() else 0
    return track_of(coding, (1, scale), packets, read, is_shown=is_shown, shift=edit.delay - first)


def _edit(moov: bytes, elst: Box, scale: int, movie_scale: int) -> _Edit | None:
    """Return the only edit of a list, after an empty one that delays it; None for any other list."""
    form = ">Qqi" if moov[elst.start] == 1 else ">Iii"
    num = struct.unpack_from(">I", moov, elst.start + 4)[0]
    if num > 2:
        return None
    size = struct.calcsize(form)
    edits = [struct.unpack_from(form, moov, elst.start + 8 + size * number) for number in range(num)]
    delay = 0
    if num == 2:
        if edits[0][1] != -1:
            return None
        delay = _rescaled(edits[0][0], scale, movie_scale)
    duration, start, rate = edits[-1]
    if start < 0 or not duration or rate != 1 << 16:
        return None
    return _Edit(start, start + _rescaled(duration, scale, movie_scale), delay)


def _rescaled(time: int, scale: int, movie_scale: int) -> int:
    """Return a time of the movie in units of a track, rounded to the nearest."""
    return (2 * time * scale + movie_scale) // (2 * movie_scale)


def has_boxes(beginning: bytes) -> bool:
    """Return True for the first bytes of an mp4 or QuickTime file."""
    return beginning[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")
