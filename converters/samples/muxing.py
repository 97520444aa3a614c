"""Write a video as an mp4 whose table of contents comes first.

FFmpeg's muxer describes the packets. What a player shows of them, and when, is said by an edit list of our own, which FFmpeg
would write for the beginning only; all times stay what they are. (ISO/IEC 14496-12)
"""

from __future__ import annotations

import contextlib
import io
import struct
from fractions import Fraction
from typing import Any, NamedTuple, Self

from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.nal_units import HEVC
from datapipe.errors import DecodeError
from datapipe.opening.videos.boxes import DAMAGE, Box, boxes, children
from datapipe.opening.videos.codings import rotation_of

_MAX_UINT32 = (1 << 32) - 1
_RATE = 1 << 16  # of an edit: the usual speed
_ONE, _ONE_OF_W = 1 << 16, 1 << 30  # in the matrix of a track


class Shown(NamedTuple):
    """What a player shows of the packets of a video; times are those of the packets."""

    start: int  # the time of the first frame
    end: int  # that at which the last frame ends
    delay: int = 0  # before the first frame is shown
    rotation: int = 0  # degrees clockwise


class Mp4Writer:
    """Writes one video into memory. Times are whole numbers, of which `scale` are a second.

    Raises DecodeError for what an mp4 cannot hold.
    """

    def __init__(self, scale: int) -> None:
        self._av = import_av()
        self._scale = scale
        self._sink = io.BytesIO()
        self._shift: int | None = None  # from the times of packets to those in the file, where the first is decoded at 0
        options = {
            "fflags": "+bitexact",  # no version of FFmpeg in the file
            "use_editlist": "0",
            "avoid_negative_ts": "disabled",
            "movie_timescale": str(scale),
            "video_track_timescale": str(scale),
        }
        self.output = self._av.open(self._sink, "w", format="mp4", container_options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        with contextlib.suppress(self._av.error.FFmpegError):
            self.output.close()

    def copy_of(self, template: Any) -> Any:
        """Return a stream for the packets of another one. Raises DecodeError for a codec that an mp4 has no place for."""
        try:
            stream = self.output.add_stream_from_template(template, opaque=True)
        except (ValueError, self._av.error.FFmpegError) as exc:
            raise DecodeError(f"{template.codec_context.name} cannot be kept in an mp4; encode it again: --video-size N") from exc
        if template.codec_context.name == HEVC:
            stream.codec_context.codec_tag = "hvc1"  # which Apple's players ask for
        stream.time_base = Fraction(1, self._scale)
        return stream

    def put(self, stream: Any, data: bytes, *, pts: int, dts: int, duration: int, is_key: bool) -> None:
        """Append a packet, in the order of decoding; `dts` ascend."""
        if self._shift is None:
            self._shift = -dts
        packet = self._av.Packet(data)
        packet.stream, packet.time_base = stream, Fraction(1, self._scale)
        packet.pts, packet.dts, packet.duration = pts + self._shift, dts + self._shift, duration
        packet.is_keyframe = is_key
        try:
            self.output.mux(packet)
        except (ValueError, self._av.error.FFmpegError) as exc:
            raise DecodeError(f"its packets cannot be kept in an mp4 ({exc}); encode it again: --video-size N") from exc

    def finish(self, shown: Shown) -> bytes:
        """Return the file."""
        shift = self._shift or 0
        try:
            self.output.close()
            return _arranged(self._sink.getbuffer(), shown._replace(start=shown.start + shift, end=shown.end + shift))
        except (self._av.error.FFmpegError, *DAMAGE) as exc:
            raise DecodeError(f"cannot be kept in an mp4 ({exc}); encode it again: --video-size N") from exc


def _arranged(data: memoryview, shown: Shown) -> bytes:
    """Return a file of FFmpeg's with its table of contents first, and an edit list."""
    begins: dict[bytes, tuple[int, int]] = {}
    place = 0
    for box in boxes(data, 0, len(data)):
        begins[box.kind] = (place, box.end)
        place = box.end
    ftyp, mdat, moov = (data[slice(*begins[kind])] for kind in (b"ftyp", b"mdat", b"moov"))
    table = _with_edits(bytes(moov[8:]), shown)
    distance = len(ftyp) + 8 + len(table) - begins[b"mdat"][0]
    _move_chunks(table, distance)
    return b"".join([ftyp, _box(b"moov", bytes(table)), mdat])


def _with_edits(moov: bytes, shown: Shown) -> bytearray:
    """Return the contents of a box `moov` whose only track has an edit list."""
    top = children(moov, Box(b"moov", 0, len(moov)))
    trak = top[b"trak"]
    tkhd = children(moov, trak)[b"tkhd"]
    changed = bytearray(moov)
    duration = shown.delay + shown.end - shown.start
    _put_duration(changed, top[b"mvhd"], 16, 24, duration)
    _put_duration(changed, tkhd, 20, 28, duration)
    if rotation_of(moov, tkhd) != shown.rotation:
        _put_rotation(changed, tkhd, shown.rotation)
    edits = [(shown.delay, -1)] if shown.delay else []
    edits.append((shown.end - shown.start, shown.start))
    is_long = any(length > _MAX_UINT32 or start > _MAX_UINT32 // 2 for length, start in edits)
    rows = b"".join(struct.pack(">Qqi" if is_long else ">Iii", length, start, _RATE) for length, start in edits)
    edts = _box(b"edts", _box(b"elst", struct.pack(">II", is_long << 24, len(edits)) + rows))
    struct.pack_into(">I", changed, trak.start - 8, trak.end - trak.start + 8 + len(edts))
    changed[tkhd.end : tkhd.end] = edts
    return changed


def _put_duration(moov: bytearray, header: Box, place: int, long_place: int, duration: int) -> None:
    """Write the duration into a header: at `place` in the short form, at `long_place` in the long one."""
    if moov[header.start] == 1:
        struct.pack_into(">Q", moov, header.start + long_place, duration)
    else:
        struct.pack_into(">I", moov, header.start + place, min(duration, _MAX_UINT32))


def _put_rotation(moov: bytearray, tkhd: Box, rotation: int) -> None:
    place = tkhd.start + (52 if moov[tkhd.start] == 1 else 40)
    width, height = (number >> 16 << 16 for number in struct.unpack_from(">II", moov, place + 36))
    a, b, x, y = {0: (1, 0, 0, 0), 90: (0, 1, height, 0), 180: (-1, 0, width, height), 270: (0, -1, 0, width)}[rotation]
    struct.pack_into(">9i", moov, place, a * _ONE, b * _ONE, 0, -b * _ONE, a * _ONE, 0, x, y, _ONE_OF_W)


def _move_chunks(moov: bytearray, distance: int) -> None:
    """Add a number of bytes to the places of all chunks."""
    held = bytes(moov)
    box = Box(b"moov", 0, len(held))
    for kind in (b"trak", b"mdia", b"minf", b"stbl"):
        box = children(held, box)[kind]
    tables = children(held, box)
    kind, form = (b"stco", "I") if b"stco" in tables else (b"co64", "Q")
    table = tables[kind]
    form = f">{struct.unpack_from('>I', held, table.start + 4)[0]}{form}"
    places = struct.unpack_from(form, held, table.start + 8)
    struct.pack_into(form, moov, table.start + 8, *(place + distance for place in places))


def _box(kind: bytes, contents: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(contents), kind) + contents
