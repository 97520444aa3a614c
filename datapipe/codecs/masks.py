"""Decode and resize masks: images, or arrays, whose values are labels and are never mixed.

There is one rule of resizing for all of datapipe, so that a set converted with `--resize` has the masks that resizing in the
loader gives: output pixel i shows source pixel floor(i * have / want), which torch calls "nearest" and torchvision's
v2 transforms apply to a Mask. It is not the aligned rule: that one ("nearest-exact", and Pillow's) takes the source pixel in
which the centre of the output pixel lies, as the resize of the image does. The difference is half an output pixel: edges in
a resized mask lie, on average, that far below and to the right of those in the image and of boxes (in 224 pixels made of 500
to 1024: 0.47 to 0.5, and 0.0 by the aligned rule). It is kept because masks from the loader must equal torchvision's.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from datapipe.codecs.npy import NPY_MAGIC, read_npy_array
from datapipe.codecs.pillow import opened
from datapipe.codecs.probe import probe
from datapipe.errors import DecodeError


def open_mask(data: bytes) -> Image.Image:
    """Return the decoded image of a mask, its palette kept. Raises DecodeError for bytes that are not a whole image."""
    try:
        probe(data)  # refuses a header that lies about its size, or a bomb, before Pillow allocates
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with opened(data) as image:
                image.load()
    except DecodeError as exc:
        raise DecodeError(f"mask does not decode: {exc}") from exc
    return image


def mask_labels(data: bytes) -> NDArray[Any]:
    """Return the labels of a mask, an image or a `.npy` file: (h, w), or (h, w, c) as stored.

    uint8 (a palette's indices, not its colours), or int32 if an image stores more bits; an array keeps its dtype, but
    booleans become uint8. Raises DecodeError for bytes that are not a mask.
    """
    is_array = data[:6] == NPY_MAGIC
    labels = read_npy_array(data) if is_array else np.asarray(open_mask(data))
    if labels.dtype == np.bool_:
        return labels.astype(np.uint8)
    if labels.dtype.kind not in "iu":
        raise DecodeError(f"mask holds {labels.dtype} values; labels are whole numbers")
    if labels.ndim not in (2, 3):
        raise DecodeError(f"mask of shape {labels.shape}, expected (height, width)")
    return labels if is_array or labels.dtype == np.uint8 else labels.astype(np.int32)


def nearest_sources(have: int, want: int) -> NDArray[np.int64]:
    """Return (want,) the source row, or column, of each output one when `have` of them become `want`.

    Computed in float32, as torch does, so that the same neighbour is found (aten/src/ATen/native/UpSample.h,
    nearest_neighbor_compute_source_index).
    """
    places = (np.arange(want, dtype=np.float32) * (np.float32(have) / np.float32(want))).astype(np.int64)
    return np.minimum(places, have - 1)
