"""Which images belong to which bucket: looked up once, by their headers, and kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.orientation import turned
from datapipe.codecs.probe import probe
from datapipe.core import atomic, regular_files
from datapipe.core.kept_arrays import keep_array, kept_array
from datapipe.core.printable import counted, get_logger
from datapipe.core.user_cache import INDEXES, index_directory, one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import DatapipeError, MissingDataError, OptionError
from datapipe.fetch.files import Files
from datapipe.index.concat import AnyIndex
from datapipe.index.entries import WHOLE_FILE, Extents
from datapipe.kinds.images.cache.locations import contents_of
from datapipe.kinds.images.fields import IMAGE
from datapipe.order.buckets import BucketedOrder
from datapipe.order.plan import Tail
from datapipe.stores.location import is_url
from datapipe.transforms import Recipe
from datapipe.transforms.buckets import Buckets, Ints, Size, Small, ToBucket

_HEAD_NBYTES = 64 << 10  # of an image, that mostly say its size and orientation
_AT_ONCE, _THREADS = 256, 8
_MOST_SHOWN = 6  # buckets
_BECOMES: dict[Small, str] = {"enlarge": "enlarged", "leave out": "left out"}  # of images smaller than their bucket
_NONE = np.iinfo(np.uint16).max  # the bucket of an image that is left out
_UNKNOWN = (1, 1)  # the size of an image whose header cannot be read; it is a bad sample when it is loaded

logger = get_logger(__name__)


@dataclass(frozen=True, eq=False)
class BucketPlan:
    """The images of each bucket."""

    buckets: Buckets
    numbers: NDArray[np.uint16]  # (n,) the bucket of each image
    members: Ints  # (m,) images by bucket, those of one in their order
    starts: Ints  # (k + 1,) where the buckets begin in them
    num_small: int  # images that are smaller than their bucket
    cut_off: float  # share of the pixels of images, once they are resized, on average

    @property
    def sizes(self) -> Ints:
        """(k,) images of each bucket."""
        return np.diff(self.starts)

    @property
    def counts(self) -> Ints:
        """(k,) images of each bucket that come in an epoch."""
        counts: Ints = np.rint(self.sizes * np.array(self.buckets.weights)).astype(np.int64)
        return counts

    def order(self, seed: int, *, batch_size: int, num_ranks: int, tail: Tail, shuffle: bool) -> BucketedOrder:
        """Return the order of an epoch."""
        return BucketedOrder(
            members=self.members,
            starts=self.starts,
            counts=self.counts,
            shares=self.buckets.shares(batch_size),
            batch_size=batch_size,
            num_ranks=num_ranks,
            seed=seed,
            tail=tail,
            shuffle=shuffle,
        )

    def row_pixels(self, batch_size: int) -> tuple[int, int]:
        """Return in how many rows of memory any batch of such a size fits, and the pixels of a row."""
        areas = self.buckets.areas
        row = int(areas.max())
        return -(-int((self.buckets.shares(batch_size) * areas).max()) // row), row

    def describe(self, order: BucketedOrder | None = None) -> list[str]:
        """Return lines about the buckets that have images: the fullest of them, what is cut off, and what fills up `order`."""
        sizes, counts = self.sizes, self.counts
        shares = None if order is None or self.buckets.max_pixels is None else order.shares
        shown = []
        fullest = [number for number in np.argsort(-sizes, kind="stable").tolist() if sizes[number]]
        for one in fullest[:_MOST_SHOWN]:
            height, width = self.buckets.shapes[one]
            taken = "" if counts[one] == sizes[one] else f", {counts[one]:,} an epoch"
            batch = "" if shares is None else f", {shares[one]} a batch"
            shown.append(f"{height} x {width}: {sizes[one]:,}{taken}{batch}")
        more = "" if len(fullest) <= _MOST_SHOWN else f"; and {len(fullest) - _MOST_SHOWN} more"
        lines = [f"{len(fullest)} of {len(sizes)} shapes have images ({'; '.join(shown)}{more})"]
        if order is not None:
            num = int(counts.sum())
            if order.tail is Tail.DROP:
                lines.append(f"{counted(order.num_dropped, 'image')} of {num:,} fill no step and are dropped, others each epoch")
            else:
                lines.append(f"{counted(order.num_filling, 'image')} besides {num:,} come again, to fill up steps")
        lines.append(f"{100 * self.cut_off:.1f}% of the pixels are cut off, on average")
        if self.num_small:
            lines.append(f"{counted(self.num_small, 'image')} smaller than the bucket: {_BECOMES[self.buckets.small]}")
        return lines

    def shape_of(self, positions: Ints) -> Size:
        """Return the shape of a batch of these images. Raises OptionError if they are of several buckets."""
        found = np.unique(self.numbers[positions])
        if len(found) != 1 or found[0] == _NONE:
            shapes = " and ".join(
                f"{height} x {width}" for height, width in (self.buckets.shapes[one] for one in found[:2] if one != _NONE)
            )
            raise OptionError(f"a batch has images of several buckets ({shapes}, or of none); let the sampler give those of one")
        return self.buckets.shapes[int(found[0])]

    def replacement(self, position: int, number: int) -> int:
        """Return another image of the same bucket, by a number."""
        bucket = int(self.numbers[position])
        start, end = self.starts[bucket : bucket + 2].tolist()
        return int(self.members[start + number % (end - start)])


def in_buckets(recipe: Recipe, buckets: Buckets) -> Recipe:
    """Return the recipe for images that are brought to the shape of their bucket first. Raises OptionError if it changes it."""
    if recipe.rest:
        raise OptionError(f"buckets: {recipe.rest_reason}, which need not keep a bucket's shape; use datapipe's transforms")
    for shape in buckets.shapes:
        if (size := recipe.output_size(shape)) != shape:
            what = "a size that differs" if size is None else f"{size[0]} x {size[1]}"
            raise OptionError(
                f"buckets: the transforms {recipe!r} make {what} of {shape[0]} x {shape[1]}; leave out what crops and resizes"
            )
    return Recipe.of([ToBucket(buckets), recipe])


def plan_of(index: AnyIndex, files: Files, buckets: Buckets) -> BucketPlan:
    """Return the plan of an index, kept in the user's cache. Raises OptionError for images that are too small, if that is one.

    The headers of all images are looked at when their sizes are first needed.
    """
    text = f"1 {contents_of(index)} {buckets.name}"
    home = index_directory(INDEXES, f"buckets-{hashlib.sha256(text.encode()).hexdigest()[:24]}")
    found = _kept(home, buckets)
    if found is None:
        with one_at_a_time(home / ".lock"):
            found = _kept(home, buckets)
            if found is None:
                found = _planned(image_sizes(index, files, exif=buckets.exif), buckets)
                _keep(home, found)
    if found.num_small:
        what = f"{index.where}: {counted(found.num_small, 'image')} of {len(found.numbers):,} smaller than their bucket"
        if buckets.small == "error":
            raise OptionError(f"{what}; pass Buckets(small='enlarge') or 'leave out', or smaller shapes")
        logger.warning("%s: %s", what, _BECOMES[buckets.small])
    if not found.counts.any():
        raise MissingDataError(
            f"{index.where}: no images for any bucket: {len(found.numbers):,} images, of which {found.num_small:,} are smaller"
            " than theirs; pass smaller shapes, small='enlarge', or other weights"
        )
    return found


def _planned(sizes: NDArray[np.int32], buckets: Buckets) -> BucketPlan:
    wide = sizes.astype(np.int64)
    numbers, is_known = buckets.numbers(wide), (wide != _UNKNOWN).any(axis=1)
    if not is_known.all():  # bad samples fill no bucket of their own
        numbers[~is_known] = np.bincount(numbers[is_known], minlength=1).argmax()
    shapes = np.array(buckets.shapes, np.int64)[numbers]
    is_small = (wide < shapes).any(axis=1) & is_known
    cover = np.maximum(shapes[:, 0] / wide[:, 0], shapes[:, 1] / wide[:, 1])
    kept_share = shapes.prod(axis=1) / np.maximum(1.0, (wide * cover[:, None]).prod(axis=1))
    if buckets.small == "leave out":
        numbers = np.where(is_small, _NONE, numbers)
    members = np.argsort(numbers, kind="stable")[: int((numbers != _NONE).sum())]
    starts = np.searchsorted(numbers[members], np.arange(len(buckets.shapes) + 1))
    return BucketPlan(
        buckets,
        numbers.astype(np.uint16),
        members,
        starts,
        int(is_small.sum()),
        float(1 - kept_share.mean()) if len(sizes) else 0.0,
    )


def _keep(home: Path, plan: BucketPlan) -> None:
    for name in ("numbers", "members", "starts"):
        keep_array(home / f"{name}.npy", getattr(plan, name))
    atomic.write_json(home / "plan.json", {"num_small": plan.num_small, "cut_off": plan.cut_off}, mode=0o600)


def _kept(home: Path, buckets: Buckets) -> BucketPlan | None:
    try:
        facts = json.loads(regular_files.read_bytes(home / "plan.json"))
        numbers, members, starts = (kept_array(home / f"{name}.npy") for name in ("numbers", "members", "starts"))
        return BucketPlan(buckets, numbers, members, np.array(starts), int(facts["num_small"]), float(facts["cut_off"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


# -- sizes ------------------------------------------------------------------------------------------------


def image_sizes(index: AnyIndex, files: Files, *, exif: bool) -> NDArray[np.int32]:
    """Return (n, 2) heights and widths of the images of an index, by position, looked at once and kept in the user's cache.

    `exif`: of the images once they are turned. Those that cannot be read are 1 x 1: they are bad samples when they are loaded.
    """
    text = f"1 {contents_of(index)} {exif}"
    place = index_directory(INDEXES, "image-sizes") / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.npy"
    with contextlib.suppress(OSError, ValueError):
        found: NDArray[np.int32] = kept_array(place)
        if found.shape == (len(index), 2):
            return found
    what = f"the headers of {counted(len(index), 'image')} are looked at, once for as long as they do not change"
    with reported_wait(f"the sizes of the images of {index.where}", what), ThreadPoolExecutor(_THREADS) as pool:
        parts = [range(first, min(first + _AT_ONCE, len(index))) for first in range(0, len(index), _AT_ONCE)]
        sizes = [size for part in pool.map(lambda part: list(_sizes_of(index, files, part, exif=exif)), parts) for size in part]
    found = np.array(sizes, np.int32).reshape(-1, 2)
    keep_array(place, found)
    return found


def _sizes_of(index: AnyIndex, files: Files, part: range, *, exif: bool) -> Iterator[Size]:
    extents = index.look_up(index.ids(np.arange(part.start, part.stop, dtype=np.int64)), IMAGE).extents
    heads = _heads(extents, files)
    for row, head in enumerate(heads):
        size = None if not isinstance(head, bytes) else _size_of(head, exif=exif)
        if size is None:
            try:
                size = _size_of(files.read(extents, row), exif=exif)
            except DatapipeError:
                size = None
        yield size or _UNKNOWN


def _size_of(data: bytes, *, exif: bool) -> Size | None:
    """Return the size of an image that begins with these bytes; None if they do not say it."""
    try:
        header = turned(data, probe(data)) if exif else probe(data)
    except DatapipeError:
        return None
    return header.height, header.width


def _heads(extents: Extents, files: Files) -> list[object]:
    """Return the first bytes of each image, or an error, or all bytes where they are not stored as they are."""
    if extents.codecs is not None and any(extents.codecs):
        return list(files.read_each(extents, range(len(extents))))
    if extents.one_file_each or (extents.nbytes == WHOLE_FILE).any():
        return [b"" if is_url(path) else _head(path) for path in extents.paths]
    short = replace(extents, nbytes=np.minimum(extents.nbytes, _HEAD_NBYTES), has_crc=np.zeros_like(extents.has_crc))
    return list(files.read_each(short, range(len(short))))


def _head(path: str) -> bytes:
    with contextlib.suppress(OSError, DatapipeError), regular_files.open_file(path, buffering=0) as file:
        return file.read(_HEAD_NBYTES)
    return b""
