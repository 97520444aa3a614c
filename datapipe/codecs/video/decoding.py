"""Decode some frames of a video, each group of pictures once, without a container.

Packets go straight to a codec context. Packets that no wanted frame needs are left out where their headers say so: of H.264,
HEVC and MPEG-4; those of VP9 and AV1 adapt the decoder even where nothing refers to their pixels.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from typing import Any

from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.nal_units import (
    H264,
    HEVC,
    MPEG4,
    Access,
    Data,
    access_of,
    is_never_referenced,
    layer_of,
    length_nbytes,
)
from datapipe.codecs.video.runs import Part, Run, packets_in, runs_of
from datapipe.codecs.video.track import Ints, ReadAt, VideoCoding, VideoPackets, VideoTrack
from datapipe.errors import DecodeError

_DECODERS = {"av1": "libdav1d"}  # where the codec's own name is that of a decoder for hardware
_STRICT = {"err_detect": "explode"}  # what is damaged is an error, not a guess
_PATIENT = {"strict": "1"}  # H.264: frames wait for as long as others may have to come before, as streams need not say
# Codecs whose contexts are used again after a run without errors, as opening one takes a twentieth of decoding it. Damage that
# raises no error leaves tables and headers of other codecs behind, which change what is decoded next.
_KEPT = (H264, "av1")
_MAX_CONTEXTS = 4  # kept for codings that come again

_Key = tuple[VideoCoding, bool]  # a coding, and whether damage is an error
_Rest = list[tuple[Run, bool]]  # what is still to be decoded, and whether damage is an error there


class VideoDecoder:
    """A decoder for one thread; do not share it between threads. Raises DependencyError without PyAV.

    `skips`: whether packets that no wanted frame needs are left out.
    """

    def __init__(self, *, skips: bool = True) -> None:
        self._av = import_av()
        self._skips = skips
        self._contexts: OrderedDict[_Key, Any] = OrderedDict()

    def decode(self, track: VideoTrack, read: ReadAt, frames: Ints) -> Iterator[tuple[int, Any]]:
        """Yield the number of each wanted frame with the frame, a `VideoFrame` of PyAV, or the DecodeError that it has.

        `frames`: numbers of presented frames, ascending without repeats. They come as they are decoded, which is not in order.
        The bytes come from `read`, whose errors are raised. One call at a time: exhaust or close it before the next.
        """
        for run in runs_of(track, frames):
            rest = [(run, True)]
            while rest:
                rest += yield from self._decode_run(track, read, *rest.pop())

    def display_order(self, coding: VideoCoding, packets: VideoPackets, read: ReadAt) -> list[int]:
        """Return the packets in the order in which the decoder gives their frames, without those that give none.

        All are decoded; a damaged one comes where the decoder meets it. Raises DecodeError if PyAV has no decoder.
        """
        context = self._opened((coding, False))
        found: list[int] = []
        run = Run((Part(0, {len(packets) - 1: 0}),))
        for number, data in packets_in(packets, run, read):
            try:
                found += [frame.pts for frame in self._decoded(context, number, data)]
            except (self._av.error.FFmpegError, EOFError):
                found.append(number)
        return list(dict.fromkeys([*found, *(frame.pts for frame in context.decode(None))]))

    def _decode_run(self, track: VideoTrack, read: ReadAt, run: Run, is_strict: bool) -> Generator[tuple[int, Any], None, _Rest]:
        """Yield the frames of a run, up to what is damaged; return what is to be decoded in its place."""
        key = (track.coding, is_strict)
        missing = run.wanted
        reason = "the decoder gives no such frame"
        damaged: int | None = None  # packet
        is_open = has_passed = False  # has_passed: over an error
        kept = self._contexts.pop(key, None)
        try:
            context = self._opened(key) if kept is None else kept
        except DecodeError as exc:
            yield from ((frame, exc) for frame in missing.values())
            return []
        for number, data in self.needed(track, read, run):
            is_open = is_open or (number == run.first and self._is_open(track.coding, data))
            try:
                decoded = self._decoded(context, number, data)
            except (self._av.error.FFmpegError, EOFError) as exc:
                if track.packets.pts[number] < track.packets.pts[run.first]:
                    has_passed = True
                    continue  # it is shown before the run, and needs what is before it
                damaged, reason = number, _reason(exc, number)
                break
            yield from self._wanted(decoded, missing)
            if not missing:
                break
        if missing and damaged is None:
            try:
                yield from self._wanted(context.decode(None), missing)
            except self._av.error.FFmpegError as exc:
                reason = _reason(exc, run.last)
        if not missing and not has_passed:
            self._keep(key, context)
        elif missing and kept is not None:  # what was decoded by this context before may be to blame
            return [(run.narrowed(missing), is_strict)]
        if damaged is not None and is_strict and is_open:
            return [(run.narrowed(missing), False)]
        rest = [] if damaged is None else [(one, True) for one in run.around(damaged, missing)]
        for one, _ in rest:
            missing = {packet: frame for packet, frame in missing.items() if packet not in one.wanted}
        for frame in missing.values():
            yield frame, DecodeError(f"frame {frame} (at {track.times[frame]:.3f} s) does not decode: {reason}")
        return rest

    def _wanted(self, decoded: list[Any], missing: dict[int, int]) -> Iterator[tuple[int, Any]]:
        """Yield those of the decoded frames that are wanted, which are missing no longer."""
        for frame in decoded:
            if frame.pts in missing and not frame.is_corrupt:
                yield missing.pop(frame.pts), frame

    def _decoded(self, context: Any, number: int, data: Data) -> list[Any]:
        """Return the frames that the decoder gives for a packet; their `pts` are numbers of packets."""
        if not len(data):
            raise EOFError
        packet = self._av.Packet(len(data))
        packet.update(data)
        packet.pts = packet.dts = number
        found: list[Any] = context.decode(packet)
        return found

    def _is_open(self, coding: VideoCoding, data: Data) -> bool:
        """Return True for a packet from which H.264 refers to frames before it, if only to say that they are needed no more.

        That is an error where damage is one, so damage cannot be told from it.
        """
        if coding.codec != H264:
            return False
        found = access_of(H264, data, length_nbytes(H264, coding.extradata))
        return found is not None and found[0] == Access.OPEN

    def needed(self, track: VideoTrack, read: ReadAt, run: Run) -> list[tuple[int, Data]]:
        """Return the packets of a run with their numbers, without those that no wanted frame needs.

        A list, as an interrupt is lost that comes while a generator is freed.
        """
        coding, wanted = track.coding, run.wanted
        packets: list[tuple[int, Data]] = list(packets_in(track.packets, run, read))
        if not self._skips or len(wanted) > run.last - run.first or coding.codec not in (H264, HEVC, MPEG4):
            return packets
        length = length_nbytes(coding.codec, coding.extradata)
        if coding.codec == HEVC:
            layers = [layer_of(data, length) for _, data in packets]
            top = max(layer for _, layer in layers)  # frames of a lower layer may be needed by those of a higher one
            return [
                (number, data)
                for (number, data), (is_unreferenced, layer) in zip(packets, layers, strict=True)
                if number in wanted or not is_unreferenced or layer < top
            ]
        return [
            (number, data) for number, data in packets if number in wanted or not is_never_referenced(coding.codec, data, length)
        ]

    def _opened(self, key: _Key) -> Any:
        """Return a new codec context. Raises DecodeError if PyAV has no decoder."""
        coding, is_strict = key
        try:
            context = self._av.CodecContext.create(_DECODERS.get(coding.codec, coding.codec), "r")
        except (self._av.error.FFmpegError, ValueError) as exc:
            raise DecodeError(f"this PyAV has no decoder for {coding.codec} ({exc}); install PyAV from PyPI") from exc
        if coding.extradata:
            context.extradata = coding.extradata
        context.width, context.height = coding.width, coding.height
        context.thread_count = 1
        context.options = (_STRICT if is_strict else {}) | (_PATIENT if coding.codec == H264 else {})
        return context

    def _keep(self, key: _Key, context: Any) -> None:
        """Keep a context that has met no damage for the next run of the same coding."""
        coding, is_strict = key
        if coding.codec not in _KEPT or coding.changes_parameters or not is_strict:
            return
        context.flush_buffers()
        self._contexts[key] = context
        if len(self._contexts) > _MAX_CONTEXTS:
            self._contexts.popitem(last=False)


def _reason(error: Exception, packet: int) -> str:
    if isinstance(error, EOFError):
        return f"the file ends within packet {packet}"
    return f"packet {packet} is damaged ({getattr(error, 'strerror', None) or error})"
