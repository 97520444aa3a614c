"""Cuts that resample nothing, over a whole batch: the pixels that the CPU's cuts give one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datapipe import transforms as T
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import cut_through, row_cuts
from datapipe.transforms.geometry import RESAMPLES_NOTHING
from datapipe.transforms.windows import look_through, windows_of

SIDES = st.integers(1, 9)
FILLS = st.one_of(st.integers(0, 255), st.tuples(*[st.integers(0, 255)] * 3))
OPS = st.one_of(
    st.builds(T.CenterCrop, st.tuples(SIDES, SIDES)),
    st.builds(T.Pad, st.integers(0, 3), fill=FILLS),
    st.builds(T.RandomCrop, st.tuples(SIDES, SIDES), padding=st.integers(0, 3), pad_if_needed=st.just(True), fill=FILLS),
    st.builds(T.RandomHorizontalFlip, st.sampled_from([0.0, 0.5, 1.0])),
    st.builds(T.RandomVerticalFlip, st.sampled_from([0.0, 0.5, 1.0])),
)


def through_windows(recipe: Recipe, images: torch.Tensor, draws: Draws) -> torch.Tensor:
    size = (images.shape[1], images.shape[2])
    for cuts in recipe.draw_cuts(draws, np.tile(np.array([size]), (len(draws), 1))):
        windows = windows_of(cuts, size)
        images = images if windows is None else look_through(windows, images)
        size = (images.shape[1], images.shape[2])
    return images


@given(ops=st.lists(OPS, max_size=4), height=SIDES, width=SIDES, num=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_batch_looks_as_its_images_do_one_by_one(ops: list[Any], height: int, width: int, num: int, seed: int) -> None:
    recipe, draws = Recipe.of(ops), Draws(seed, 1, np.arange(num))
    images = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (num, height, width, 3), np.uint8))
    found = through_windows(recipe, images, draws)
    chain = recipe.draw_cuts(draws, np.tile(np.array([[height, width]]), (num, 1)))
    for row, steps in enumerate(zip(*map(row_cuts, chain), strict=True)):
        top, left, region_height, region_width = steps[0].region
        region = images[row].numpy()[top : top + region_height, left : left + region_width]
        expected = np.empty((*steps[-1].window[2:], 3), np.uint8)
        cut_through(region, steps, expected)
        assert np.array_equal(found[row].numpy(), expected)


@pytest.mark.parametrize("op", [T.CenterCrop(8), T.RandomHorizontalFlip(0.0), T.Pad(0)], ids=repr)
def test_nothing_is_done_where_nothing_moves(op: Any) -> None:
    (cuts,) = Recipe.of([op]).draw_cuts(Draws(0, 0, np.arange(3)), np.full((3, 2), 8))
    assert windows_of(cuts, (8, 8)) is None


def test_only_what_resamples_is_no_window() -> None:
    moving = {cls for cls in (getattr(T, name) for name in T.__all__) if isinstance(cls, type) and hasattr(cls, "fold")}
    assert moving - set(RESAMPLES_NOTHING) == {T.Resize, T.RandomResizedCrop}
