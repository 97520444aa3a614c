"""Masks and boxes go where their image's pixels go: against torchvision, and against the image itself."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe import transforms as T
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import RowCut, cut_mask, move_boxes, row_cuts

tv = torchvision_v2().functional
RECIPES: dict[str, list[Any]] = {
    "random crop, flip": [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "resize, centre": [T.Resize((30, 28)), T.CenterCrop(24)],
    "padding": [T.RandomCrop(24, padding=6), T.RandomHorizontalFlip()],
    "pad, resize": [T.Pad((3, 5, 7, 2)), T.Resize((31, 17)), T.RandomVerticalFlip()],
    "twice": [T.Resize((64, 64)), T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.Resize((9, 13))],
    "nothing": [],
}


def steps_of(transforms: list[Any], number: int, size: tuple[int, int]) -> list[RowCut]:
    chain = Recipe.of(transforms).draw_cuts(Draws(0, 0, np.array([number])), np.array([size], np.int64))
    return [row_cuts(cuts)[0] for cuts in chain]


def mask_of(number: int, height: int = 40, width: int = 53) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 5, (height, width), np.uint8)


def through_torchvision(mask: NDArray[np.uint8], steps: list[RowCut], fill: int) -> NDArray[np.uint8]:
    """The same cuts, one at a time, by torchvision's kernels for masks."""
    image = torch.from_numpy(mask.copy())[None]
    for how in steps:
        top, left, height, width = how.region
        image = tv.resize_mask(image[:, top : top + height, left : left + width].contiguous(), list(how.size))
        top, left, height, width = how.window
        below, right = max(0, top + height - image.shape[1]), max(0, left + width - image.shape[2])
        image = tv.pad_mask(image, [max(0, -left), max(0, -top), right, below], fill=fill)
        image = image[:, max(0, top) :][:, :height][:, :, max(0, left) :][:, :, :width]
        image = image.flip([axis + 1 for axis in (0, 1) if how.flip[axis]])
    found: NDArray[np.uint8] = image[0].numpy()
    return found


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("number", range(6))
def test_masks_are_torchvisions(name: str, number: int) -> None:
    mask = mask_of(number)
    steps = steps_of(RECIPES[name], number, mask.shape)
    found = cut_mask(mask, steps, fill=255)
    assert found.dtype == np.uint8
    assert np.array_equal(found, through_torchvision(mask, steps, 255))


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.bool_])
def test_any_labels_and_channels(dtype: type) -> None:
    mask = np.random.default_rng(0).integers(0, 2, (40, 53, 2)).astype(dtype)
    found = cut_mask(mask, steps_of(RECIPES["random crop, flip"], 1, (40, 53)))
    assert (found.shape, found.dtype) == ((24, 24, 2), dtype)


def test_a_mask_of_another_image_is_bad() -> None:
    with pytest.raises(dp.errors.DecodeError, match=r"a mask of 10 x 10 pixels for an image of"):
        cut_mask(mask_of(0, 10, 10), steps_of([T.CenterCrop(24)], 0, (40, 53)))


def moved_by_torchvision(boxes: NDArray[np.float32], steps: list[RowCut], size: tuple[int, int]) -> torch.Tensor:
    tensors = importlib.import_module("torchvision.tv_tensors")
    found: Any = tensors.BoundingBoxes(torch.from_numpy(boxes.copy()), format="XYXY", canvas_size=size)
    for how in steps:
        found = tv.crop(found, *how.region)
        found = tv.resize(found, list(how.size))
        found = tv.crop(found, *how.window)
        found = tv.vertical_flip(found) if how.flip[0] else found
        found = tv.horizontal_flip(found) if how.flip[1] else found
    return torch.as_tensor(found)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("number", range(6))
def test_boxes_are_torchvisions(name: str, number: int) -> None:
    rng = np.random.default_rng(number)
    corners = np.sort(rng.uniform(0, 1, (7, 2, 2)), axis=1) * [53, 40]
    boxes = corners.reshape(7, 4).astype(np.float32)
    steps = steps_of(RECIPES[name], number, (40, 53))
    found = move_boxes(boxes, steps)
    torch.testing.assert_close(torch.from_numpy(found), moved_by_torchvision(boxes, steps, (40, 53)), atol=1e-3, rtol=1e-4)


def test_no_boxes_stay_no_boxes() -> None:
    assert move_boxes(np.empty((0, 4), np.float32), steps_of(RECIPES["twice"], 0, (40, 53))).shape == (0, 4)


@settings(max_examples=60)
@given(number=st.integers(0, 10_000), top=st.integers(0, 30), left=st.integers(0, 40), side=st.integers(4, 10))
def test_a_box_holds_what_it_held(number: int, top: int, left: int, side: int) -> None:
    """A rectangle drawn into the mask lies, after crop and flip, within a pixel of where its box went."""
    mask = np.zeros((40, 53), np.uint8)
    bottom, right = min(40, top + side), min(53, left + side)
    mask[top:bottom, left:right] = 1
    steps = steps_of([T.RandomResizedCrop(96), T.RandomHorizontalFlip(), T.RandomVerticalFlip()], number, (40, 53))
    (box,) = move_boxes(np.array([[left, top, right, bottom]], np.float32), steps)
    rows, columns = np.nonzero(cut_mask(mask, steps))
    if len(rows) == 0:
        assert (box[2] - box[0]) * (box[3] - box[1]) < 96 * 96 / 40
        return
    drawn = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert np.abs(box - drawn).max() <= 96 / 8
