"""Decode videos with the video engines of an NVIDIA GPU (NVDEC), by PyNvVideoCodec, to the frames that the CPU's decoder gives.

The standards leave a decoder no choice of pixels, so that an engine's frames are the CPU's, bit for bit. Each coding is tried
once; one that an engine refuses, or decodes otherwise, is the CPU's from then on, as is every frame that an engine does not give.
They differ on damage within a packet: the CPU's decoder reports it, an engine conceals it without a word.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.nal_units import Data, in_annex_b, length_nbytes, parameter_sets
from datapipe.codecs.video.runs import Run, runs_of
from datapipe.codecs.video.track import Ints, ReadAt, VideoCoding, VideoTrack
from datapipe.core.printable import get_logger
from datapipe.errors import DecodeError
from datapipe.kernel.cuda_runtime import CudaDevice
from datapipe.kernel.pools import SlabPool
from datapipe.kinds.clips.nvdec.library import import_nvdec

CODECS = {"h264": "H264", "hevc": "HEVC", "av1": "AV1"}  # PyNvVideoCodec's names
_FORMAT = "yuv420p"
_TRIED = 8  # frames by which a coding is tried
_STAGED = 8  # frames that are copied to the host together
_MAX_FAILURES = 3  # of an engine on a coding, after which the CPU decodes it
_MAX_SESSIONS = 4  # kept for codings that come again: to open one takes a tenth of a second
_END = -1  # in place of a packet's number, after the last one

logger = get_logger(__name__)


class Colours(NamedTuple):
    """How the colours of frames are meant, which an engine does not say: FFmpeg's numbers."""

    space: int
    range: int


Trust = dict[VideoCoding, Colours | None]  # of codings that were tried; None: the CPU decodes it


@dataclass(frozen=True, slots=True)
class _Session:
    """An engine's decoder for one coding."""

    decoder: Any  # PyNvVideoCodec's
    parameter_sets: bytes
    length: int  # bytes of the length before each NAL unit of a packet
    slabs: SlabPool  # of pinned memory: a frame each


