"""Boxes and sizes: within their bounds, distributed as torchvision's, refused with a remedy."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torchvision_reference import torchvision_v2

import datapipe.transforms as T
from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.cuts import whole

_sizes = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=40)


@settings(max_examples=150)
@given(sizes=_sizes, low=st.floats(0.01, 1), seed=st.integers(0, 1000))
def test_random_resized_crop_boxes(sizes: list[tuple[int, int]], low: float, seed: int) -> None:
    given_sizes = np.array(sizes)
    crop = T.RandomResizedCrop(224, scale=(low, 1.0))
    box = crop.boxes(given_sizes, Draws(seed, 1, np.arange(len(sizes))), 2)
    assert (box[:, :2] >= 0).all()
    assert (box[:, 2:] >= 1).all()
    assert (box[:, :2] + box[:, 2:] <= given_sizes).all()
    # Sides are rounded: both bounds hold within half a pixel, except for the central fallback.
    central = (box == crop._central(given_sizes)).all(axis=1)
    height, width = box[~central, 2].astype(float), box[~central, 3].astype(float)
    assert ((width + 0.5) / (height - 0.5) >= 3 / 4 - 1e-9).all()
    assert ((width - 0.5) / (height + 0.5) <= 4 / 3 + 1e-9).all()
    area = given_sizes[~central].prod(axis=1)
    assert ((width + 0.5) * (height + 0.5) >= low * area - 1e-6).all()


@pytest.mark.parametrize("size", [(10, 1000), (1000, 10), (3, 5000), (1, 1), (1, 7), (400, 401), (77, 13)])
def test_random_resized_crop_falls_back_to_the_centre(size: tuple[int, int]) -> None:
    """scale=(4, 4) fits nowhere, so each box is the fallback; the formula is torchvision's, in plain Python."""
    box = T.RandomResizedCrop(8, scale=(4.0, 4.0)).boxes(np.array([size] * 3), Draws(0, 0, np.arange(3)), 0)
    height, width = size
    expected = (height, width)
    if width / height < 3 / 4:
        expected = (max(round(width / (3 / 4)), 1), width)
    elif width / height > 4 / 3:
        expected = (height, max(round(height * (4 / 3)), 1))
    top, left = (height - expected[0]) // 2, (width - expected[1]) // 2
    assert box.tolist() == [[top, left, *expected]] * 3


@pytest.mark.parametrize("size", [(375, 500), (500, 120)])
def test_random_resized_crop_is_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    v2 = torchvision_v2()
    num_draws = 4000
    ours = T.RandomResizedCrop(224).boxes(np.array([size] * num_draws), Draws(0, 0, np.arange(num_draws)), 0)
    theirs = v2.RandomResizedCrop(224)
    torch.manual_seed(0)
    image = torch.empty(3, *size)
    drawn = [theirs.make_params([image]) for _ in range(num_draws)]
    reference = np.array([[p["top"], p["left"], p["height"], p["width"]] for p in drawn])
    for name, measure in {
        "area": lambda b: b[:, 2] * b[:, 3],
        "ratio": lambda b: b[:, 3] / b[:, 2],
        "height": lambda b: b[:, 2],
        "top": lambda b: b[:, 0],
        "left": lambda b: b[:, 1],
        "top within its room": lambda b: (b[:, 0] + 0.5) / (size[0] - b[:, 2] + 1),
    }.items():
        # Two-sample Kolmogorov-Smirnov; 0.0436 is the 0.1 % point for 4,000 each.
        assert _greatest_gap(measure(ours), measure(reference)) < 0.0436, name


def _greatest_gap(a: NDArray[Any], b: NDArray[Any]) -> float:
    values = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(side), values, side="right") / len(side) for side in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


@settings(max_examples=200)
@given(
    height=st.integers(1, 3000), width=st.integers(1, 3000), size=st.one_of(st.none(), st.integers(1, 500)),
    more=st.one_of(st.none(), st.integers(1, 600)),
)  # fmt: skip
def test_resize_sizes_are_torchvisions(height: int, width: int, size: int | None, more: int | None) -> None:
    torchvision_v2()
    from torchvision.transforms.v2.functional._geometry import _compute_resized_output_size

    if size is None and more is None:
        more = 100
    max_size = more if size is None or more is None else size + more
    expected = _compute_resized_output_size((height, width), size=None if size is None else [size], max_size=max_size)
    ours = T.Resize(size, max_size=max_size)
    assert ours.output_size((height, width)) == tuple(max(side, 1) for side in expected)


