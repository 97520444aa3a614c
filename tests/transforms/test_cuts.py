"""Merged cuts give the pixels of one step after the other, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from datapipe.order.draws import Draws
from datapipe.transforms import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Recipe,
    Resize,
)
from datapipe.transforms.cuts import whole
from datapipe.transforms.execute import cut_through, row_cuts
from datapipe.transforms.protocols import Cuts, GeometryOp

_side = st.integers(1, 40)
_pair = st.tuples(_side, _side)
_fill = st.sampled_from([0, 7, (200, 3, 90)])
_interpolation = st.sampled_from(["bilinear", "bicubic"])
_ops: st.SearchStrategy[GeometryOp] = st.one_of(
    st.builds(Resize, _pair, interpolation=_interpolation),
    st.builds(Resize, st.integers(1, 30), interpolation=_interpolation),
    _pair.map(CenterCrop),
    st.builds(Pad, st.tuples(*[st.integers(0, 9)] * 4), fill=_fill),
    st.builds(RandomCrop, _pair, padding=st.sampled_from([None, 3]), pad_if_needed=st.just(True), fill=_fill),
    st.builds(RandomResizedCrop, _pair, interpolation=_interpolation),
    st.just(RandomHorizontalFlip(0.5)),
    st.just(RandomVerticalFlip(0.5)),
)


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng((seed, height, width)).integers(0, 256, (height, width, 3), dtype=np.uint8)


def carried_out(image: NDArray[np.uint8], chain: list[Cuts], row: int) -> NDArray[np.uint8]:
    top, left, height, width = chain[0].region[row].tolist()
    assert top >= 0
    assert left >= 0
    region = image[top : top + height, left : left + width]
    assert region.shape == (height, width, 3), "the region lies inside the image"
    out = torch.empty((*chain[-1].window[row, 2:].tolist(), 3), dtype=torch.uint8)
    cut_through(region, [row_cuts(cuts)[row] for cuts in chain], out.numpy())
    return out.numpy()


@pytest.mark.nightly
@settings(max_examples=300)
@given(ops=st.lists(_ops, min_size=1, max_size=5), sizes=st.lists(_pair, min_size=1, max_size=3), seed=st.integers(0, 5))
def test_merged_equals_step_by_step(ops: list[GeometryOp], sizes: list[tuple[int, int]], seed: int) -> None:
    draws = Draws(seed, 0, np.arange(len(sizes)))
    images = [picture(*size) for size in sizes]
    chain = whole(np.array(sizes))
    for operation, op in enumerate(ops):
        chain = op.fold(chain, draws, operation)
        entering = np.array([image.shape[:2] for image in images])
        single = op.fold(whole(entering), draws, operation)
        images = [carried_out(image, single, row) for row, image in enumerate(images)]
    for row, expected in enumerate(images):
        merged = carried_out(picture(*sizes[row]), chain, row)
        assert merged.shape == expected.shape
        np.testing.assert_array_equal(merged, expected)


@pytest.mark.parametrize(
    "ops",
    [
        [RandomResizedCrop(20), RandomHorizontalFlip()],
        [RandomHorizontalFlip(), RandomVerticalFlip(), RandomResizedCrop(20)],
        [Resize(30), CenterCrop(24), RandomHorizontalFlip()],
        [RandomCrop(32, padding=4), RandomHorizontalFlip()],
        [Resize((40, 40)), Pad(4), RandomCrop(40), RandomHorizontalFlip()],
        [CenterCrop(33), Resize(20), CenterCrop(20)],
        [Resize(30, "bicubic"), CenterCrop(24), RandomHorizontalFlip()],
        [RandomHorizontalFlip(), Pad(3), CenterCrop(30)],
    ],
    ids=repr,
)
def test_usual_recipes_are_one_cut(ops: list[Any]) -> None:
    cuts = Recipe.of(ops).draw_cuts(Draws(0, 0, np.arange(6)), np.array([(50, 61), (33, 47)] * 3))
    assert len(cuts) == 1


@pytest.mark.parametrize("ops", [[Resize(20), Resize(10)], [Pad(2), Resize(9)], [Resize(20), CenterCrop(8), Pad(2)]], ids=repr)
def test_what_cannot_merge_is_one_more_cut(ops: list[Any]) -> None:
    assert len(Recipe.of(ops).draw_cuts(Draws(0, 0, np.arange(2)), np.array([(50, 61), (33, 47)]))) == 2


def test_each_resize_keeps_its_interpolation() -> None:
    ops = [Pad(1), RandomResizedCrop(30, interpolation="bicubic"), CenterCrop(28), Pad(2), RandomHorizontalFlip(), Resize(9)]
    chain = Recipe.of(ops).draw_cuts(Draws(0, 0, np.arange(2)), np.array([(50, 61), (33, 47)]))
    resized = [cuts.interpolation for cuts in chain if (cuts.size != cuts.region[:, 2:]).any()]
    assert resized == ["bicubic", "bilinear"]
    assert chain[1][np.array([0])].interpolation == chain[1].interpolation


def test_a_crop_without_resize_is_a_region() -> None:
    draws, sizes = Draws(3, 0, np.arange(20)), np.full((20, 2), 64)
    (cuts,) = Recipe.of([RandomCrop(32, padding=8)]).draw_cuts(draws, sizes)
    np.testing.assert_array_equal(cuts.size, cuts.region[:, 2:])
    assert (cuts.region[:, :2] >= 0).all()
    assert (cuts.region[:, :2] + cuts.region[:, 2:] <= 64).all()
    assert (cuts.region[:, 2:] <= 32).all()
    assert (cuts.region[:, 2:] < 32).any(), "where the crop reaches into the padding less is decoded"
    (cuts,) = Recipe.of([CenterCrop(10)]).draw_cuts(draws, sizes)
    np.testing.assert_array_equal(cuts.region[0], [27, 27, 10, 10])


def test_a_resize_to_the_same_size_resamples_nothing() -> None:
    cuts = Recipe.of([Pad(2), Resize((14, 15)), RandomVerticalFlip(0)]).draw_cuts(Draws(0, 0, np.arange(1)), np.array([(10, 11)]))
    assert len(cuts) == 1
    np.testing.assert_array_equal(cuts[0].size, [[10, 11]])


def test_a_window_on_nothing_but_fill() -> None:
    draws = Draws(1, 0, np.arange(20))
    chain = Pad((0, 10, 0, 0), fill=(1, 2, 3)).fold(whole(np.full((20, 2), 6)), draws, 0)
    chain = RandomCrop((4, 6)).fold(chain, draws, 1)
    beyond = np.flatnonzero(chain[0].window[:, 0] + 4 <= 0)
    assert len(beyond) >= 3, "of this seed's crops some lie within the padding"
    for row in beyond:
        np.testing.assert_array_equal(carried_out(picture(6, 6), chain, row), np.broadcast_to([1, 2, 3], (4, 6, 3)))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@settings(max_examples=60)
@given(size=st.tuples(st.integers(1, 300), st.integers(1, 300)), target=st.tuples(st.integers(1, 250), st.integers(1, 250)))
def test_resizing_commutes_with_flips(interpolation: str, size: tuple[int, int], target: tuple[int, int]) -> None:
    """What lets a flip wait until after the resize: torch's fixed-point weights are symmetric."""
    image = picture(*size)
    chain = Resize(target, interpolation).fold(whole(np.array([size])), Draws(0, 0, np.arange(1)), 0)
    straight = carried_out(image, chain, 0)
    turned = carried_out(np.ascontiguousarray(image[::-1, ::-1]), chain, 0)
    np.testing.assert_array_equal(turned[::-1, ::-1], straight)
