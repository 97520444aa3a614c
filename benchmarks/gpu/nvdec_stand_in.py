"""A stand-in for the parts of PyNvVideoCodec that decode, over PyAV: it runs without a GPU.

It is as unhelpful as the real one may be. It understands start codes alone. A surface lasts until the next call. Damage is
concealed. A packet's memory is only looked at during the call. If one of the first frames comes after an earlier time is pending,
times are taken for those of decoding, and frames get them in ascending order, from then on.

    with stand_in(): ...    # `import PyNvVideoCodec` finds it
"""

from __future__ import annotations

import ctypes
import enum
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.video.library import import_av
from datapipe.kinds.clips.nvdec.library import PACKAGE, import_nvdec

_POISON = 0xDB
_LOOKED_AT = 16  # frames whose times show whether they ascend


class PacketData:
    """An encoded packet; one without bytes ends a run."""

    def __init__(self) -> None:
        self.bsl = self.bsl_data = self.pts = self.dts = 0


class cudaVideoCodec(enum.Enum):  # noqa: N801  # the library's name
    """The codecs, by FFmpeg's names of their decoders."""

    H264 = "h264"
    HEVC = "hevc"
    AV1 = "libdav1d"


class Surface:
    """A decoded frame, NV12. `timestamp`: of its packet."""

    def __init__(self, pixels: NDArray[np.uint8], timestamp: int) -> None:
        self.pixels, self.timestamp = pixels, timestamp

    def __dlpack__(self, **options: Any) -> Any:
        return self.pixels.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.pixels.__dlpack_device__()


class Decoder:
    """Decodes packets in order, as FFmpeg's decoder does on one thread."""

    num_surfaces = 0  # that all have given

    def __init__(self, codec: cudaVideoCodec) -> None:
        self._av = import_av()
        self._context: Any = self._av.CodecContext.create(codec.value, "r")
        self._context.thread_count = 1
        self._given: list[Surface] = []
        self._pending: set[int] = set()  # times of packets whose frames are not shown yet
        self._num_shown = 0
        self._sorts = False

    def Decode(self, packet: PacketData) -> list[Surface]:  # noqa: N802  # the library's name
        for surface in self._given:
            surface.pixels[:] = _POISON
        found = [Surface(_nv12(frame), self._time(frame.pts)) for frame in self._frames(packet)]
        Decoder.num_surfaces += len(found)
        self._given = found
        return found

    def _time(self, pts: int) -> int:
        """Return the time that a frame gets, which need not be its packet's."""
        if self._num_shown < _LOOKED_AT:
            self._sorts = self._sorts or any(other < pts for other in self._pending)
            self._num_shown += 1
        time = min(self._pending) if self._sorts else pts
        self._pending.discard(time)
        return time

    def _frames(self, packet: PacketData) -> list[Any]:
        if not packet.bsl:
            frames: list[Any] = self._context.decode(None)
            self._context.flush_buffers()
            return frames
        self._pending.add(packet.pts)
        data = ctypes.string_at(packet.bsl_data, packet.bsl)
        given = self._av.Packet(data)
        given.pts, given.dts = packet.pts, packet.dts
        try:
            frames = self._context.decode(given)
        except self._av.error.FFmpegError:
            return []
        return frames


def _nv12(frame: Any) -> NDArray[np.uint8]:
    """Return the samples of a frame of 8 bits as (h * 3 / 2, w)."""
    pixels: NDArray[np.uint8] = frame.reformat(format="nv12").to_ndarray().copy()
    return pixels


def create_decoder(*, gpuid: int, codec: cudaVideoCodec, cudastream: int, usedevicememory: bool) -> Decoder:
    """Return a decoder."""
    return Decoder(codec)


@contextmanager
def stand_in() -> Iterator[types.ModuleType]:
    """Let `import PyNvVideoCodec` find the stand-in."""
    module = types.ModuleType(PACKAGE)
    module.__dict__.update(PacketData=PacketData, cudaVideoCodec=cudaVideoCodec, CreateDecoder=create_decoder)
    import_nvdec.cache_clear()
    with mock.patch.dict(sys.modules, {PACKAGE: module}):
        yield module
    import_nvdec.cache_clear()
