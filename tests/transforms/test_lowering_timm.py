"""timm's `create_transform`, lowered."""

from __future__ import annotations

import importlib
import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from made_by_recipe import before_rest, gap_limit, greatest_gap, made, many, photo, ramp
from PIL import Image
from torchvision_reference import torchvision_v2

import datapipe.transforms as T

torchvision_v2()
data: Any = pytest.importorskip("timm.data", reason="timm is not installed")
their: Any = importlib.import_module("timm.data.transforms")
erasing: Any = importlib.import_module("timm.data.random_erasing")
COUNT = 500


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"input_size": 48}, 2.0),
        ({"input_size": 48, "interpolation": "bicubic"}, 24.0),
        ({"input_size": 48, "crop_pct": 1.0, "crop_mode": "squash"}, 2.0),
        ({"input_size": 48, "use_prefetcher": True}, 2.0),
        ({"input_size": 48, "normalize": False}, 2.0),
        ({"input_size": 48, "is_training": True, "no_aug": True}, 2.0),
    ],
    ids=str,
)
def test_evaluation_agrees(options: dict[str, Any], limit: float) -> None:
    chain, image = data.create_transform(**options), photo(90, 120)
    recipe = T.Recipe.of(chain, input_kind="pil")
    assert recipe.rest == (), recipe.rest_reason
    ours, theirs = made(recipe, image), chain(Image.fromarray(image))
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    unit = 255 * 0.229 if theirs.is_floating_point() else 1.0
    assert float((ours.double() - theirs.double()).abs().max()) * unit <= limit + 0.01


def test_training_is_lowered_whole() -> None:
    chain = data.create_transform(48, is_training=True, scale=(0.1, 0.9), ratio=(0.8, 1.2), hflip=0.3, vflip=0.2,
                                  color_jitter=0.3, color_jitter_prob=0.6, grayscale_prob=0.1, gaussian_blur_prob=0.2,
                                  interpolation="bicubic", re_prob=0.4, re_mode="pixel")  # fmt: skip
    recipe = T.Recipe.of(chain, input_kind="pil")
    low, high = 0.02, 1 / 3
    assert recipe.transforms[:-1] == (
        T.RandomResizedCrop(48, (0.1, 0.9), (0.8, 1.2), "bicubic"), T.RandomHorizontalFlip(0.3), T.RandomVerticalFlip(0.2),
        T.RandomApply([T.ColorJitter(0.3, 0.3, 0.3)], 0.6), T.RandomGrayscale(0.1), T.RandomApply([T.GaussianBlur(23)], 0.2),
        T.ToDtype(torch.float32, scale=True), recipe.transforms[7],
    )  # fmt: skip
    normalize, last = recipe.transforms[7], recipe.transforms[8]
    assert isinstance(normalize, T.Normalize)
    np.testing.assert_allclose(normalize.mean, T.IMAGENET_MEAN, atol=1e-6)  # kept in float32 there
    assert isinstance(last, T.RandomErasing)
    assert (last.p, last.value, last.scale) == (0.4, "random", (low, high))
    np.testing.assert_allclose(last.ratio, (0.3, 1 / 0.3))
    assert (recipe.rest, recipe.output_kind, recipe.output_size()) == ((), "tensor", (48, 48))


@pytest.mark.parametrize(
    ("options", "reason", "num_lowered"),
    [
        ({"auto_augment": "rand-m9-mstd0.5"}, r"timm\.data\.RandAugment runs unchanged: datapipe has no such transform", 2),
        ({"interpolation": "random"}, r"RandomResizedCropAndInterpolation.*interpolation is 'random'", 0),
        ({"re_prob": 0.3, "re_mode": "rand"}, r"RandomErasing .*mode is 'rand'", 5),
        ({"re_prob": 0.3, "re_count": 3}, r"RandomErasing .*it erases 1 to 3 boxes", 5),
    ],
    ids=str,
)
def test_what_is_not_the_same_is_kept(options: dict[str, Any], reason: str, num_lowered: int) -> None:
    chain = data.create_transform(48, is_training=True, **options)
    recipe = T.Recipe.of(chain, input_kind="pil")
    assert re.search(reason, recipe.rest_reason or ""), recipe.rest_reason
    assert len(recipe.transforms) - len(recipe.rest) == num_lowered
    result = recipe.run_rest(before_rest(recipe, photo(60, 70)))
    assert isinstance(result, torch.Tensor)
    assert (result.shape, result.dtype) == ((3, 48, 48), torch.float32)


