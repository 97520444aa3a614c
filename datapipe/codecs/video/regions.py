"""Cut regions out of decoded frames before their colour is converted."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.codecs.decode import Region

_EVEN = ("yuv420p", "yuvj420p", "yuv422p", "yuvj422p")  # colour has half the resolution
_ANY = ("yuv444p", "yuvj444p", "gray", "gbrp")  # one sample for each pixel in each plane


def is_exact(frame: Any) -> bool:
    """Return True for a frame that becomes the same RGB if a region is cut out before, at even places where colour is coarser.

    Of 8 bits in even sizes: in all others swscale interpolates colour, for which it looks beyond the region. Interlaced frames
    count as others, as swscale converts each field by itself.
    """
    is_even = frame.width % 2 == frame.height % 2 == 0
    return not frame.interlaced_frame and (frame.format.name in _ANY or (frame.format.name in _EVEN and is_even))


def can_be_cut(frame: Any) -> bool:
    """Return True for a frame in planes, of which regions can be cut out."""
    return bool(frame.format.is_planar) or frame.format.name.startswith("gray")


def decoded_region(region: Region, height: int, width: int, rotation: int) -> tuple[int, int, int, int]:
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


def even_region(region: Region, frame: Any) -> tuple[int, int, int, int]:
    """Return the least region around another one of a frame in even sizes whose sides lie at even places."""
    top, left, rows, columns = region
    bottom, right = top + rows + (top + rows) % 2, left + columns + (left + columns) % 2
    top, left = top - top % 2, left - left % 2
    return top, left, min(bottom, frame.height) - top, min(right, frame.width) - left


def cut_out(frame: Any, region: Region, new_frame: Any, *, multiple: int = 1) -> Any:
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
