"""Images of documents: their places among tokens, their sizes, and their bytes, one after the other for each document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.index.entries import Extents
from datapipe.index.open_sidecars import Sidecar

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DocumentImages:
    """The images of the documents of one file. The arrays may be mapped."""

    ends: Ints  # (n + 1,) images before each document, and in all
    rows: NDArray[np.int32]  # (images, 5): place of its token in its document, bytes, width, height, orientation
    offset: Ints  # (n,) bytes at which the first image of each document begins
    nbytes: Ints  # (n,) of all images of each document
    crc32c: NDArray[np.uint32]  # (n,) of these bytes

    @classmethod
    def of(cls, sidecar: Sidecar, field: str) -> DocumentImages:
        """Return what the index of a shard says of a field of images. Raises FormatError for numbers that are cut off."""
        found = sidecar.images(field)
        ends, rows = (np.zeros(sidecar.num_samples + 1, np.int64), np.zeros((0, 5), np.int32)) if found is None else found
        return cls(ends, rows, sidecar.offsets(field), sidecar.nbytes(field), sidecar.crc32c(field))

    @property
    def places(self) -> NDArray[np.int32]:
        """The (images,) places of their tokens in their documents."""
        return self.rows[:, 0]

    @property
    def sizes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The (images,) widths and heights in pixels, as they are seen."""
        return self.rows[:, 2], self.rows[:, 3]

    def documents(self) -> Ints:
        """Return (images,) the document of each."""
        return np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))

    def fit(self, num_tokens: Ints) -> bool:
        """Return True if the images of each document have ascending places among its tokens, sizes, and all of its bytes."""
        document = self.documents()
        place, nbytes, width, height, orientation = self.rows[self.ends[0] : self.ends[-1]].T
        is_ascending = (place[1:] > place[:-1]) | (document[1:] != document[:-1])
        is_sound = (place >= 0) & (place < num_tokens[document]) & (nbytes > 0) & (width > 0) & (height > 0)
        is_sound &= (orientation >= 1) & (orientation <= 8)
        sums = np.bincount(document, weights=nbytes, minlength=len(num_tokens)).astype(np.int64)
        return bool(is_ascending.all() and is_sound.all() and (sums == self.nbytes).all())

    def extents(self, path: str, documents: Ints) -> Extents:
        """Return where the images of these documents lie in their file, those of each as one extent."""
        has_crc = np.ones(len(documents), np.uint8)
        paths = [path] * len(documents)
        return Extents(
            paths, self.offset[documents], self.nbytes[documents], self.crc32c[documents], has_crc, one_file_each=False
        )
