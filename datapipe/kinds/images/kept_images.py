"""Decoded images, cached from epoch to epoch, as far as a recipe treats them the same every time.

Cached for a sample is its image after the recipe's front: the leading operations that draw nothing. It is stored as a
`.npy` file of pixels, one of the encodings that samples may have. So the rest of the recipe reads other bytes and is
otherwise unchanged.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.decode import Decode, default_decoder_name
from datapipe.codecs.probe import MAX_PIXELS, ImageHeader, probe
from datapipe.core.printable import size_text
from datapipe.errors import DecodeError
from datapipe.index.concat import AnyIndex
from datapipe.index.entries import WHOLE_FILE, Entries, Extents
from datapipe.kernel.cache_settings import Cache
from datapipe.kinds.images.cache.locations import contents_of, open_store
from datapipe.kinds.images.cache.store import Gap, Kept, Store
from datapipe.kinds.images.cutting import Cut
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import row_cuts

_NPY_HEADER_NBYTES = 128  # for an array of three dimensions
_NO_DRAWS = Draws(0, 0, np.zeros(1, np.int64))


class KeptImage(NamedTuple):
    """An image found in the cache."""

    data: bytes
    header: ImageHeader
    size: tuple[int, int]  # (height, width) of the image that it was made from


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Hits of a cache in this process, and what it holds for all processes."""

    hits: int  # samples, in this process
    misses: int
    num_kept: int  # samples, of all processes
    nbytes: int
    capacity: int  # bytes


class KeptImages:
    """The cached images of a dataset, as files. Thread-safe."""

    def __init__(self, front: Recipe, store: Store) -> None:
        """Cache images after `front`: geometry that draws nothing."""
        self.front = front
        self.store = store

    @classmethod
    def of(cls, cache: Cache, index: AnyIndex, recipe: Recipe, decode: Decode = "exact") -> KeptImages:
        """Open the cache of a dataset's images after the front of a recipe. Raises StorageError if they cannot be kept there."""
        front, _ = recipe.split_front()
        about = {
            "dataset": contents_of(index),
            "images behind": repr(front),
            "decoded by": default_decoder_name() if decode == "exact" else f"{default_decoder_name()}, {decode}",
            "resized by": f"torch {torch.__version__}" if front.geometry else "nobody",
        }
        return cls(front, open_store(cache, about=about))

    def stats(self) -> CacheStats:
        """Return the counts of the cache now."""
        return CacheStats(*self.store.counts(), *self.store.held(), self.store.capacity)

    def describe(self) -> str:
        """Return a line that describes the cache, for people."""
        stats, files = self.stats(), self.store.files
        where = "in memory, for all processes of this node" if files.in_memory else f"in {files.where}"
        full = "" if self.store.is_open else ", and takes no more"
        held = f"{stats.num_kept} in {size_text(stats.nbytes)} of at most {size_text(stats.capacity)}"
        return f"{shown_front(self.front)}, {where}: has {held}{full}"

    def find(self, entries: Entries, row: int) -> KeptImage | Gap:
        """Return the image of a sample, or the Gap that `make` needs."""
        sample, stamp = int(entries.ids[row]), stamp_of(entries.extents, row)
        kept = self.store.find(sample, stamp)
        if isinstance(kept, Gap):
            return kept
        header = _header(kept)
        return Gap(sample, stamp, b"") if header is None else KeptImage(kept.data, header, kept.size)

    def make(self, gap: Gap, data: bytes, header: ImageHeader, cut: Cut) -> bytes | None:
        """Execute the front and cache the result. None, with nothing done, if it would not be cached or does not decode."""
        steps = [row_cuts(cuts)[0] for cuts in self.front.draw_cuts(_NO_DRAWS, np.array([(header.height, header.width)]))]
        shape = (steps[-1].window[2], steps[-1].window[3], 3)
        if shape[0] * shape[1] > MAX_PIXELS or not self.store.admits(_NPY_HEADER_NBYTES + shape[0] * shape[1] * 3):
            return None
        pixels: NDArray[np.uint8] = np.empty(shape, np.uint8)
        try:
            cut(data, header, steps, pixels)
        except DecodeError:
            return None
        sink = io.BytesIO()
        np.lib.format.write_array(sink, pixels, version=(1, 0), allow_pickle=False)
        made = sink.getvalue()
        self.store.keep(gap, made, (header.height, header.width))
        return made

    def will_need(self, entries: Entries) -> Extents | None:
        """Announce images to the kernel; return the extents of those not cached, None if all are."""
        extents = entries.extents
        rows = [row for row, sample in enumerate(entries.ids.tolist()) if not self.store.will_need(sample)]
        if len(rows) == len(extents):
            return extents
        return extents.take(rows) if rows else None


def shown_front(front: Recipe) -> str:
    """Return what is kept of images, for people. `front`: the recipe up to there."""
    return f"images behind {front!r}" if front.geometry else "whole decoded images"


def _header(kept: Kept) -> ImageHeader | None:
    """Return the header of a value that `make` may have written; None for any other, which another program must have written."""
    try:
        header = probe(kept.data)
    except DecodeError:
        return None
    is_ours = header.encoding == "npy" and header.num_channels == 3 and header.complete
    return header if is_ours and min(kept.size) > 0 else None


def stamp_of(extents: Extents, row: int) -> int:
    """Return a stamp of size and modification time that distinguishes versions of a loose file. 0 for samples in shards.

    Also 0 for a missing file, which its reader reports.
    """
    if not extents.one_file_each and extents.nbytes[row] != WHOLE_FILE:
        return 0
    try:
        status = os.stat(extents.paths[row])
    except OSError:
        return 0
    return (status.st_mtime_ns ^ status.st_size * 0x9E3779B97F4A7C15) % (1 << 64)  # a multiplier that spreads small numbers
