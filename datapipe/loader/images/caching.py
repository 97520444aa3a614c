"""Open a loader's cache of images, as they are after the recipe's front, and report its state."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from datapipe.backends.kept_images import KeptImages
from datapipe.codecs.decode import default_decoder_name
from datapipe.fetch.cache.locations import CacheOptions, contents_of, open_store
from datapipe.index.concat import AnyIndex
from datapipe.transforms import Recipe


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Hits of a cache in this process, and what it holds for all processes."""

    hits: int  # samples, in this process
    misses: int
    num_kept: int  # samples, of all processes
    nbytes: int
    capacity: int  # bytes


def open_kept_images(options: CacheOptions, *, index: AnyIndex, recipe: Recipe) -> KeptImages:
    """Open the cache of a dataset's images after the front of a recipe. Raises StorageError if they cannot be kept there."""
    front, _ = recipe.split_front()
    about = {
        "dataset": contents_of(index),
        "images behind": repr(front),
        "decoded by": default_decoder_name(),
        "resized by": f"torch {torch.__version__}" if front.geometry else "nobody",
    }
    return KeptImages(front, open_store(options, about=about))


def stats_of(kept: KeptImages) -> CacheStats:
    """Return the counts of a cache now."""
    hits, misses = kept.store.counts()
    num_kept, nbytes = kept.store.held()
    return CacheStats(hits, misses, num_kept, nbytes, kept.store.capacity)


def described(kept: KeptImages) -> str:
    """Return a line that describes the cache, for people."""
    stats, files = stats_of(kept), kept.store.files
    what = f"images behind {kept.front!r}" if kept.front.geometry else "whole decoded images"
    where = "in memory, for all processes of this node" if files.in_memory else f"in {files.where}"
    full = "" if kept.store.is_open else ", and takes no more"
    return f"{what}, {where}: has {stats.num_kept} in {size_text(stats.nbytes)} of at most {size_text(stats.capacity)}{full}"


def size_text(nbytes: int) -> str:
    """Return a number of bytes in MB or GB, for people."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