class EngineDecoder:
    """A decoder like `VideoDecoder`, for one thread. Make it there: it creates a stream.

    `trust`: what is known of codings, shared by decoders. Raises DependencyError without PyAV or PyNvVideoCodec.
    """

    def __init__(self, runtime: CudaDevice, trust: Trust) -> None:
        self._av, self._nvdec = import_av(), import_nvdec()
        self._runtime, self._trust = runtime, trust
        self._stream: Any = runtime.new_stream()
        self._sessions: OrderedDict[VideoCoding, _Session] = OrderedDict()
        self._num_failures: Counter[VideoCoding] = Counter()
        self._on_cpu = VideoDecoder()

    def decode(self, track: VideoTrack, read: ReadAt, frames: Ints) -> Iterator[tuple[int, Any]]:
        """Yield the number of each wanted frame with the frame, a `VideoFrame` of PyAV. See `VideoDecoder.decode`."""
        coding = track.coding
        if coding not in self._trust and _can_be_tried(coding) and len(frames):
            tried, frames = frames[:_TRIED], frames[_TRIED:]
            yield from self._try(track, read, tried)
        if self._trust.get(coding) is None:
            yield from self._on_cpu.decode(track, read, frames)
            return
        for run in runs_of(track, frames):
            missing = dict(run.wanted)
            packets = self._on_cpu.needed(track, read, run)
            if (colours := self._trust[coding]) is not None:
                try:
                    for packet, frame in self._decode_run(coding, packets, run, colours):
                        yield missing.pop(packet), frame
                except Exception as exc:  # PyNvVideoCodec has several kinds, which have nothing in common
                    self._note_failure(coding, exc)
            if missing:
                yield from self._on_cpu.decode(track, read, np.array(sorted(missing.values()), np.int64))

    def _note_failure(self, coding: VideoCoding, error: Exception) -> None:
        """Give a coding up after some failures: one may be a file's."""
        self._num_failures[coding] += 1
        if self._num_failures[coding] == _MAX_FAILURES:
            logger.warning("NVDEC failed on %s again, so the CPU decodes it from here on: %s", _shown(coding), error)
            self._trust[coding] = None

    def _try(self, track: VideoTrack, read: ReadAt, frames: Ints) -> Iterator[tuple[int, Any]]:
        """Yield frames that the CPU decodes, and note whether the engine's are equal, unless some of them are bad."""
        expected = list(self._on_cpu.decode(track, read, frames))
        if not any(isinstance(frame, DecodeError) for _, frame in expected):
            self._trust[track.coding] = self._found_equal(track, read, dict(expected))
        yield from expected

    def _found_equal(self, track: VideoTrack, read: ReadAt, expected: dict[int, Any]) -> Colours | None:
        """Return the colours of frames if an engine decodes them as the CPU has done, else None."""
        coding, first = track.coding, next(iter(expected.values()))
        colours = Colours(first.colorspace, first.color_range)
        if not all(_is_served(frame, coding, colours) for frame in expected.values()):
            return None
        num_equal = 0
        try:
            for run in runs_of(track, np.array(sorted(expected), np.int64)):
                for packet, frame in self._decode_run(coding, self._on_cpu.needed(track, read, run), run, colours):
                    num_equal += _are_equal(frame, expected[run.wanted[packet]])
        except Exception as exc:  # as above
            logger.info("NVDEC does not decode %s, so the CPU does: %s", _shown(coding), exc)
            return None
        if num_equal < len(expected):
            logger.warning("NVDEC decodes %s otherwise than the CPU, which does it in its place", _shown(coding))
            return None
        return colours

    def _decode_run(
        self, coding: VideoCoding, packets: list[tuple[int, Data]], run: Run, colours: Colours
    ) -> Iterator[tuple[int, Any]]:
        """Yield the wanted frames that the engine gives, each by its packet."""
        session, wanted = self._session(coding), run.wanted
        whole = itertools.takewhile(lambda packet: len(packet[1]), packets)  # the file may end before the last one
        staged: list[tuple[int, NDArray[np.uint8]]] = []
        try:
            for number, data in itertools.chain(whole, [(_END, b"")]):
                given = in_annex_b(data, session.length)
                if number == run.first:
                    given = session.parameter_sets + given
                surfaces = session.decoder.Decode(self._packet(number, given))
                shown = [surface for surface in surfaces if surface.timestamp in wanted]
                staged += [(surface.timestamp, self._copied(surface, coding, session)) for surface in shown]
                if len(staged) >= _STAGED or number == _END:
                    self._stream.synchronize()
                    yield from ((packet, self._frame(slab, coding, colours)) for packet, slab in staged)
                    staged.clear()
        except BaseException:
            self._stream.synchronize()  # before the memory of copies is lent again
            self._sessions.pop(coding, None)
            raise

    def _packet(self, number: int, data: bytes) -> Any:
        """Return a packet, without bytes at the end of a run; `data` must live until it is decoded."""
        packet = self._nvdec.PacketData()
        packet.bsl = len(data)
        packet.bsl_data = np.frombuffer(data, np.uint8).ctypes.data if data else 0
        packet.pts = packet.dts = max(number, 0)
        return packet

    def _copied(self, surface: Any, coding: VideoCoding, session: _Session) -> NDArray[np.uint8]:
        """Begin to copy the planes of a surface, NV12, to the host: brightness, then both colours, each by itself.

        The engine writes its next frames in the order of this stream, so that none overwrites what is being copied.
        """
        height, width = coding.height, coding.width
        slab = session.slabs.lease()
        planes = _planes(torch.from_numpy(slab), height, width)
        with self._runtime.under(self._stream):
            pixels: torch.Tensor = torch.utils.dlpack.from_dlpack(surface)
            if tuple(pixels.shape) != (height + height // 2, width) or pixels.dtype != torch.uint8:
                raise DecodeError(f"the engine gives {pixels.dtype} {tuple(pixels.shape)} for {_shown(coding)}")
            colours = pixels[height:].view(height // 2, width // 2, 2)
            for plane, source in zip(planes, (pixels[:height], colours[..., 0], colours[..., 1]), strict=True):
                plane.copy_(source, non_blocking=True)
        return slab

    def _frame(self, slab: NDArray[np.uint8], coding: VideoCoding, colours: Colours) -> Any:
        frame = self._av.VideoFrame(coding.width, coding.height, _FORMAT)
        for plane, source in zip(frame.planes, _planes(slab, coding.height, coding.width), strict=True):
            _samples(plane, source.shape)[:] = source
        frame.colorspace, frame.color_range = colours
        return frame

    def _session(self, coding: VideoCoding) -> _Session:
        """Return a session that has decoded nothing, or has been flushed."""
        session = self._sessions.get(coding)
        if session is None:
            decoder = self._nvdec.CreateDecoder(
                gpuid=self._runtime.device.index or 0,
                codec=getattr(self._nvdec.cudaVideoCodec, CODECS[coding.codec]),
                cudastream=self._stream.cuda_stream,
                usedevicememory=True,
            )
            nbytes = coding.height * coding.width * 3 // 2
            session = _Session(
                decoder,
                parameter_sets(coding.codec, coding.extradata),
                length_nbytes(coding.codec, coding.extradata),
                self._runtime.pinned_slabs(nbytes, max_free=_STAGED),
            )
            self._sessions[coding] = session
            if len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(coding)
        return session


def _can_be_tried(coding: VideoCoding) -> bool:
    """Return True for codings whose frames cannot differ in more than their pixels: `extradata` says all the rest."""
    is_even = coding.width % 2 == 0 == coding.height % 2
    return coding.codec in CODECS and bool(coding.extradata) and is_even and not coding.changes_parameters


def _is_served(frame: Any, coding: VideoCoding, colours: Colours) -> bool:
    size, meant = (frame.width, frame.height), (frame.colorspace, frame.color_range)
    is_plain = frame.format.name == _FORMAT and not frame.interlaced_frame
    return is_plain and size == (coding.width, coding.height) and meant == colours


def _are_equal(frame: Any, other: Any) -> bool:
    shapes = [(plane.height, plane.width) for plane in frame.planes]
    pairs = zip(frame.planes, other.planes, shapes, strict=True)
    return all(np.array_equal(_samples(one, shape), _samples(two, shape)) for one, two, shape in pairs)


def _samples(plane: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the (h, w) samples of a plane of a frame as a view of its memory."""
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: shape[0], : shape[1]]


def _planes(memory: Any, height: int, width: int) -> list[Any]:
    """Return the planes of a frame in (nbytes,) memory, numpy's or torch's: brightness, and both colours of half the size."""
    num, rows, columns = height * width, height // 2, width // 2
    parts = (memory[:num], memory[num : num + num // 4], memory[num + num // 4 : num + num // 2])
    sizes = ((height, width), (rows, columns), (rows, columns))
    return [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]


def _shown(coding: VideoCoding) -> str:
    return f"{coding.codec} of {coding.width} x {coding.height} pixels"