def test_center_crop_anchors_are_torchvisions() -> None:
    v2 = torchvision_v2()
    for height in range(1, 12):
        for width in range(1, 12):
            for crop in ((5, 5), (4, 7), (8, 3)):
                image = torch.arange(1, height * width + 1, dtype=torch.int32).view(1, height, width)
                expected = v2.functional.center_crop(image, list(crop))[0].numpy()
                (cuts,) = T.CenterCrop(crop).fold(whole(np.array([(height, width)])), Draws(0, 0, np.arange(1)), 0)
                top, left = (cuts.region[0, :2] - cuts.window[0, :2] * -1).tolist()
                shown = np.zeros(crop, np.int32)
                for y in range(crop[0]):
                    for x in range(crop[1]):
                        if 0 <= y + top < height and 0 <= x + left < width:
                            shown[y, x] = image[0, y + top, x + left]
                np.testing.assert_array_equal(shown, expected, err_msg=f"{height} x {width} to {crop}")


def test_random_crop_reaches_every_place_equally() -> None:
    num_draws = 6000
    (cuts,) = T.RandomCrop(6, padding=(1, 0, 1, 0)).fold(whole(np.full((num_draws, 2), 8)), Draws(5, 0, np.arange(num_draws)), 0)
    tops = cuts.region[:, 0] + cuts.window[:, 0]
    lefts = cuts.region[:, 1] + cuts.window[:, 1]
    for places, expected in ((tops, range(3)), (lefts, range(-1, 4))):
        values, counts = np.unique(places, return_counts=True)
        assert values.tolist() == list(expected)
        share = num_draws / len(values)
        assert (np.abs(counts - share) < 5 * math.sqrt(share)).all()


def test_random_crop_pads_on_both_sides_if_needed() -> None:
    (cuts,) = T.RandomCrop(10, pad_if_needed=True).fold(whole(np.full((500, 2), 6)), Draws(0, 0, np.arange(500)), 0)
    tops = cuts.region[:, 0] + cuts.window[:, 0]
    assert (tops.min(), tops.max()) == (-4, 0), "padded by 4 on each side, then cropped at 0 to 4"


def test_random_crop_names_the_image_that_is_too_small() -> None:
    with pytest.raises(OptionError, match=r"RandomCrop\(10\): an image of 9 x 30 pixels.*pad_if_needed=True"):
        T.RandomCrop(10).fold(whole(np.array([(20, 20), (9, 30)])), Draws(0, 0, np.arange(2)), 0)


@pytest.mark.parametrize(("flip", "axis"), [(T.RandomHorizontalFlip, 1), (T.RandomVerticalFlip, 0)])
def test_flips_happen_with_probability_p(flip: Callable[[float], Any], axis: int) -> None:
    sizes, draws = np.full((8000, 2), 4), Draws(1, 2, np.arange(8000))
    for p in (0.0, 0.3, 1.0):
        (cuts,) = flip(p).fold(whole(sizes), draws, 0)
        assert abs(cuts.flip[:, axis].mean() - p) < 5 * math.sqrt(p * (1 - p) / 8000) + 1e-12
        assert not cuts.flip[:, 1 - axis].any()


