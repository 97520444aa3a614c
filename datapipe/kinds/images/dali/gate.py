"""Decide what DALI gets: the samples that it may see, and the cuts that its graph can execute, of one form for all samples.

Bytes whose header does not parse can crash DALI's process (a segmentation fault, seen with text and with empty samples), so
nvImageCodec's own parser checks each sample, in 2 us.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from datapipe.codecs.decode import import_nvimgcodec
from datapipe.codecs.jpeg import is_whole
from datapipe.codecs.probe import ImageHeader
from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.protocols import Cuts, Interpolation

PLACEHOLDER_SIDE = 16  # pixels
_UINT8 = np.dtype(np.uint8)
_CHANNELS = {"jpeg": (1, 3), "png": (1, 2, 3, 4), "webp": (3, 4)}  # as stored, by encoding

# Image sizes (height, width) to try a recipe on: photographs, thumbnails, panoramas, and one large enough for any crop.
_TRIED = ((375, 500), (500, 375), (256, 256), (1200, 1600), (32, 32), (8, 8), (90, 1000), (1000, 90), (20_000, 20_000))
_TRIES = 8  # sets of random numbers per size


# -- samples ----------------------------------------------------------------------------------------


def can_decode(data: bytes, header: ImageHeader) -> bool:
    """Return True if DALI decodes these bytes to the pixels that Pillow would give.

    Excluded are CMYK and 12-bit JPEGs, 16-bit PNGs, animations, GIF and raw pixels. Also excluded, since some of their forms
    decode differently: TIFF (grey with alpha, Lab), BMP (16 bits, some palettes) and PNM (maximum value other than 255); and
    damage that Pillow refuses and DALI passes over: JPEGs that are not whole, PNGs with a wrong checksum in front of the pixels.
    `header` is the result of `datapipe.codecs.probe`; nvImageCodec must report the same size.
    """
    if header.num_channels not in _CHANNELS.get(header.encoding, ()) or header.animated or header.bit_depth > 8:
        return False
    if not header.complete or not _is_intact(data, header):
        return False
    try:
        stream: Any = import_nvimgcodec().CodeStream(data)
        is_same = stream.height == header.height and stream.width == header.width
        return bool(is_same and stream.dtype == _UINT8 and stream.num_images == 1)
    except (RuntimeError, TypeError, ValueError):  # for some undecodable images its dtype has no numpy equivalent
        return False


def _is_intact(data: bytes, header: ImageHeader) -> bool:
    if header.encoding == "jpeg":
        return header.scan is not None and is_whole(data, header.scan)
    return header.encoding != "png" or _is_checked(data)


def _is_checked(data: bytes) -> bool:
    """Return True if the checksum of each chunk of a PNG in front of its pixels is right."""
    position = 8
    while position + 8 <= len(data):
        nbytes, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IDAT":
            return True
        end = position + 8 + nbytes
        if data[end : end + 4] != zlib.crc32(data[position + 4 : end]).to_bytes(4, "big"):
            return False
        position = end + 4
    return False


@functools.cache
def placeholder() -> bytes:
    """Return a JPEG of PLACEHOLDER_SIDE x PLACEHOLDER_SIDE pixels, for rows that are filled in another way."""
    file = io.BytesIO()
    Image.new("RGB", (PLACEHOLDER_SIDE, PLACEHOLDER_SIDE)).save(file, "JPEG")
    return file.getvalue()


# -- cuts -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CutForm:
    """The common form of a recipe's cuts."""

    is_windowed: bool  # some windows are not the whole resized region
    fill: tuple[int, int, int]  # RGB, shown where a window reaches beyond the region
    interpolation: Interpolation = "bilinear"  # of every resize

    def takes(self, chain: list[Cuts]) -> NDArray[np.bool_]:
        """Return (n,) True for each of the n samples whose cuts the graph executes exactly."""
        if len(chain) != 1:
            return np.zeros(len(chain[0]), np.bool_)
        (cuts,) = chain
        takes = np.ones(len(cuts), np.bool_) if cuts.interpolation == self.interpolation else ~_resampled(cuts)
        if not self.is_windowed:
            return takes & ~_windowed(cuts)
        return takes if cuts.fill == self.fill else takes & ~_showing_fill(cuts)


def choose_cut_form(recipe: Recipe, input_size: tuple[int, int] | None) -> CutForm:
    """Return the form of a recipe's cuts, tried on images of many sizes, or of the common size.

    Raises OptionError for geometry that needs more than one cut for every image.
    """
    tried = (input_size,) if input_size else _TRIED
    sizes = np.repeat(np.array(tried, np.int64), _TRIES, axis=0)
    single: list[Cuts] = []
    refusal: OptionError | None = None
    for number, size in enumerate(sizes):
        try:
            chain = recipe.draw_cuts(Draws(0, 0, np.array([number])), size[None])
        except OptionError as exc:  # the image is smaller than a crop that does not pad; such an image raises again when loaded
            refusal = exc
            continue
        if len(chain) == 1:
            single += chain
    if not single:
        raise refusal or OptionError(
            "DALI's graph does one crop, resize, crop and flip per image; this recipe's geometry resamples more than "
            "once or flips in between; pass backend='images_cpu', or merge the steps"
        )
    fills = [cuts.fill for cuts in single if _showing_fill(cuts).any()]
    interpolations = [cuts.interpolation for cuts in single if _resampled(cuts).any()]
    return CutForm(
        is_windowed=any(_windowed(cuts).any() for cuts in single),
        fill=fills[0] if fills else single[0].fill,
        interpolation=interpolations[0] if interpolations else "bilinear",
    )


def _windowed(cuts: Cuts) -> NDArray[np.bool_]:
    """Return (n,) True where the window is not the whole resized region."""
    at, size = cuts.window[:, :2], cuts.window[:, 2:]
    return np.asarray(((at != 0) | (size != cuts.size)).any(axis=1))


def _resampled(cuts: Cuts) -> NDArray[np.bool_]:
    """Return (n,) True where the region is resized to another size."""
    return np.asarray((cuts.size != cuts.region[:, 2:]).any(axis=1))


def _showing_fill(cuts: Cuts) -> NDArray[np.bool_]:
    """Return (n,) True where the window reaches beyond the resized region."""
    at, size = cuts.window[:, :2], cuts.window[:, 2:]
    return np.asarray(((at < 0) | (at + size > cuts.size)).any(axis=1))