def test_center_crop_or_pad() -> None:
    for size, fill in ((20, (9, 80, 200)), ((71, 60), 7), ((15, 90), 0)):
        transform, image = their.CenterCropOrPad(size, fill=fill), photo(40, 61)
        recipe = T.Recipe.of([transform, their.MaybePILToTensor()], input_kind="pil")
        assert recipe.rest == ()
        expected = np.asarray(transform(Image.fromarray(image)))
        np.testing.assert_array_equal(made(recipe, image).permute(1, 2, 0).numpy(), expected)
    assert "padding_mode is 'edge'" in str(T.Recipe.of(their.CenterCropOrPad(3, padding_mode="edge")).rest_reason)


def test_to_tensors() -> None:
    image = photo(9, 8)
    for transform, dtype in ((their.ToTensor(), torch.float32), (their.MaybeToTensor(), torch.float32)):
        recipe = T.Recipe.of([transform, their.MaybeToTensor(), their.MaybePILToTensor()], input_kind="pil")
        assert (recipe.rest, recipe.output_dtype) == ((), dtype)
        torch.testing.assert_close(made(recipe, image), transform(Image.fromarray(image)))
    to_numpy = their.ToNumpy()
    recipe = T.Recipe.of([T.CenterCrop(4), to_numpy])
    assert recipe.rest == (to_numpy,)
    assert recipe.run_rest(before_rest(recipe, image)).shape == (3, 4, 4)


def test_crops_and_erased_boxes_are_distributed_alike() -> None:
    crop, image = their.RandomResizedCropAndInterpolation(16, (0.2, 0.8), (0.5, 1.5), "bilinear"), ramp()
    random.seed(0)
    theirs = [np.asarray(crop(Image.fromarray(image))).astype(float) for _ in range(COUNT)]
    ours = [result.permute(1, 2, 0).double().numpy() for result in many(T.Recipe.of(crop), image, COUNT)]
    for name, measure in {
        "middle": lambda pixels: pixels[:, :, 1].mean(),
        "height": lambda pixels: pixels[-2, :, 1].mean() - pixels[1, :, 1].mean(),
        "ratio": lambda pixels: (pixels[:, -2, 0] - pixels[:, 1, 0]).mean() / (pixels[-2, :, 1] - pixels[1, :, 1]).mean(),
    }.items():
        assert greatest_gap(np.array([measure(r) for r in ours]), np.array([measure(r) for r in theirs])) < gap_limit(COUNT), name

    for mode in ("const", "pixel"):
        erase, white = erasing.RandomErasing(0.6, 0.05, 0.4, 0.4, mode=mode, device="cpu"), np.full((24, 32, 3), 255, np.uint8)
        torch.manual_seed(0)
        erased = [erase(torch.ones(3, 24, 32)).numpy() for _ in range(COUNT)]
        recipe = T.Recipe.of([their.MaybeToTensor(), erase])
        assert recipe.rest == ()
        made_here = [result.numpy().round(6) for result in many(recipe, white, COUNT)]
        for name, measure in {
            "area": lambda pixels: (pixels[0] != 1).mean(),
            "height": lambda pixels: float((pixels[0] != 1).any(axis=1).sum()),
            "spread": lambda pixels: pixels.std(),
        }.items():
            gap = greatest_gap(np.array([measure(r) for r in made_here]), np.array([measure(r) for r in erased]))
            assert gap < gap_limit(COUNT), (mode, name)
