"""torchvision's random transforms, lowered, against the same objects: alike in distribution.

Both make the same image many times; a number measured on each result is compared by Kolmogorov and Smirnov's test.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from made_by_recipe import gap_limit, greatest_gap, made, many, photo, ramp
from numpy.typing import NDArray
from PIL import Image
from torchvision_reference import torchvision_v2

import datapipe.transforms as T
from datapipe.order.draws import Draws

v2 = torchvision_v2()
v1: Any = importlib.import_module("torchvision.transforms")
Pixels = NDArray[np.float64]  # (3, h, w), 0 to 255
COUNT = 500


def theirs(chain: list[Any], image: NDArray[np.uint8], count: int) -> list[Pixels]:
    torch.manual_seed(1)
    random.seed(1)
    results = []
    for _ in range(count):
        value: Any = Image.fromarray(image)
        for transform in chain:
            value = transform(value)
        results.append(scaled(torch.as_tensor(value)))
    return results


def ours(chain: list[Any], image: NDArray[np.uint8], count: int) -> list[Pixels]:
    recipe = T.Recipe.of(chain, input_kind="pil")
    assert recipe.rest == (), recipe.rest_reason
    return [scaled(result) for result in many(recipe, image, count)]


def scaled(image: torch.Tensor) -> Pixels:
    values: Pixels = (image.double() * (255 if image.is_floating_point() else 1)).numpy()
    return values.round(3)


def check_alike(
    chain: list[Any], image: NDArray[np.uint8], measures: dict[str, Callable[[Pixels], float]], count: int = COUNT
) -> list[Pixels]:
    """Raises AssertionError for a measure of which the two distributions differ; gives our results."""
    a, b = ours(chain, image, count), theirs(chain, image, count)
    for name, measure in measures.items():
        gap = greatest_gap(*(np.array([measure(result) for result in side]) for side in (a, b)))
        assert gap < gap_limit(count), f"{name}: {gap:.3f}"
    return a


def test_the_check_tells_distributions_apart() -> None:
    image, brightness = photo(16, 16), {"mean": lambda pixels: float(pixels.mean())}
    for off in ([v1.ColorJitter(brightness=0.9)], [v1.ColorJitter(brightness=(0.8, 1.6))]):
        a, b = (
            ours([*off, v1.PILToTensor()], image, COUNT),
            theirs([v1.ColorJitter(brightness=0.3), v1.PILToTensor()], image, COUNT),
        )
        gap = greatest_gap(*(np.array([brightness["mean"](result) for result in side]) for side in (a, b)))
        assert gap > gap_limit(COUNT)


# What a ramp tells of the box that was cut out of it: its middle and its extent, in pixels, of rows (green) and columns (red).
BOX: dict[str, Callable[[Pixels], float]] = {
    "middle row": lambda pixels: pixels[1].mean(),
    "middle column": lambda pixels: pixels[0].mean(),
    "height": lambda pixels: pixels[1, -2].mean() - pixels[1, 1].mean(),
    "width": lambda pixels: pixels[0, :, -2].mean() - pixels[0, :, 1].mean(),
    "area": lambda pixels: (pixels[1, -2] - pixels[1, 1]).mean() * (pixels[0, :, -2] - pixels[0, :, 1]).mean(),
    "ratio": lambda pixels: (pixels[0, :, -2] - pixels[0, :, 1]).mean() / (pixels[1, -2] - pixels[1, 1]).mean(),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "chain",
    [
        lambda: [v1.RandomResizedCrop(16), v1.ToTensor()],
        lambda: [v2.RandomResizedCrop(16, scale=(0.3, 0.6), ratio=(0.5, 1.0), interpolation=3), v2.ToImage()],
        lambda: [v2.ToImage(), v2.RandomResizedCrop(16, scale=(0.8, 1.5), ratio=(0.9, 3.0))],  # often falls back
    ],
)
def test_random_resized_crops(chain: Callable[[], list[Any]]) -> None:
    check_alike(chain(), ramp(), BOX)


def test_random_crops_and_their_padding() -> None:
    places = {"row": lambda pixels: pixels[1].mean(), "column": lambda pixels: pixels[0].mean()}
    check_alike([v1.RandomCrop(24), v1.ToTensor()], ramp(32), places)
    shares = {"padded": lambda pixels: (pixels[2] == 255).mean(), **places}
    chain = [v2.RandomCrop(30, padding=(5, 1, 3, 0), fill=(0, 0, 255)), v2.ToImage()]
    results = check_alike(chain, ramp(32), shares)
    assert max((result[2] == 255).mean() for result in results) > 0.1
    check_alike([v1.RandomCrop((40, 20), pad_if_needed=True, fill=(0, 0, 255)), v1.PILToTensor()], ramp(32), shares)


@pytest.mark.parametrize(
    "chain",
    [
        lambda: [v1.RandomHorizontalFlip(0.3), v1.RandomVerticalFlip(0.8), v1.ToTensor()],
        lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.1)],
    ],
)
def test_flips(chain: Callable[[], list[Any]]) -> None:
    check_alike(chain(), ramp(8), {"left": lambda pixels: pixels[0, 0, 0], "top": lambda pixels: pixels[1, 0, 0]})


COLOURS: dict[str, Callable[[Pixels], float]] = {
    "mean": lambda pixels: pixels.mean(),
    "contrast": lambda pixels: pixels.std(),
    "colour": lambda pixels: pixels.std(axis=0).mean(),
    "red": lambda pixels: pixels[0].mean(),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "chain",
    [
        lambda: [v1.ColorJitter(brightness=0.4), v1.ToTensor()],
        lambda: [v1.PILToTensor(), v1.ColorJitter(contrast=(0.5, 2.0))],
        lambda: [v2.ToImage(), v2.ColorJitter(saturation=0.9)],
        lambda: [v2.ToImage(), v2.ColorJitter(0.4, 0.4, 0.4, 0.2)],
        lambda: [v1.ToTensor(), v1.ColorJitter(0.4, 0.4, 0.4)],
        lambda: [v2.ToImage(), v1.RandomGrayscale(0.3)],
        lambda: [v2.GaussianBlur(5, sigma=(0.1, 3.0)), v2.ToImage()],
        lambda: [v1.RandAugment(2, 20), v1.ToTensor()],
        lambda: [v2.TrivialAugmentWide(), v2.ToImage()],
        lambda: [v1.RandomApply([v1.ColorJitter(0.5), v1.GaussianBlur(3)], p=0.7), v1.ToTensor()],
        lambda: [v2.RandomChoice([v2.ColorJitter(0.5), v2.RandomInvert(0.5), v2.Identity()], p=[0.2, 0.5, 0.3]), v2.ToImage()],
        lambda: [v1.RandomChoice([v1.RandomInvert(1.0), v1.Compose([v1.RandomInvert(1.0), v1.RandomSolarize(90, 1.0)])]),
                 v1.ToTensor()],
        lambda: [v1.RandomOrder([v1.RandomPosterize(1, 1.0), v1.ColorJitter((0.5, 0.5)), v1.RandomInvert(0.9)]), v1.ToTensor()],
        lambda: [v2.RandomSolarize(90, 0.3), v2.RandomPosterize(2, 0.4), v2.RandomAdjustSharpness(3, 0.2), v2.ToImage()],
        lambda: [v1.RandomAutocontrast(0.3), v1.RandomEqualize(0.6), v1.RandomInvert(0.2), v1.ToTensor()],
    ],
)  # fmt: skip
def test_pixel_operations(chain: Callable[[], list[Any]]) -> None:
    image = photo(24, 32) // 2 + 40
    check_alike(chain(), image.astype(np.uint8), COLOURS)


@pytest.mark.daily(1)
@pytest.mark.parametrize("make", [v1.RandomErasing, v2.RandomErasing])
def test_erasing(make: Callable[..., Any]) -> None:
    white = np.full((24, 32, 3), 255, np.uint8)

    def extent(pixels: Pixels, axis: int) -> float:
        return float((pixels[0] < 200).any(axis=axis).sum())

    measures = {
        "area": lambda pixels: (pixels[0] < 200).mean(),
        "height": lambda pixels: extent(pixels, 1),
        "width": lambda pixels: extent(pixels, 0),
        "first row": lambda pixels: float((pixels[0] < 200).any(axis=1).argmax()),
        "first column": lambda pixels: float((pixels[0] < 200).any(axis=0).argmax()),
    }
    check_alike([v1.ToTensor(), make(0.7, scale=(0.05, 0.4), ratio=(0.4, 2.0), value=0.2)], white, measures)
    noise = {"mean": lambda pixels: pixels.mean(), "spread": lambda pixels: pixels.std()}
    check_alike([v1.ToTensor(), make(0.9, value="random")], white, noise)


def test_mixing_is_drawn_as_torchvision_draws() -> None:
    chain = [v2.ToDtype(torch.float32), v2.MixUp(alpha=0.4, num_classes=2)]
    ((number, op),) = T.Recipe.of(chain).batch
    drawn = np.array([op.draw(Draws(0, 0, np.array([key])), number, (8, 8))["lam"][0] for key in range(COUNT)])
    torch.manual_seed(0)
    reference = np.array([chain[1].make_params([])["lam"] for _ in range(COUNT)])
    assert greatest_gap(drawn.astype(float), reference) < gap_limit(COUNT)


def test_a_sample_keeps_its_choice() -> None:
    """Drawn by (seed, epoch, id), also what is inside a choice."""
    chain = v2.RandomChoice([v2.ColorJitter(0.9), v2.RandomApply([v2.ColorJitter(0.9)]), v2.RandomOrder([v2.ColorJitter(0.9)])])
    recipe, image = T.Recipe.of(chain), photo(8, 8)
    first = [made(recipe, image, sample).numpy().tobytes() for sample in range(20)]
    assert [made(recipe, image, sample).numpy().tobytes() for sample in range(20)] == first
    assert len(set(first)) > 12
    assert [made(recipe, image, sample, seed=1).numpy().tobytes() for sample in range(20)] != first
