"""One image into one row: torch's resize, windows, fills, flips, and no write outside the row; the same over a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

from datapipe import transforms as T
from datapipe.errors import DecodeError
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import cut, cut_through, look_through, row_cuts, rows_of, windows_of
from datapipe.transforms.geometry import RESAMPLES_NOTHING
from datapipe.transforms.protocols import Cuts, Interpolation


def picture(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng((height, width)).integers(0, 256, (height, width, 3), dtype=np.uint8)


def one(
    region: tuple[int, int],
    size: tuple[int, int],
    window: tuple[int, int, int, int] | None = None,
    flip: tuple[bool, bool] = (False, False),
    fill: tuple[int, int, int] = (0, 0, 0),
    interpolation: Interpolation = "bilinear",
) -> Cuts:
    window = window or (0, 0, *size)
    return Cuts(np.array([(5, 6, *region)]), np.array([size]), np.array([window]), np.array([flip]), fill, interpolation)


def done(image: NDArray[np.uint8], cuts: Cuts) -> NDArray[np.uint8]:
    out = torch.full((*cuts.window[0, 2:].tolist(), 3), 77, dtype=torch.uint8)
    cut(image, row_cuts(cuts)[0], out.numpy())
    return out.numpy()


def resized(image: NDArray[np.uint8], size: tuple[int, int], interpolation: Interpolation = "bilinear") -> NDArray[np.uint8]:
    # Twice, as torch takes one image of one pixel for planar whatever its strides say, and then fails.
    tensor = torch.from_numpy(np.stack([image, image])).permute(0, 3, 1, 2)
    return interpolate(tensor, size, mode=interpolation, antialias=True)[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@settings(max_examples=80)
@given(
    height=st.integers(1, 300), width=st.integers(1, 300), new_height=st.integers(1, 200), new_width=st.integers(1, 200)
)  # fmt: skip
def test_resize_is_torchs_interpolate(
    interpolation: Interpolation, height: int, width: int, new_height: int, new_width: int
) -> None:
    image = picture(height, width)
    ours = done(image, one((height, width), (new_height, new_width), interpolation=interpolation))
    np.testing.assert_array_equal(ours, resized(image, (new_height, new_width), interpolation))


@settings(max_examples=60)
@given(st.integers(1, 120), st.integers(1, 120), st.integers(1, 90), st.integers(1, 90))
def test_resize_is_within_rounding_of_pils(height: int, width: int, new_height: int, new_width: int) -> None:
    image = picture(height, width)
    theirs = np.asarray(Image.fromarray(image).resize((new_width, new_height), Image.Resampling.BILINEAR)).astype(int)
    difference = np.abs(done(image, one((height, width), (new_height, new_width))) - theirs)
    assert difference.max() <= 2
    assert (difference > 1).mean() < 0.01


@settings(max_examples=60)
@given(st.integers(1, 120), st.integers(1, 120), st.integers(1, 90), st.integers(1, 90))
def test_bicubic_is_within_rounding_of_pils(height: int, width: int, new_height: int, new_width: int) -> None:
    """Of an image without values near the ends: there what overshoots is cut off between the two directions, of which Pillow
    takes the one first that costs less."""
    image = picture(height, width) // 4 + 96
    theirs = np.asarray(Image.fromarray(image).resize((new_width, new_height), Image.Resampling.BICUBIC)).astype(int)
    ours = done(image, one((height, width), (new_height, new_width), interpolation="bicubic"))
    assert np.abs(ours - theirs).max() <= 2


@pytest.mark.parametrize("vertically", [False, True])
@pytest.mark.parametrize("horizontally", [False, True])
@pytest.mark.parametrize("size", [(31, 40), (20, 17), (1, 1), (1, 9), (9, 1)])
def test_flips_come_last(size: tuple[int, int], vertically: bool, horizontally: bool) -> None:
    image = picture(31, 40)
    expected = resized(image, size)[:: -1 if vertically else 1, :: -1 if horizontally else 1]
    np.testing.assert_array_equal(done(image, one((31, 40), size, flip=(vertically, horizontally))), expected)


@pytest.mark.parametrize("size", [(20, 30), (12, 17)], ids=["as decoded", "resized"])
@pytest.mark.parametrize("fill", [(0, 0, 0), (9, 9, 9), (1, 200, 30)])
@pytest.mark.parametrize("window", [(2, 3, 5, 6), (-4, -3, 30, 40), (-4, 2, 6, 5), (8, 12, 9, 20), (50, 60, 3, 4), (-9, 0, 4, 4)])
def test_windows_and_fill(size: tuple[int, int], fill: tuple[int, int, int], window: tuple[int, int, int, int]) -> None:
    image = picture(20, 30)
    canvas = np.full((200, 200, 3), fill, np.uint8)
    canvas[100 : 100 + size[0], 100 : 100 + size[1]] = resized(image, size)
    top, left, height, width = window
    expected = canvas[100 + top : 100 + top + height, 100 + left : 100 + left + width]
    np.testing.assert_array_equal(done(image, one((20, 30), size, window, fill=fill)), expected)


def test_only_the_row_is_written() -> None:
    block = torch.full((3, 16, 16, 3), 77, dtype=torch.uint8)
    for cuts in (one((20, 30), (16, 16), flip=(True, True)), one((20, 30), (20, 30), (-2, -2, 16, 16))):
        cut(picture(20, 30), row_cuts(cuts)[0], block.numpy()[1])
        assert (block[0] == 77).all()
        assert (block[2] == 77).all()
        assert not (block[1] == 77).all()


@pytest.mark.parametrize("size", [(16, 17), (1, 1), (1, 9), (9, 1)])
def test_rows_of_a_block_are_as_good_as_arrays(size: tuple[int, int]) -> None:
    block = torch.zeros((4, *size, 3), dtype=torch.uint8)[1:]
    for number, row in enumerate(rows_of(block)):
        cuts = one((20, 30), size, flip=(number == 1, number == 2))
        cut(picture(20, 30), row_cuts(cuts)[0], row)
        np.testing.assert_array_equal(block[number].numpy(), done(picture(20, 30), cuts))
        assert row.as_batch.shape == (1, 3, *size)
    assert len(rows_of(block)) == 3


def test_views_and_read_only_images() -> None:
    large = picture(50, 60)
    large.flags.writeable = False
    view = large[5:25, 6:36]
    for size in ((20, 30), (11, 12)):
        np.testing.assert_array_equal(done(view, one((20, 30), size)), resized(view.copy(), size))
        np.testing.assert_array_equal(done(view[::-1], one((20, 30), size)), resized(view[::-1].copy(), size))


def test_the_image_is_not_changed() -> None:
    image = picture(20, 30)
    before = image.copy()
    done(image, one((20, 30), (20, 30), flip=(True, True)))
    done(image, one((20, 30), (9, 9), flip=(True, True)))
    np.testing.assert_array_equal(image, before)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(DecodeError, match=r"shape \(19, 30, 3\); expected \(20, 30, 3\)"):
        done(picture(19, 30), one((20, 30), (8, 8)))
    cuts, block = one((20, 30), (8, 8)), torch.zeros(9, 8, 8, 3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="destination"):
        cut(picture(20, 30), row_cuts(cuts)[0], block.numpy()[0, :7])
    with pytest.raises(ValueError, match="contiguous"):
        cut(picture(20, 30), row_cuts(cuts)[0], block.numpy().transpose(0, 2, 1, 3)[0])
    assert not block.any()


def test_a_chain_hands_on_what_each_cut_leaves() -> None:
    image = picture(40, 50)
    first = one((40, 50), (20, 20), (-2, -2, 24, 24), (False, True), (5, 6, 7))
    second = Cuts(np.array([(1, 2, 20, 21)]), np.array([(10, 10)]), np.array([(0, 0, 10, 10)]), np.array([(True, False)]))
    between = done(image, first)[1:21, 2:23]
    out = torch.empty((10, 10, 3), dtype=torch.uint8)
    cut_through(image, [row_cuts(cuts)[0] for cuts in (first, second)], out.numpy())
    np.testing.assert_array_equal(out.numpy(), resized(between.copy(), (10, 10))[::-1])


# -- over a whole batch, where nothing is resampled -----------------------------------------------------

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
