"""Decode images in rows of tables that are frames of clips, as robots' recordings have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datapipe.codecs.decode import open_decoder
from datapipe.codecs.probe import probe
from datapipe.errors import DecodeError
from datapipe.fetch.row_groups import RowGroups
from datapipe.index.clips import AnyClips
from datapipe.order.draws import Ints


class TableImages:
    """Decodes such images for one thread. `row_groups`: those that are kept, for all threads."""

    def __init__(self, index: AnyClips, row_groups: RowGroups) -> None:
        self._index, self._row_groups = index, row_groups
        self._decode_image = open_decoder()

    def decode(self, camera: int, size: tuple[int, int], rows: Ints) -> Iterator[tuple[int, Any]]:
        """Yield the number of each row with its image, (h, w, 3) uint8, or the DecodeError that it has."""
        for row in rows.tolist():
            group, place = self._index.image(camera, row)
            try:
                data = self._row_groups.value(group, place)
                image = self._decode_image(data, probe(data))
                if image.shape != (*size, 3):
                    raise DecodeError(f"row {place} has {image.shape[1]} x {image.shape[0]} pixels, not {size[1]} x {size[0]}")
            except DecodeError as exc:
                yield row, exc
            else:
                yield row, image
