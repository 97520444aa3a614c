"""Check and store the images of a conversation or a document: their bytes, and what its tokens will be made of, their sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from converters.samples.examine import Treatment, stored_image
from converters.writers import StoredField
from datapipe.codecs.decode import checked_header
from datapipe.codecs.orientation import orientation_of, upright_size
from datapipe.core.printable import counted
from datapipe.errors import DecodeError


def stored_images(images: Sequence[bytes], places: NDArray[np.int64], treatment: Treatment) -> StoredField:
    """Return images one after the other, in the form to write. `places`: (k,) of their tokens among those of the document.

    Sizes are those of the images as they are seen: turned as their EXIF says. Raises DecodeError for a bad image, by its number.
    """
    if len(places) != len(images):
        what = f"the chat template wrote {counted(len(places), 'image')} where there are {len(images)}"
        raise DecodeError(f"{what}; repair the template, or the messages")
    stored: list[bytes] = []
    rows: list[tuple[int, ...]] = []
    for number, (image, place) in enumerate(zip(images, places.tolist(), strict=True), 1):
        try:
            header = checked_header(image)
            orientation = orientation_of(image, header)
            data, header = stored_image(image, header, treatment)
        except DecodeError as exc:
            raise DecodeError(f"image {number}: {exc}") from exc
        height, width = upright_size(header.height, header.width, orientation)
        rows.append((place, len(data), width, height, orientation))
        stored.append(data)
    return StoredField("images", b"".join(stored), images=np.array(rows, "<i4").tobytes())
