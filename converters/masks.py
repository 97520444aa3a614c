"""Masks: images whose pixels are labels, so they are never interpolated, and stored without loss if at all anew."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from converters.arrays import check_array, read_array
from datapipe.errors import DecodeError
from datapipe.probe import encoding_of, probe

if TYPE_CHECKING:
    from PIL import Image

_MODES = ("1", "L", "P", "I;16", "LA", "RGB", "RGBA")  # that PNG has, and numpy too


def mask_size(data: bytes) -> tuple[str, tuple[int, int]]:
    """(encoding, (height, width)) of a mask: any image, or a `.npy` of (height, width) whole numbers.

    Raises DecodeError for what is neither, or is cut off.
    """
    if encoding_of(data) == "npy":
        shape, dtype = check_array(data)
        if len(shape) != 2 or dtype.kind not in "biu":
            raise DecodeError(f"an array of {dtype} {shape} is no mask, expected (height, width) whole numbers")
        return "npy", (shape[0], shape[1])
    header = probe(data)
    if not header.complete:
        raise DecodeError(f"{header.encoding} of {len(data)} bytes is cut off: its end marker is missing")
    return header.encoding, (header.height, header.width)


def check_mask(data: bytes) -> None:
    """Decode all of a mask. Raises DecodeError if that fails."""
    if encoding_of(data) == "npy":
        read_array(data)
    else:
        _decoded(data)


def resize_mask(data: bytes, size: tuple[int, int]) -> tuple[str, bytes]:
    """(encoding, bytes) of the mask at (height, width), every pixel that of the nearest in the source.

    An image becomes a PNG of the same mode, palette included; an array stays one. Raises DecodeError.
    """
    if encoding_of(data) == "npy":
        array = read_array(data)
        rows, columns = (_nearest(have, want) for have, want in zip(array.shape, size, strict=True))
        sink = io.BytesIO()
        np.lib.format.write_array(sink, np.ascontiguousarray(array[rows][:, columns]), version=(1, 0), allow_pickle=False)
        return "npy", sink.getvalue()
    image = _decoded(data)
    if image.mode not in _MODES:
        raise DecodeError(f"a mask of mode {image.mode} cannot be stored as PNG; convert it to one of {', '.join(_MODES)}")
    sink = io.BytesIO()
    _taken(image, size).save(sink, "PNG")
    return "png", sink.getvalue()


def _taken(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The pixels of `image` that are nearest to those of an image of (height, width)."""
    from PIL import Image

    rows, columns = _nearest(image.height, size[0]), _nearest(image.width, size[1])
    taken = Image.fromarray(np.ascontiguousarray(np.asarray(image)[rows][:, columns]))
    if image.mode == "P":
        taken.putpalette(image.getpalette() or [])
    if "transparency" in image.info:
        taken.info["transparency"] = image.info["transparency"]
    return taken


def _nearest(have: int, want: int) -> NDArray[np.int64]:
    """(want,) the place that the centre of each new pixel lies in."""
    places: NDArray[np.int64] = (2 * np.arange(want) + 1) * have // (2 * want)
    return places


def _decoded(data: bytes) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data))
            image.load()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as exc:
        raise DecodeError(f"does not decode: {exc}") from exc
    return image
