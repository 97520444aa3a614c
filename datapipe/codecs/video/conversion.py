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


class Resize(enum.Enum):
    """How frames become RGB of another size."""

    EXACT = "exact"  # RGB first, bit-equal to torchcodec's, then bilinear: within 1 of its
    FAST = "fast"  # in one pass: colour is interpolated with less precision, and regions grow to even places


class FrameConverter:
    """Converts frames; for one thread. Raises DependencyError without PyAV."""

    def __init__(self, resize: Resize = Resize.EXACT) -> None:
        av = import_av()
        self._resize = resize
        how = av.video.reformatter.Interpolation
        # Bicubic: how torchcodec interpolates colour that is coarser than brightness. That of 8 bits in even sizes is repeated.
        self._interpolations = {"colour": how.BICUBIC, "size": how.BILINEAR, "fast": how.BILINEAR, "depth": how.POINT}
        self._new_frame = av.VideoFrame
        self._new_reformatter = av.video.reformatter.VideoReformatter
        self._reformatters: dict[str, Any] = {}  # by purpose: each keeps what it has prepared for the last sizes and formats

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
        turned = coding.rotation in (90, 270)
        height, width = out.shape[1::-1] if turned else out.shape[:2]
        if region is not None:
            region = decoded_region(region, coding.height, coding.width, coding.rotation)
            if (frame.height, frame.width) != (coding.height, coding.width):
                frame = self._reformatted("size", frame, frame.format.name, coding.height, coding.width)
        found = convert(frame, region, height, width)
        out[:] = np.rot90(found, -coding.rotation // 90 % 4) if coding.rotation else found

    def _rgb(self, frame: Any, region: Region | None, height: int, width: int) -> Pixels:
        rows, columns = (frame.height, frame.width) if region is None else region[2:]
        is_resized = (rows, columns) != (height, width)
        if is_resized and self._resize is Resize.FAST:
            if region is not None and can_be_cut(frame):
                frame = cut_out(frame, even_region(region, frame), self._new_frame)
            elif region is not None:
                frame = self._of_array(self._cut_rgb(frame, region))
            return _pixels(self._reformatted("fast", frame, "rgb24", height, width))
        if region is None:
            frame = self._to_rgb(frame)
            return _pixels(self._reformatted("size", frame, "rgb24", height, width) if is_resized else frame)
        found = self._cut_rgb(frame, region)
        if not is_resized:
            return found
        return _pixels(self._reformatted("size", self._of_array(found), "rgb24", height, width))

    def _to_rgb(self, frame: Any) -> Any:
        """Return a frame in RGB, in its own size."""
        if not is_exact(frame) and can_be_cut(frame):
            frame = cut_out(frame, (0, 0, frame.height, frame.width), self._new_frame)
        return self._reformatted("colour", frame, "rgb24", frame.height, frame.width)

    def _cut_rgb(self, frame: Any, region: Region) -> NDArray[np.uint8]:
        """Return the RGB of a region, the same as that of the whole frame."""
        top, left, rows, columns = region
        if is_exact(frame):
            around = even_region(region, frame)
            frame = cut_out(frame, around, self._new_frame)
            top, left = top - around[0], left - around[1]
        return _pixels(self._to_rgb(frame))[top : top + rows, left : left + columns]

    def _of_array(self, pixels: NDArray[np.uint8]) -> Any:
        return self._new_frame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")

    def _depth(self, frame: Any, region: Region | None, height: int, width: int) -> Pixels:
        if frame.format.name not in DEPTH_FORMATS:
            raise DecodeError(f"its frames are {frame.format.name}, not depth ({', '.join(DEPTH_FORMATS)}); read them as RGB")
        if region is not None:
            frame = cut_out(frame, region, self._new_frame)
        if (frame.height, frame.width) != (height, width):
            frame = self._reformatted("depth", frame, frame.format.name, height, width)
        plane = frame.planes[0]
        rows = np.frombuffer(plane, np.uint16).reshape(-1, plane.line_size // 2)
        return rows[:height, :width, None]

    def _reformatted(self, purpose: str, frame: Any, form: str, height: int, width: int) -> Any:
        reformatter = self._reformatters.get(purpose)
        if reformatter is None:
            reformatter = self._reformatters[purpose] = self._new_reformatter()
        interpolation = self._interpolations[purpose]
        return reformatter.reformat(frame, width=width, height=height, format=form, interpolation=interpolation, threads=1)


def _pixels(frame: Any) -> NDArray[np.uint8]:
    """Return the (h, w, 3) pixels of a `VideoFrame` in rgb24 as a view of its memory."""
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    return rows[: frame.height, : 3 * frame.width].reshape(frame.height, frame.width, 3)
