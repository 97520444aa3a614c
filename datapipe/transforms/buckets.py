"""Buckets of shapes: each image is resized to cover the shape nearest to its own aspect ratio, and cut to it.

A batch has images of one bucket, so they have one shape, as diffusion models are trained on photographs of any shape.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from datapipe.core.checks import real_number, whole_number
from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms import cuts as chain
from datapipe.transforms.options import check_interpolation
from datapipe.transforms.protocols import Cuts, Interpolation

Ints = NDArray[np.int64]
Size = tuple[int, int]  # height, width in pixels
Crop = Literal["center", "random"]
Small = Literal["enlarge", "leave out", "error"]

_MOST_SIDE = 1 << 15  # pixels
_MOST_SHAPES = 1024
_MOST_WEIGHT = 1000.0


@dataclass(frozen=True, init=False)
class Buckets:
    """The shapes of which a batch has one: of about one area, or several, or an explicit list.

    >>> data = datapipe.Images("photos", buckets=datapipe.Buckets(area=1024**2, step=64, ratio=2.0))
    >>> for images, _ in datapipe.DataLoader(data, batch_size=8, shuffle=True):
    ...     images.shape                                       # (8, 3, 1024, 1024), then perhaps (8, 3, 832, 1216)

    area: pixels that a shape has at most: its sides are multiples of `step`, and for each width the height is the largest that
      fits. Of several areas an image gets the largest whose bucket it covers. ratio: of the longer to the shorter side, at
      most. shapes: in place of these, (height, width) of each.
    crop: what is cut off where an image has another aspect ratio than its bucket: equally much on both sides ("center"), or
      drawn ("random"). small: what becomes of images that are smaller than their bucket: "enlarge", "leave out", or "error".
    max_pixels: of a batch on one rank. A bucket's batches have as many images as that allows, and at most the loader's
      `batch_size`.
    weights: how often the images of a bucket come in an epoch, by (height, width): 1.0 where nothing is said, 0.0 leaves
      them out.
    exif: turn images as their EXIF says, before anything else. interpolation: of the resize.

    An image belongs to the bucket whose aspect ratio is nearest to its own, by the logarithm, and of those the largest shape
    that it covers. Raises OptionError for values that make no sense.
    """

    shapes: tuple[Size, ...]  # by area asked for, then ratio of height to width, then area
    starts: tuple[int, ...]  # where in `shapes` those of each area begin, from the smallest
    crop: Crop
    small: Small
    max_pixels: int | None
    weights: tuple[float, ...]  # of each shape
    exif: bool
    interpolation: Interpolation

    def __init__(
        self,
        shapes: Sequence[Sequence[int]] | None = None,
        *,
        area: int | Sequence[int] | None = None,
        step: int = 64,
        ratio: float = 2.0,
        crop: Crop = "center",
        small: Small = "enlarge",
        max_pixels: int | None = None,
        weights: Mapping[Size, float] | None = None,
        exif: bool = True,
        interpolation: Interpolation = "bicubic",
    ) -> None:
        if (shapes is None) is (area is None):
            raise OptionError("Buckets: say which shapes there are: an area, such as 1024**2, or a list of (height, width)")
        for name, value, names in (("crop", crop, get_args(Crop)), ("small", small, get_args(Small))):
            if value not in names:
                raise OptionError(f"Buckets({name}) is {value!r:.60}; choose one of {', '.join(map(repr, names))}")
        groups = _of_areas(area, step, ratio) if shapes is None else [_listed(shapes)]
        ordered = [sorted(group, key=lambda size: (size[0] / size[1], size[0] * size[1])) for group in groups]
        put = object.__setattr__
        put(self, "shapes", tuple(shape for group in ordered for shape in group))
        put(self, "starts", tuple(itertools.accumulate((len(group) for group in ordered[:-1]), initial=0)))
        put(self, "crop", crop)
        put(self, "small", small)
        put(self, "max_pixels", None if max_pixels is None else whole_number(max_pixels, "Buckets(max_pixels)", least=1))
        put(self, "weights", _weights(weights, self.shapes))
        put(self, "exif", bool(exif))
        put(self, "interpolation", check_interpolation(self, interpolation, True))
        most = int(self.areas.max())
        if self.max_pixels is not None and most > self.max_pixels:
            raise OptionError(
                f"Buckets(max_pixels) is {self.max_pixels}, and one image of the largest shape has {most}; pass more"
            )

    def __repr__(self) -> str:
        first, last = self.shapes[0], self.shapes[-1]
        return f"Buckets({len(self.shapes)} shapes, {first[0]} x {first[1]} to {last[0]} x {last[1]})"

    @property
    def name(self) -> str:
        """All that decides which images a batch may have, and their pixels, as text."""
        weights = "" if set(self.weights) <= {1.0} else str(self.weights)
        return f"{self.shapes} {self.starts} {self.crop} {self.small} {self.exif} {self.interpolation} {weights}"

    @property
    def areas(self) -> Ints:
        """(k,) the pixels of each shape."""
        areas: Ints = np.array(self.shapes, np.int64).prod(axis=1)
        return areas

    def shares(self, batch_size: int) -> Ints:
        """Return (k,) how many images a batch of each bucket has on one rank: 1 to `batch_size`."""
        if self.max_pixels is None:
            return np.full(len(self.shapes), batch_size, np.int64)
        found: Ints = np.minimum(batch_size, self.max_pixels // self.areas)
        return found

    def numbers(self, sizes: Ints) -> Ints:
        """Return (n,) the numbers in `shapes` of the buckets of images of these (n, 2) heights and widths, each 1 or more."""
        shapes, ends = np.array(self.shapes, np.int64), (*self.starts[1:], len(self.shapes))
        found = np.zeros(len(sizes), np.int64)
        for start, end in zip(self.starts, ends, strict=True):
            numbers = start + _nearest(self.shapes[start:end], sizes)
            fits = (sizes >= shapes[numbers]).all(axis=1) if start else True
            found = np.where(fits, numbers, found)
        return found


def _nearest(shapes: tuple[Size, ...], sizes: Ints) -> Ints:
    """Return (n,) which of these shapes is nearest in aspect ratio, and of those the largest that is covered."""
    ratios, first, last = _ratios(shapes)
    nearest = np.zeros(len(sizes), np.int64)
    if len(ratios) > 1:
        logs = np.log(sizes[:, 0] / sizes[:, 1])
        right = np.clip(np.searchsorted(ratios, logs), 1, len(ratios) - 1)
        nearest = np.where(logs - ratios[right - 1] <= ratios[right] - logs, right - 1, right)
    found = first[nearest]
    for more in range(1, int((last - first).max()) + 1):  # larger shapes of the same ratio
        larger = np.minimum(first[nearest] + more, last[nearest])
        shape = np.array(shapes, np.int64)[larger]
        found = np.where((sizes >= shape).all(axis=1), larger, found)
    return found


def _of_areas(areas: int | Sequence[int] | None, step: int, ratio: float) -> list[set[Size]]:
    given = list(areas) if isinstance(areas, (list, tuple)) else [areas]
    if not given:
        raise OptionError("Buckets(area) is empty; pass the pixels of a shape, such as 1024**2, or several")
    step, ratio = whole_number(step, "Buckets(step)", least=1), real_number(ratio, "Buckets(ratio)")
    if ratio < 1:
        raise OptionError(f"Buckets(ratio) is {ratio}; it is of the longer to the shorter side, so 1 or more")
    checked = sorted({whole_number(area, "Buckets(area)", least=1) for area in given})
    found = [_of_area(area, step, ratio) for area in checked]
    for number, (smaller, larger) in enumerate(itertools.pairwise(found)):
        if both := smaller & larger:
            areas, shape = checked[number : number + 2], min(both)
            raise OptionError(
                f"Buckets(area): {areas[0]} and {areas[1]} both make {shape[0]} x {shape[1]}; pass areas that differ more, or a"
                " smaller step"
            )
    if (num := sum(map(len, found))) > _MOST_SHAPES:
        raise OptionError(f"Buckets: makes {num} shapes, more than {_MOST_SHAPES}; pass a larger step")
    return found


def _of_area(area: int, step: int, ratio: float) -> set[Size]:
    found: set[Size] = set()
    for width in range(step, min(_MOST_SIDE, int(math.sqrt(area * ratio)) + step) + 1, step):
        height = area // width // step * step
        if height and max(height, width) <= ratio * min(height, width) and height <= _MOST_SIDE:
            found |= {(height, width), (width, height)}
    if not found:
        raise OptionError(f"Buckets(area={area}, step={step}): no side of {step} or a multiple of it fits; pass a smaller step")
    return found


def _listed(shapes: Sequence[Sequence[int]]) -> set[Size]:
    try:
        found = {(int(height), int(width)) for height, width in shapes}
    except (TypeError, ValueError):
        raise OptionError(f"Buckets: shapes are {shapes!r:.80}; pass (height, width) of each, in pixels") from None
    if not found or len(found) > _MOST_SHAPES or not all(1 <= side <= _MOST_SIDE for size in found for side in size):
        raise OptionError(
            f"Buckets: shapes are {shapes!r:.80}; pass 1 to {_MOST_SHAPES} of them, with sides of 1 to {_MOST_SIDE}"
        )
    return found


def _weights(weights: Mapping[Size, float] | None, shapes: tuple[Size, ...]) -> tuple[float, ...]:
    given = {} if weights is None else {tuple(shape): weight for shape, weight in weights.items()}
    if unknown := given.keys() - set(shapes):
        raise OptionError(
            f"Buckets(weights) names {min(unknown)}, which is no shape here; see .shapes, of (height, width) such as {shapes[0]}"
        )
    found = tuple(real_number(given.get(shape, 1.0), f"Buckets(weights)[{shape}]") for shape in shapes)
    if not all(0 <= weight <= _MOST_WEIGHT for weight in found) or not any(found):
        raise OptionError(f"Buckets(weights): {given!r:.80}; pass 0.0 to {_MOST_WEIGHT:,.1f}, not 0.0 for all")
    return found


@functools.lru_cache(maxsize=64)
def _ratios(shapes: tuple[Size, ...]) -> tuple[NDArray[np.float64], Ints, Ints]:
    """Return the different ratios, as logarithms, and the first and the last shape that has each."""
    logs = np.log(np.array([height / width for height, width in shapes]))
    starts = np.flatnonzero(np.diff(logs, prepend=-np.inf) > 1e-9)
    return logs[starts], starts, np.append(starts[1:], len(logs)) - 1


@dataclass(frozen=True)
class ToBucket:
    """Resize an image to cover the shape of its bucket, and cut it to that. Made by `Images(buckets=...)`, before all else."""

    buckets: Buckets

    def __repr__(self) -> str:
        return f"to the bucket: {self.buckets!r}"

    def output_size(self, size: Size | None, /) -> Size | None:
        """Return the shape of an image's bucket."""
        if size is None:
            return self.buckets.shapes[0] if len(self.buckets.shapes) == 1 else None
        return self.buckets.shapes[int(self.buckets.numbers(np.array([size], np.int64))[0])]

    def fold(self, cuts: list[Cuts], draws: Draws, operation: int, /) -> list[Cuts]:
        """Append this transform."""
        sizes = chain.output_sizes(cuts)
        shapes = np.array(self.buckets.shapes, np.int64)[self.buckets.numbers(sizes)]
        cover = np.maximum(shapes[:, 0] / sizes[:, 0], shapes[:, 1] / sizes[:, 1])[:, None]
        resized = np.maximum(np.rint(sizes * cover).astype(np.int64), shapes)
        excess = resized - shapes
        box = np.empty((len(sizes), 4), np.int64)
        box[:, 2:] = shapes
        if self.buckets.crop == "random":
            box[:, :2] = draws.uniform(operation, 2) * (excess + 1)
        else:
            box[:, :2] = excess // 2
        return chain.crop(chain.resize(cuts, resized, self.buckets.interpolation), box)
