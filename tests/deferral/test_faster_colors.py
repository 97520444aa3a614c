"""Operations computed in another way than by torchvision give what torchvision gives."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torchvision_reference import torchvision_v2

from datapipe.deferral.execution import blurred, hue_shifted

torchvision_v2()  # skips these tests where torchvision is not installed

import torchvision.transforms.functional as F  # noqa: E402


def every_eighth_color(first: int) -> NDArray[np.uint8]:
    """Return (1024, 2048, 3): all reds of that remainder, and with them all greens and blues."""
    red, green, blue = np.mgrid[first:256:8, 0:256, 0:256].astype(np.uint8)
    return np.stack([red, green, blue], -1).reshape(1024, 2048, 3)


@pytest.mark.parametrize("first", range(8))
def test_every_color_is_shifted_as_by_torchvision(first: int) -> None:
    image = Image.fromarray(every_eighth_color(first))
    factor = (-0.5, -0.31, -0.1, -0.004, 0.0, 0.07, 0.2, 0.5)[first]
    assert np.array_equal(hue_shifted(image, factor), F.adjust_hue(image, factor))


@pytest.mark.parametrize("factor", np.linspace(-0.5, 0.5, 21))
@pytest.mark.parametrize("size", [(1, 1), (64, 48)])
def test_every_shift_is_torchvisions(factor: float, size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8))
    assert np.array_equal(hue_shifted(image, float(factor)), F.adjust_hue(image, float(factor)))


@pytest.mark.parametrize(("size", "sigma"), [(23, 0.1), (23, 1.1), (23, 2.0), (3, 0.8)])
def test_a_blur_is_torchvisions_within_one(size: int, sigma: float) -> None:
    image = Image.fromarray(np.random.default_rng(4).integers(0, 256, (40, 56, 3), np.uint8))
    ours, theirs = (
        np.array(each).astype(int)
        for each in (blurred(image, [size] * 2, [sigma] * 2), F.gaussian_blur(image, [size] * 2, [sigma] * 2))
    )
    assert np.abs(ours - theirs).max() <= 1
