"""Turn decoded frames into pixels: RGB, resized and turned as a player shows them, of regions too; depth as it is."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.decode import Region
from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.codecs.video.library import import_av, major_version
from datapipe.codecs.video.track import Ints, ReadAt, VideoCoding, VideoTrack
from datapipe.errors import DecodeError, OptionError

Pixels = NDArray[np.uint8] | NDArray[np.uint16]

DEPTH_FORMATS = ("gray9le", "gray10le", "gray12le", "gray14le", "gray16le")  # of one channel of more than 8 bits

_EVEN = ("yuv420p", "yuvj420p", "yuv422p", "yuvj422p")  # colour has half the resolution
_ANY = ("yuv444p", "yuvj444p", "gray", "gbrp")  # one sample for each pixel in each plane
_PACKED = {3: "rgb24", 4: "rgba"}  # by the bytes of a pixel
_FULL_RANGE, _DEFAULT_SPACE = 2, 5  # of FFmpeg's AVColorRange and SwsColorspace


class Resize(enum.Enum):
    """How RGB gets another size. Both are bilinear, and look at all pixels where it becomes smaller."""

    EXACT = "exact"  # RGB first, then the size: within 1 of torchcodec's
    FAST = "fast"  # the size first, of brightness and of coarser colour, if of 8 bits in even sizes; regions grow to even places


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
        # Before 17, PyAV converts with one thread, has to be told the colours, and gives swscale memory that ends with the last
        # line, beyond which it writes if a line is not a multiple of 16 pixels.
        self._is_old = major_version() < 17
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
            region = _decoded_region(region, coding.height, coding.width, coding.rotation)
            if (frame.height, frame.width) != (coding.height, coding.width):
                frame = self._reformatted("size", frame, frame.format.name, (coding.height, coding.width))
        convert(frame, region, np.rot90(out, coding.rotation // 90) if coding.rotation else out)

    def _rgb(self, frame: Any, region: Region, out: Pixels) -> None:
        """Write the RGB of a region of a frame into `out`, which is turned as the frame is."""
        size = (out.shape[0], out.shape[1])
        is_resized = size != (region[2], region[3])
        can_be_fast = _is_exact(frame) and not (self._is_old and size[1] % 16)
        if is_resized and self._resize is Resize.FAST and can_be_fast:
            if (region[2], region[3]) != (frame.height, frame.width):
                frame = _cut_out(frame, _even_region(region, frame), self._new_frame)
            frame = self._reformatted("size", frame, frame.format.name, size)
            out[:] = _pixels(self._reformatted("colour", frame, "rgb24", size))
            return
        pixels = self._exact_pixels(frame, region, 4 if is_resized else 3)
        if not is_resized:
            out[:] = pixels
            return
        part = self._new_frame.from_numpy_buffer(pixels, _PACKED[pixels.shape[2]])
        if self._is_old:
            out[:] = _pixels(self._reformatted("size", part, "rgb24", size))
            return
        # Planes: swscale takes as long again to write whole pixels.
        for plane, channel in zip(self._reformatted("size", part, "gbrp", size).planes, (1, 2, 0), strict=True):
            out[:, :, channel] = samples_of(plane, size)

    def _exact_pixels(self, frame: Any, region: Region, num_bytes: int) -> NDArray[np.uint8]:
        """Return the RGB of a region as (h, w, 3 or 4), the same as that of the whole frame.

        `num_bytes`: of a pixel; 4 are faster to resize, and are 3 where swscale makes others of them.
        """
        top, left, rows, columns = region
        if not _is_exact(frame):
            num_bytes = 3
            frame = _cut_out(frame, (0, 0, frame.height, frame.width), self._new_frame) if _can_be_cut(frame) else frame
        elif (rows, columns) != (frame.height, frame.width) or (self._is_old and frame.width % 16):
            around = _even_region(region, frame)
            frame = _cut_out(frame, around, self._new_frame, multiple=16 if self._is_old else 1)
            top, left = top - around[0], left - around[1]
        if 0 < frame.width % 16 < 6 or self._is_old:  # it leaves the last columns unwritten
            num_bytes = 3
        frame = self._reformatted("colour", frame, _PACKED[num_bytes], (frame.height, frame.width))
        return _pixels(frame, num_bytes)[top : top + rows, left : left + columns]

    def _depth(self, frame: Any, region: Region, out: Pixels) -> None:
        form = frame.format.name
        if form not in DEPTH_FORMATS:
            raise DecodeError(f"its frames are {form}, not depth ({', '.join(DEPTH_FORMATS)}); read them as RGB")
        size = (out.shape[0], out.shape[1])
        if region[2:] != (frame.height, frame.width):
            frame = _cut_out(frame, region, self._new_frame)
        if size != (frame.height, frame.width):
            frame = self._reformatted("depth", frame, form, size)
        out[:, :, 0] = samples_of(frame.planes[0], size, np.uint16)

    def _reformatted(self, purpose: str, frame: Any, form: str, size: tuple[int, int]) -> Any:
        reformatter = self._reformatters.get((purpose, form))
        if reformatter is None:
            reformatter = self._reformatters[purpose, form] = self._new_reformatter()
        more: dict[str, int] = {} if self._is_old else {"threads": 1}
        if self._is_old and purpose == "colour" and not frame.format.name.startswith("gray"):
            more = {"src_color_range": frame.color_range, "dst_color_range": _FULL_RANGE, "dst_colorspace": _DEFAULT_SPACE}
        how = self._interpolations[purpose]
        return reformatter.reformat(frame, height=size[0], width=size[1], format=form, interpolation=how, **more)


def samples_of(plane: Any, size: tuple[int, int], dtype: Any = np.uint8) -> NDArray[Any]:
    """Return the (h, w) samples of a plane as a view of its memory."""
    lines = np.frombuffer(plane, dtype).reshape(-1, plane.line_size // np.dtype(dtype).itemsize)
    return lines[: size[0], : size[1]]


def _pixels(frame: Any, num_bytes: int = 3) -> NDArray[np.uint8]:
    """Return the (h, w, bytes) pixels of a packed `VideoFrame` as a view of its memory."""
    lines = samples_of(frame.planes[0], (frame.height, num_bytes * frame.width))
    return lines.reshape(frame.height, frame.width, num_bytes)


def fill_frames(
    decoder: VideoDecoder, converter: FrameConverter, track: VideoTrack, read: ReadAt, frames: Ints, out: Pixels
) -> list[tuple[int, DecodeError]]:
    """Write the frames of a video into `out`; return the places that have none, with the reasons.

    `frames`: (k,) numbers of presented frames in any order, also repeated, such as those of several clips: each is decoded once.
    `out`: (k, h, w, 3) uint8 or (k, h, w, 1) uint16; see `FrameConverter.convert`. The errors of `read` are raised.
    """
    order = np.argsort(frames, kind="stable")
    is_there = (frames >= 0) & (frames < len(track))
    failed = [
        (place, DecodeError(f"frame {frames[place]} does not exist: the video has {len(track)}"))
        for place in np.flatnonzero(~is_there).tolist()
    ]
    wanted = np.unique(frames[is_there])
    begin, end = (np.searchsorted(frames[order], wanted, side=side) for side in ("left", "right"))
    places = {frame: order[first:last] for frame, first, last in zip(wanted.tolist(), begin, end, strict=True)}
    for number, frame in decoder.decode(track, read, wanted):
        error = frame if isinstance(frame, DecodeError) else None
        first, *others = places[number].tolist()
        if error is None:
            try:
                converter.convert(frame, track.coding, out[first])
            except DecodeError as exc:
                error = exc
        if error is not None:
            failed += [(place, error) for place in (first, *others)]
            continue
        for place in others:
            out[place] = out[first]
    return failed


# -- regions, cut out before the colour is converted ------------------------------------------------


def _is_exact(frame: Any) -> bool:
    """Return True for a frame that becomes the same RGB if a region is cut out before, at even places where colour is coarser.

    Of 8 bits in even sizes: in all others swscale interpolates colour, for which it looks beyond the region. Interlaced frames
    count as others, as swscale converts each field by itself.
    """
    is_even = frame.width % 2 == frame.height % 2 == 0
    return not frame.interlaced_frame and (frame.format.name in _ANY or (frame.format.name in _EVEN and is_even))


def _can_be_cut(frame: Any) -> bool:
    """Return True for a frame in planes, of which regions can be cut out."""
    return bool(frame.format.is_planar) or frame.format.name.startswith("gray")


def _decoded_region(region: Region, height: int, width: int, rotation: int) -> tuple[int, int, int, int]:
    """Return a region of a frame that is turned clockwise by `rotation` degrees as one of the frame before.

    `height`, `width`: of the frame before. Regions are (top, left, height, width) in pixels.
    """
    top, left, rows, columns = region
    if rotation == 90:
        return height - left - columns, top, columns, rows
    if rotation == 180:
        return height - top - rows, width - left - columns, rows, columns
    if rotation == 270:
        return left, width - top - rows, columns, rows
    return top, left, rows, columns


def _even_region(region: Region, frame: Any) -> tuple[int, int, int, int]:
    """Return the least region around another one of a frame in even sizes whose sides lie at even places."""
    top, left, rows, columns = region
    bottom, right = top + rows + (top + rows) % 2, left + columns + (left + columns) % 2
    top, left = top - top % 2, left - left % 2
    return top, left, min(bottom, frame.height) - top, min(right, frame.width) - left


def _cut_out(frame: Any, region: Region, new_frame: Any, *, multiple: int = 1) -> Any:
    """Return a copy of a region of a frame in planes; it begins at even places if colour is coarser.

    `new_frame`: PyAV's `VideoFrame`. `multiple`: of which the width of the copy is one; what is beyond the region is undefined.
    The copy does not say how its lines are interlaced, or where its colour was sampled: swscale would convert it otherwise than
    torchcodec does, each field by itself, and colour moved by half a pixel.
    """
    top, left, height, width = region
    copy = new_frame(-(-width // multiple) * multiple, height, frame.format.name)
    nbytes = 2 if max(one.bits for one in frame.format.components) > 8 else 1  # of a sample
    for source, target in zip(frame.planes, copy.planes, strict=True):
        rows, into = (np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size) for plane in (source, target))
        y, x = top * source.height // frame.height, left * source.width // frame.width * nbytes
        columns = nbytes * (-(-width * target.width // copy.width))
        into[: target.height, :columns] = rows[y : y + target.height, x : x + columns]
    copy.colorspace, copy.color_range = frame.colorspace, frame.color_range
    return copy
