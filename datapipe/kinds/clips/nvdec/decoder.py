"""Decode videos with the video engines of an NVIDIA GPU (NVDEC), by PyNvVideoCodec, to the frames that the CPU's decoder gives.

The standards leave a decoder no choice of pixels, so that an engine's frames are the CPU's, bit for bit. Runs are decoded both
ways until a coding is trusted, and every now and then afterwards; a coding that an engine refuses, or decodes otherwise, is the
CPU's from then on, as is every frame that an engine does not give. They differ on damage within a packet: the CPU's decoder
reports it, an engine conceals it without a word.
"""

from __future__ import annotations

import itertools
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.video.conversion import samples_of
from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.nal_units import Data, in_annex_b, length_nbytes, parameter_sets
from datapipe.codecs.video.runs import Run, runs_of
from datapipe.codecs.video.track import Ints, ReadAt, VideoCoding, VideoTrack
from datapipe.errors import DecodeError
from datapipe.kernel.cuda_runtime import CudaDevice
from datapipe.kernel.pools import SlabPool
from datapipe.kinds.clips.nvdec.library import import_nvdec
from datapipe.kinds.clips.nvdec.trust import CODECS, Colours, Trust, shown

_FORMAT = "yuv420p"
_CHECKED = 8  # frames of a run that is decoded both ways
_CHECK_EVERY = 64  # runs of a thread, of codings that are trusted
_STAGED = 8  # frames that are copied to the host together
_MAX_SESSIONS = 2  # of a thread: one takes a tenth of a second to open, and some 10 to 100 MB of the GPU


@dataclass(slots=True)
class _Session:
    """An engine's decoder for one coding."""

    coding: VideoCoding
    decoder: Any  # PyNvVideoCodec's
    parameter_sets: bytes
    length: int  # bytes of the length before each NAL unit of a packet
    slabs: SlabPool  # of pinned memory: a frame each
    next_time: int = 0  # from which the packets of the next run are numbered


