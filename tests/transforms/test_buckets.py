"""Shapes of buckets, which of them an image belongs to, and what of it is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

import datapipe as dp
from datapipe.order.draws import Draws
from datapipe.transforms.buckets import ToBucket
from datapipe.transforms.cuts import whole

SIDES = st.integers(1, 5000)


def test_shapes_of_an_area() -> None:
    found = dp.Buckets(area=1024**2, step=64, ratio=2.0).shapes
    assert (1024, 1024) in found
    assert (832, 1216) in found
    assert all(height * width <= 1024**2 and height % 64 == width % 64 == 0 for height, width in found)
    assert all(max(shape) <= 2 * min(shape) for shape in found)
    assert {(width, height) for height, width in found} == set(found)
    for height, width in found:  # the largest of its width, or of its height
        assert (height + 64) * width > 1024**2 or (width + 64) * height > 1024**2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "say which shapes there are: an area, such as 1024"),
        ({"shapes": [(8, 8)], "area": 64}, "say which shapes there are"),
        ({"shapes": []}, r"shapes are \[\]; pass 1 to 1024 of them"),
        ({"shapes": [8]}, r"pass \(height, width\) of each"),
        ({"shapes": [(0, 8)]}, "with sides of 1 to"),
        ({"area": 0}, r"Buckets\(area\) is 0; it must be at least 1"),
        ({"area": 64, "step": 64}, "no side of 64 or a multiple of it fits"),
        ({"area": 1 << 24, "step": 1}, "shapes, more than 1024; pass a larger step"),
        ({"area": 64, "step": 8, "ratio": 0.5}, r"Buckets\(ratio\) is 0.5"),
        ({"area": 64, "step": 8, "crop": "left"}, r"Buckets\(crop\) is 'left'; choose one of 'center', 'random'"),
        ({"area": 64, "step": 8, "small": "no"}, "choose one of 'enlarge', 'leave out', 'error'"),
        ({"area": []}, r"Buckets\(area\) is empty"),
        ({"area": "64"}, r"Buckets\(area\) is '64'"),
        ({"area": [4096, 4100], "step": 8}, "4096 and 4100 both make"),
        ({"area": 64**2, "step": 8, "max_pixels": 1000}, "max_pixels.* is 1000, and one image of the largest shape has 4096"),
        ({"area": 64**2, "step": 8, "max_pixels": 0}, "max_pixels"),
        ({"area": 64**2, "step": 8, "weights": {(1, 2): 3.0}}, r"names \(1, 2\), which is no shape here; see .shapes"),
        ({"shapes": [(8, 8)], "weights": {(8, 8): 0.0}}, "not 0.0 for all"),
        ({"shapes": [(8, 8)], "weights": {(8, 8): -1.0}}, "pass 0.0 to 1,000.0"),
    ],
)
def test_what_makes_no_buckets(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(dp.errors.OptionError, match=said):
        dp.Buckets(**arguments)


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=20), st.sampled_from([16, 64, 128]))
@quick
def test_an_image_belongs_to_the_nearest_ratio(sizes: list[tuple[int, int]], step: int) -> None:
    buckets = dp.Buckets(area=512**2, step=step, ratio=3.0)
    found = buckets.numbers(np.array(sizes, np.int64))
    for size, number in zip(sizes, found.tolist(), strict=True):
        distances = [abs(np.log(height / width) - np.log(size[0] / size[1])) for height, width in buckets.shapes]
        assert distances[number] <= min(distances) + 1e-9


def test_of_shapes_of_one_ratio_the_largest_that_is_covered() -> None:
    buckets = dp.Buckets([(64, 64), (128, 128), (256, 256), (64, 128)])
    sizes = np.array([(70, 70), (130, 200), (128, 128), (1000, 900), (10, 10), (100, 190)], np.int64)
    shapes = [buckets.shapes[number] for number in buckets.numbers(sizes).tolist()]
    assert shapes == [(64, 64), (64, 128), (128, 128), (256, 256), (64, 64), (64, 128)]


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=12), st.sampled_from(["center", "random"]), st.integers(0, 5))
@quick
def test_the_bucket_is_covered_by_the_image(sizes: list[tuple[int, int]], crop: Any, seed: int) -> None:
    """Without a border, and with as little cut off as its ratio needs, to a pixel."""
    op = ToBucket(dp.Buckets(area=256**2, step=32, ratio=2.0, crop=crop))
    stored = np.array(sizes, np.int64)
    chain = op.fold(whole(stored), Draws(seed, 0, np.arange(len(sizes), dtype=np.int64)), 0)
    (cut,) = chain
    shapes = np.array([op.output_size(size) for size in sizes])
    assert (cut.window[:, 2:] == shapes).all()
    assert (cut.window[:, :2] >= 0).all()
    assert (cut.window[:, :2] + cut.window[:, 2:] <= cut.size).all()
    assert (np.minimum(cut.size[:, 0] - shapes[:, 0], cut.size[:, 1] - shapes[:, 1]) <= 0).all()
    if crop == "center":
        assert (np.abs(2 * cut.window[:, :2] + shapes - cut.size) <= 1).all()


def test_of_several_areas_the_largest_whose_bucket_is_covered() -> None:
    buckets = dp.Buckets(area=[256**2, 512**2, 128**2], step=32)
    sizes = np.array([(1000, 1000), (430, 520), (200, 100), (20, 20), (400, 800), (2000, 900)], np.int64)
    shapes = [buckets.shapes[number] for number in buckets.numbers(sizes).tolist()]
    assert shapes == [(512, 512), (224, 288), (160, 96), (128, 128), (352, 704), (704, 352)]


def test_a_batch_has_as_many_images_as_its_pixels_allow() -> None:
    buckets = dp.Buckets([(64, 64), (128, 128), (256, 256)], max_pixels=2 * 256**2)
    assert dict(zip(buckets.shapes, buckets.shares(16).tolist(), strict=True)) == {(64, 64): 16, (128, 128): 8, (256, 256): 2}
    assert dp.Buckets([(64, 64)]).shares(3).tolist() == [3]