@pytest.mark.parametrize(
    "op", [T.RandomResizedCrop(20), T.RandomCrop(90, padding=3, pad_if_needed=True), T.RandomHorizontalFlip()], ids=repr
)
def test_a_sample_is_cut_alike_in_any_company(op: Any) -> None:
    sizes = np.random.default_rng(0).integers(20, 400, (64, 2))
    draws = Draws(7, 3, np.arange(64) * 31)

    def cut(rows: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        (cuts,) = op.fold(whole(sizes[rows]), draws[rows], 1)
        return cuts.region, cuts.size, cuts.window, cuts.flip

    together = cut(np.arange(64))
    for rows in (np.arange(7), np.array([63, 5]), *np.arange(64).reshape(-1, 1)):
        for part, all_of_it in zip(cut(rows), together, strict=True):
            np.testing.assert_array_equal(part, all_of_it[rows])


def test_draws_depend_on_seed_epoch_id_and_operation() -> None:
    sizes = np.full((16, 2), 300)

    def boxes(seed: int = 0, epoch: int = 0, first: int = 0, operation: int = 0) -> list[Any]:
        ids = np.arange(first, first + 16)
        return T.RandomResizedCrop(8).boxes(sizes, Draws(seed, epoch, ids), operation).tolist()

    assert boxes() == boxes()
    assert len({str(boxes(**change)) for change in ({}, {"seed": 1}, {"epoch": 1}, {"first": 16}, {"operation": 1})}) == 5
    assert boxes()[1:] == boxes(first=1)[:-1], "a number belongs to the id, not to the row"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: T.RandomResizedCrop(0), r"RandomResizedCrop: size is 0; .*positive int"),
        (lambda: T.RandomResizedCrop((1, 2, 3)), r"size is \(1, 2, 3\)"),
        (lambda: T.RandomResizedCrop(8, scale=(0.5, 0.1)), r"scale is \(0\.5, 0\.1\); .*low <= high"),
        (lambda: T.RandomResizedCrop(8, ratio=(0, 1)), r"ratio is \(0, 1\); .*greater than 0"),
        (lambda: T.RandomResizedCrop(8, interpolation="lanczos"), r"interpolation is 'lanczos'; only 'bilinear' and 'bicubic'"),
        (lambda: T.Resize(8, antialias=False), r"antialias is False; .*drop the argument"),
        (lambda: T.Resize(None), r"max_size is None"),
        (lambda: T.Resize(8, max_size=8), r"max_size is 8; .*greater than"),
        (lambda: T.Resize((8, 8), max_size=9), r"max_size is 9; .*single int"),
        (lambda: T.Resize(True), r"size is True"),
        (lambda: T.Pad(-1), r"padding is -1"),
        (lambda: T.Pad((1, 2, 3)), r"padding is \(1, 2, 3\)"),
        (lambda: T.Pad(1, fill=300), r"fill is 300; .*0 to 255"),
        (lambda: T.Pad(1, fill=(1, 2)), r"fill is \(1, 2\)"),
        (lambda: T.Pad(1, padding_mode="reflect"), r"padding_mode is 'reflect'; only 'constant'"),
        (lambda: T.RandomHorizontalFlip(1.5), r"p is 1\.5; .*between 0 and 1"),
        (lambda: T.RandomVerticalFlip(math.nan), r"p is nan"),
    ],
)
def test_refusals_name_transform_argument_value_and_remedy(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        make()


ALL = [
    T.RandomResizedCrop(224),
    T.RandomResizedCrop((3, 4), scale=(0.2, 1), ratio=(1, 1)),
    T.RandomResizedCrop((3, 4), scale=(0.2, 1), ratio=(1, 1), interpolation="bicubic"),
    T.Resize(256),
    T.Resize((4, 5)),
    T.Resize((4, 5), "bicubic"),
    T.Resize(256, max_size=300),
    T.Resize(None, max_size=300),
    T.CenterCrop(224),
    T.CenterCrop((2, 3)),
    T.CenterCrop((2, 3), fill=(1, 2, 3)),
    T.Pad(3),
    T.Pad((1, 2, 3, 4), fill=9),
    T.RandomCrop(32, padding=4),
    T.RandomCrop((32, 31), pad_if_needed=True, fill=(1, 2, 3)),
    T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(0.1),
]


@pytest.mark.parametrize("op", ALL, ids=repr)
def test_repr_is_the_call_that_makes_it(op: Any) -> None:
    assert eval(repr(op), vars(T)) == op
    assert pickle.loads(pickle.dumps(op)) == op
    assert sum(other == op for other in ALL) == 1
    assert hash(op) == hash(eval(repr(op), vars(T)))


def test_torchvisions_ways_to_say_bilinear_and_bicubic() -> None:
    v2 = torchvision_v2()
    assert T.Resize(8, v2.InterpolationMode.BILINEAR) == T.Resize(8) == T.Resize([8], 2)
    assert T.Resize(8, v2.InterpolationMode.BICUBIC) == T.Resize(8, "bicubic") == T.Resize([8], 3) != T.Resize(8)
    with pytest.raises(OptionError, match="only 'bilinear'"):
        T.Resize(8, v2.InterpolationMode.NEAREST)


def test_output_sizes() -> None:
    assert T.Resize(100).output_size((200, 300)) == (100, 150)
    assert T.Resize(100).output_size(None) is None
    assert T.Resize((4, 5)).output_size(None) == (4, 5)
    assert T.Pad((1, 2, 3, 4)).output_size((10, 10)) == (16, 14)
    assert T.Pad(1).output_size(None) is None
    assert T.RandomHorizontalFlip().output_size((3, 4)) == (3, 4)
    for crop in (T.RandomResizedCrop, T.CenterCrop, T.RandomCrop):
        assert crop(7).output_size(None) == crop(7).output_size((9, 8)) == (7, 7)