class EngineDecoder:
    """A decoder like `VideoDecoder`, for one thread. Make it there: it creates a stream.

    Raises DependencyError without PyAV or PyNvVideoCodec.
    """

    def __init__(self, runtime: CudaDevice, trust: Trust) -> None:
        self._av, self._nvdec = import_av(), import_nvdec()
        self._runtime, self._trust = runtime, trust
        self._stream: Any = runtime.new_stream()
        self._sessions: OrderedDict[VideoCoding, _Session] = OrderedDict()
        self._num_runs = 0
        self._on_cpu = VideoDecoder()

    def decode(self, track: VideoTrack, read: ReadAt, frames: Ints) -> Iterator[tuple[int, Any]]:
        """Yield the number of each wanted frame with the frame, a `VideoFrame` of PyAV. See `VideoDecoder.decode`."""
        if not self._trust.may_serve(track.coding):
            yield from self._on_cpu.decode(track, read, frames)
            return
        for run in runs_of(track, frames):
            colours = self._trust.colours(track.coding)
            self._num_runs += 1
            if colours is None or self._num_runs % _CHECK_EVERY == 0:
                yield from self._check(track, read, run)
            else:
                yield from self._serve(track, read, run, colours)

    def _serve(self, track: VideoTrack, read: ReadAt, run: Run, colours: Colours) -> Iterator[tuple[int, Any]]:
        """Yield the frames of a run by an engine, and by the CPU what that does not give."""
        missing = dict(run.wanted)
        packets = self._needed(track, read, run)
        try:
            for packet, frame in self._decode_run(track, packets, run, colours):
                yield missing.pop(packet), frame
        except Exception as exc:  # PyNvVideoCodec has several kinds, which have nothing in common
            self._trust.note_failure(track.coding, exc)
        else:
            if not missing:
                self._trust.note_served(track.coding, len(run.wanted))
            elif _are_whole(packets):
                self._trust.note_failure(track.coding, "it gives no frame for some packets")
        if missing:
            yield from self._on_cpu.decode(track, read, _ascending(missing.values()))

    def _check(self, track: VideoTrack, read: ReadAt, run: Run) -> Iterator[tuple[int, Any]]:
        """Yield the frames of a run by the CPU, and note whether some of them come from an engine alike, unless any is bad."""
        packet_of = {frame: packet for packet, frame in run.wanted.items()}
        kept: dict[int, Any] = {}  # by packet
        is_good = True
        for number, frame in self._on_cpu.decode(track, read, _ascending(packet_of)):
            is_good = is_good and not isinstance(frame, DecodeError)
            if len(kept) < _CHECKED:
                kept[packet_of[number]] = frame
            yield number, frame
        if is_good and self._trust.may_serve(track.coding):
            self._compare(track, read, run.narrowed(kept), kept)

    def _compare(self, track: VideoTrack, read: ReadAt, run: Run, expected: dict[int, Any]) -> None:
        coding, colours = track.coding, Colours.of(next(iter(expected.values())))
        if not all(_is_served(frame, coding, colours) for frame in expected.values()):
            self._trust.refuse(coding, f"its frames are not whole pictures in {_FORMAT}, all of one size and meaning")
            return
        packets = self._needed(track, read, run)
        try:
            found = {
                packet: _are_equal(frame, expected[packet]) for packet, frame in self._decode_run(track, packets, run, colours)
            }
        except Exception as exc:  # as above
            self._trust.note_failure(coding, exc)
            return
        if not all(found.values()):
            self._trust.refuse(coding, "they give other pixels")
        elif len(found) < len(expected):
            self._trust.note_failure(coding, "it gives no frame for some packets")
        else:
            self._trust.note_equal(coding, colours, map(_checksum, expected.values()))

    def _needed(self, track: VideoTrack, read: ReadAt, run: Run) -> list[tuple[int, Data]]:
        """Return the packets that wanted frames of a run need, without those shown before it, which need what is not there."""
        pts = track.packets.pts
        packets = self._on_cpu.needed(track, read, run)
        return [(number, data) for number, data in packets if pts[number] >= pts[run.first]]

    def _decode_run(
        self, track: VideoTrack, packets: list[tuple[int, Data]], run: Run, colours: Colours
    ) -> Iterator[tuple[int, Any]]:
        """Yield the wanted frames that the engine gives, each by its packet.

        Packets are numbered in the order in which their frames are shown, and on from run to run: NVIDIA's parser takes times
        that do not ascend for those of decoding, and gives the frames others.
        """
        session = self._session(track.coding)
        shown_at = np.argsort(np.argsort(track.packets.pts[run.first : run.last + 1], kind="stable")) + session.next_time
        session.next_time += len(shown_at)
        packet_at = {int(shown_at[packet - run.first]): packet for packet in run.wanted}
        head = session.parameter_sets
        staged: list[tuple[int, NDArray[np.uint8]]] = []
        try:
            for number, data in itertools.takewhile(lambda packet: len(packet[1]), packets):  # up to where the file ends
                given = head + in_annex_b(data, session.length)
                head = b""
                staged += self._decoded(session, given, int(shown_at[number - run.first]), packet_at)
                if len(staged) >= _STAGED:
                    yield from self._delivered(staged, session, colours)
                    staged = []
            staged += self._decoded(session, b"", 0, packet_at)
            yield from self._delivered(staged, session, colours)
        except BaseException:
            self._sessions.pop(track.coding, None)
            self._stream.synchronize()  # before the memory of copies is lent again
            raise

    def _decoded(
        self, session: _Session, data: bytes, time: int, packet_at: dict[int, int]
    ) -> list[tuple[int, NDArray[np.uint8]]]:
        """Decode a packet, or what is left if it has no bytes; return the wanted frames, on their way to the host."""
        packet = self._nvdec.PacketData()
        packet.bsl = len(data)
        packet.bsl_data = np.frombuffer(data, np.uint8).ctypes.data if data else 0  # `data` lives until the call has returned
        packet.pts = packet.dts = time
        surfaces = [(surface.timestamp, surface) for surface in session.decoder.Decode(packet)]
        return [(packet_at[at], self._copied(surface, session)) for at, surface in surfaces if at in packet_at]

    def _copied(self, surface: Any, session: _Session) -> NDArray[np.uint8]:
        """Begin to copy the planes of a surface, NV12, to the host: brightness, then both colours, each by itself.

        The engine writes its next frames in the order of this stream, so that none overwrites what is being copied.
        """
        height, width = session.coding.height, session.coding.width
        slab = session.slabs.lease()
        planes = _planes(torch.from_numpy(slab), height, width)
        with self._runtime.under(self._stream):
            pixels: torch.Tensor = torch.utils.dlpack.from_dlpack(surface)
            if tuple(pixels.shape) != (height + height // 2, width) or pixels.dtype != torch.uint8:
                raise DecodeError(f"the engine gives {pixels.dtype} {tuple(pixels.shape)} for {shown(session.coding)}")
            colours = pixels[height:].view(height // 2, width // 2, 2)
            for plane, source in zip(planes, (pixels[:height], colours[..., 0], colours[..., 1]), strict=True):
                plane.copy_(source, non_blocking=True)
        return slab

    def _delivered(
        self, staged: list[tuple[int, NDArray[np.uint8]]], session: _Session, colours: Colours
    ) -> Iterator[tuple[int, Any]]:
        """Wait for copies, and yield the frames that they make."""
        self._stream.synchronize()
        height, width = session.coding.height, session.coding.width
        for packet, slab in staged:
            frame = self._av.VideoFrame(width, height, _FORMAT)
            for plane, source in zip(frame.planes, _planes(slab, height, width), strict=True):
                samples_of(plane, source.shape)[:] = source
            frame.colorspace, frame.color_range = colours
            yield packet, frame

    def _session(self, coding: VideoCoding) -> _Session:
        """Return a session that has decoded nothing, or has been flushed."""
        session = self._sessions.get(coding)
        if session is None:
            if len(self._sessions) == _MAX_SESSIONS:
                self._sessions.popitem(last=False)
            decoder = self._nvdec.CreateDecoder(
                gpuid=self._runtime.device.index or 0,
                codec=getattr(self._nvdec.cudaVideoCodec, CODECS[coding.codec]),
                cudastream=self._stream.cuda_stream,
                usedevicememory=True,
            )
            nbytes = coding.height * coding.width * 3 // 2
            session = self._sessions[coding] = _Session(
                coding,
                decoder,
                parameter_sets(coding.codec, coding.extradata),
                length_nbytes(coding.codec, coding.extradata),
                self._runtime.pinned_slabs(nbytes, max_free=_STAGED),
            )
        self._sessions.move_to_end(coding)
        return session


def _ascending(frames: Any) -> Ints:
    return np.array(sorted(frames), np.int64)


def _are_whole(packets: list[tuple[int, Data]]) -> bool:
    """Return True unless the file ends within a packet."""
    return all(len(data) for _, data in packets)


def _is_served(frame: Any, coding: VideoCoding, colours: Colours) -> bool:
    is_plain = frame.format.name == _FORMAT and not frame.interlaced_frame
    return is_plain and (frame.width, frame.height) == (coding.width, coding.height) and Colours.of(frame) == colours


def _are_equal(frame: Any, other: Any) -> bool:
    shapes = [(plane.height, plane.width) for plane in frame.planes]
    pairs = zip(frame.planes, other.planes, shapes, strict=True)
    return all(np.array_equal(samples_of(one, shape), samples_of(two, shape)) for one, two, shape in pairs)


def _checksum(frame: Any) -> int:
    return zlib.crc32(samples_of(frame.planes[0], (frame.height, frame.width)).tobytes())


def _planes(memory: Any, height: int, width: int) -> list[Any]:
    """Return the planes of a frame in (nbytes,) memory, numpy's or torch's: brightness, and both colours of half the size."""
    num, rows, columns = height * width, height // 2, width // 2
    parts = (memory[:num], memory[num : num + num // 4], memory[num + num // 4 : num + num // 2])
    sizes = ((height, width), (rows, columns), (rows, columns))
    return [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]
