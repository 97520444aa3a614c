"""Turn decoded frames into pixels: RGB, resized and turned as a player shows them; depth as it is."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.decode import Region
from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.regions import can_be_cut, cut_out, decoded_region, even_region, is_exact
from datapipe.codecs.video.track import VideoCoding
from datapipe.errors import DecodeError, OptionError

Pixels = NDArray[np.uint8] | NDArray[np.uint16]

DEPTH_FORMATS = ("gray9le", "gray10le", "gray12le", "gray14le", "gray16le")  # of one channel of more than 8 bits

_FULL_RANGE, _DEFAULT_SPACE = 2, 5  # of FFmpeg's AVColorRange and SwsColorspace


class Resize(enum.Enum):
    """How RGB gets another size. Both are bilinear, and look at all pixels where it becomes smaller."""

    EXACT = "exact"  # within 1 of torchcodec's, which resizes brightness and, more coarsely, colour
    FAST = "fast"  # each channel by itself, in less than half the time: within 2 of Pillow's


class FrameConverter:
    """Converts frames; for one thread. Raises DependencyError without PyAV."""

    def __init__(self, resize: Resize = Resize.EXACT) -> None:
        av = import_av()
        self._resize = resize
        how = av.video.reformatter.Interpolation
        # Bicubic: how torchcodec interpolates colour that is coarser than brightness. That of 8 bits in even sizes is repeated.
        self._interpolations = {"colour": how.BICUBIC, "size": how.BILINEAR, "depth": how.POINT}
        self._new_frame = av.VideoFrame
        self._new_reformatter = av.video.reformatter.VideoReformatter
        self._is_old = int(av.__version__.split(".")[0]) < 17  # before, PyAV has one thread here, and has to be told the colours
        self._reformatters: dict[tuple[str, str], Any] = {}  # each keeps what it has prepared for the last sizes

    def convert(self, frame: Any, coding: VideoCoding, out: Pixels, *, region: Region | None = None) -> None:
        """Write the pixels of a `VideoFrame`, as a player shows it, into `out`, resized to what `out` holds.

        `out`: (h, w, 3) uint8 for RGB, (h, w, 1) uint16 for depth, whose values are the nearest ones. `region`: the part that is
        resized, in pixels of the frame that is shown, (top, left, height, width); None: all of it. A frame of another size than
        `coding` says is resized to that before. Raises DecodeError for depth of a frame with several channels or only 8 bits,
        OptionError for another array.
        """
        if out.dtype == np.uint8 and out.shape[2:] == (3,):
            convert = self._rgb
        elif out.dtype == np.uint16 and out.shape[2:] == (1,):
            convert = self._depth
        else:
            raise OptionError(f"out is {out.dtype} {out.shape}; it must be (h, w, 3) uint8, or (h, w, 1) uint16 for depth")
        if region is None:
            region = (0, 0, frame.height, frame.width)
        else:
            region = decoded_region(region, coding.height, coding.width, coding.rotation)
            if (frame.height, frame.width) != (coding.height, coding.width):
                frame = self._reformatted("size", frame, frame.format.name, (coding.height, coding.width))
        convert(frame, region, np.rot90(out, coding.rotation // 90) if coding.rotation else out)

    def _rgb(self, frame: Any, region: Region, out: Pixels) -> None:
        """Write the RGB of a region of a frame into `out`, which is turned as the frame is."""
        size = (out.shape[0], out.shape[1])
        frame, region = self._colour_of(frame, region)
        if size == (region[2], region[3]):
            out[:] = _cut(_pixels(self._in_rgb(frame)), region)
        elif self._resize is Resize.EXACT:
            pixels = _cut(_pixels(self._in_rgb(frame)), region)
            part = self._new_frame.from_numpy_buffer(pixels, "rgb24")
            out[:] = _pixels(self._reformatted("size", part, "rgb24", size))
        else:
            for channel, values in enumerate(self._channels(frame, region)):
                part = self._new_frame.from_numpy_buffer(values, "gray")
                out[:, :, channel] = _samples(self._reformatted("size", part, "gray", size).planes[0], size)

    def _colour_of(self, frame: Any, region: Region) -> tuple[Any, Region]:
        """Return what is to be converted for a region of a frame, the whole frame or a part of it, and the region in that."""
        top, left, rows, columns = region
        if not is_exact(frame):
            whole = (0, 0, frame.height, frame.width)
            return (cut_out(frame, whole, self._new_frame) if can_be_cut(frame) else frame), region
        if (rows, columns) == (frame.height, frame.width):
            return frame, region
        around = even_region(region, frame)
        return cut_out(frame, around, self._new_frame), (top - around[0], left - around[1], rows, columns)

    def _in_rgb(self, frame: Any) -> Any:
        return self._reformatted("colour", frame, "rgb24", (frame.height, frame.width))

    def _channels(self, frame: Any, region: Region) -> list[NDArray[np.uint8]]:
        """Return the red, green and blue of a region, each as an array whose lines are contiguous."""
        size = (frame.height, frame.width)
        if 0 < frame.width % 16 < 10:  # swscale leaves the last columns of planes unwritten
            pixels = _cut(_pixels(self._in_rgb(frame)), region)
            return [np.ascontiguousarray(pixels[:, :, channel]) for channel in range(3)]
        planes = self._reformatted("colour", frame, "gbrp", size).planes
        return [_cut(_samples(planes[number], size), region) for number in (2, 0, 1)]

    def _depth(self, frame: Any, region: Region, out: Pixels) -> None:
        form = frame.format.name
        if form not in DEPTH_FORMATS:
            raise DecodeError(f"its frames are {form}, not depth ({', '.join(DEPTH_FORMATS)}); read them as RGB")
        size = (out.shape[0], out.shape[1])
        if region[2:] != (frame.height, frame.width):
            frame = cut_out(frame, region, self._new_frame)
        if size != (frame.height, frame.width):
            frame = self._reformatted("depth", frame, form, size)
        out[:, :, 0] = _samples(frame.planes[0], size, np.uint16)

    def _reformatted(self, purpose: str, frame: Any, form: str, size: tuple[int, int]) -> Any:
        reformatter = self._reformatters.get((purpose, form))
        if reformatter is None:
            reformatter = self._reformatters[purpose, form] = self._new_reformatter()
        more: dict[str, int] = {} if self._is_old else {"threads": 1}
        if self._is_old and purpose == "colour" and not frame.format.name.startswith("gray"):
            more = {"src_color_range": frame.color_range, "dst_color_range": _FULL_RANGE, "dst_colorspace": _DEFAULT_SPACE}
        how = self._interpolations[purpose]
        return reformatter.reformat(frame, height=size[0], width=size[1], format=form, interpolation=how, **more)


def _samples(plane: Any, size: tuple[int, int], dtype: Any = np.uint8) -> NDArray[Any]:
    """Return the (h, w) samples of a plane as a view of its memory."""
    lines = np.frombuffer(plane, dtype).reshape(-1, plane.line_size // np.dtype(dtype).itemsize)
    return lines[: size[0], : size[1]]


def _pixels(frame: Any) -> NDArray[np.uint8]:
    """Return the (h, w, 3) pixels of a `VideoFrame` in rgb24 as a view of its memory."""
    return _samples(frame.planes[0], (frame.height, 3 * frame.width)).reshape(frame.height, frame.width, 3)


def _cut(values: NDArray[np.uint8], region: Region) -> NDArray[np.uint8]:
    top, left, rows, columns = region
    return values[top : top + rows, left : left + columns]
