"""What is not lowered: called with one image, as its own library would call it."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from made_by_recipe import before_rest, made, photo
from PIL import Image
from torchvision_reference import torchvision_v2

import datapipe.transforms as T
from datapipe.errors import OptionError

v2 = torchvision_v2()
v1: Any = importlib.import_module("torchvision.transforms")
tv_tensors: Any = importlib.import_module("torchvision.tv_tensors")


class Seen:
    """A callable that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def __call__(self, image: Any) -> Any:
        self.given.append(image)
        return image


def run(recipe: T.Recipe, image: np.ndarray[Any, Any]) -> Any:
    return recipe.run_rest(before_rest(recipe, image))


def test_nothing_lowered_hands_over_the_whole_image() -> None:
    seen, image = Seen(), photo(33, 21)
    recipe = T.Recipe.of(seen)
    assert (recipe.rest, recipe.rest_input, recipe.geometry, recipe.pixels) == ((seen,), "pil", (), ())
    given = run(recipe, image)
    assert seen.given == [given]
    assert isinstance(given, Image.Image)
    assert given.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(given), image)


def test_a_rest_behind_lowered_transforms_gets_what_they_leave() -> None:
    image, seen = photo(40, 50), Seen()
    on_pil = T.Recipe.of(v1.Compose([v1.CenterCrop(24), v1.RandomInvert(1.0), seen, v1.ToTensor()]))
    result = run(on_pil, image)
    assert isinstance(seen.given[0], Image.Image)
    expected = 255 - image[8:32, 13:37]
    np.testing.assert_array_equal(np.asarray(seen.given[0]), expected)
    assert torch.equal(result, v1.ToTensor()(Image.fromarray(expected)))
    assert [type(transform).__name__ for transform in on_pil.rest] == ["Seen", "ToTensor"], "nothing is lowered behind it"

    on_tensor = T.Recipe.of([v1.CenterCrop(24), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3), seen])
    result = run(on_tensor, image)
    assert on_tensor.rest_input == "tensor"
    assert on_tensor.output_dtype == torch.float32
    assert result.shape == (3, 24, 24)
    assert result.is_contiguous()
    assert torch.equal(result, made(on_tensor, image))


def test_a_tv_tensor_stays_one() -> None:
    seen, pure = Seen(), Seen()
    run(T.Recipe.of([v2.ToImage(), v2.CenterCrop(9), seen]), photo(12, 13))
    run(T.Recipe.of([v2.ToImage(), v2.CenterCrop(9), v2.ToPureTensor(), pure]), photo(12, 13))
    assert type(seen.given[0]) is tv_tensors.Image
    assert type(pure.given[0]) is torch.Tensor
    assert torch.equal(seen.given[0].as_subclass(torch.Tensor), pure.given[0])


def test_the_whole_chain_is_what_it_would_be_without_us() -> None:
    image = photo(60, 80)
    chain = v1.Compose(
        [
            v1.CenterCrop(48),
            v1.RandomHorizontalFlip(1.0),
            v1.FiveCrop(20),
            v1.Lambda(lambda crops: torch.stack([v1.functional.to_tensor(crop) for crop in crops])),
            functools.partial(torch.mean, dim=0),
        ]
    )
    assert torch.equal(run(T.Recipe.of(chain), image), chain(Image.fromarray(image)))


def test_sizes_are_not_known() -> None:
    recipe = T.Recipe.of([T.CenterCrop(8), np.asarray])
    assert recipe.output_size() is None
    assert recipe.output_size((8, 8)) is None
    with pytest.raises(OptionError, match=r"images are made by numpy\.asarray, so their sizes are unknown"):
        recipe.check_equal_sizes((8, 8))
    assert recipe.geometry_alone().output_size() == (8, 8)
    assert recipe.geometry_alone().rest == ()
    assert recipe != T.Recipe.of(T.CenterCrop(8))


def test_what_the_users_code_raises_comes_out() -> None:
    def fail(image: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(T.Recipe.of([T.CenterCrop(8), fail]), photo(9, 9))


# -- albumentations --------------------------------------------------------------------------------


class Brighter:
    """Called as albumentations' transforms are, and defined in a module of that name."""

    __module__ = "albumentations.made.up"

    def __init__(self) -> None:
        self.transforms: list[Any] = []

    def __call__(self, *, image: Any) -> dict[str, Any]:
        assert isinstance(image, np.ndarray)
        assert image.flags.c_contiguous
        assert image.flags.writeable
        return {"image": image // 2 + 90 if image.dtype == np.uint8 else image + 1, "mask": None}


class Brightest(Brighter):
    """One of the user's own, derived from it."""


@pytest.mark.parametrize("make", [Brighter, Brightest])
def test_albumentations_is_called_with_arrays(make: type[Brighter]) -> None:
    image = photo(20, 30)
    result = run(T.Recipe.of([v1.CenterCrop(16), make(), v2.ToImage()]), image)
    assert torch.equal(torch.as_tensor(result).permute(1, 2, 0), torch.from_numpy(image[2:18, 7:23] // 2 + 90))
    result = run(T.Recipe.of([np.array, Image.fromarray, make()]), image)
    np.testing.assert_array_equal(result, image // 2 + 90)
    result = run(T.Recipe.of([v1.ToTensor(), make()]), image)
    np.testing.assert_allclose(result, image / 255 + 1, atol=1e-6)


def test_a_compose_of_albumentations_is_not_taken_apart() -> None:
    compose = type("Compose", (Brighter,), {"__module__": "albumentations.core.composition"})()
    compose.transforms = [v1.CenterCrop(3)]
    assert T.Recipe.of([compose]).rest == (compose,)
    others = type("Compose", (), {"transforms": [v1.CenterCrop(3)], "__call__": lambda self, image: image})()
    assert T.Recipe.of([others]).rest == (others,)


def test_the_real_albumentations() -> None:
    albumentations: Any = pytest.importorskip("albumentations", reason="albumentations is not installed")
    image = photo(60, 80)
    crop = albumentations.Compose([albumentations.CenterCrop(32, 40), albumentations.HorizontalFlip(p=1.0)])
    result = run(T.Recipe.of([v1.Resize((50, 60)), crop, albumentations.InvertImg(p=1.0), v2.ToImage()]), image)
    resized = made(T.Recipe.of(T.Resize((50, 60))), image).permute(1, 2, 0)
    expected = 255 - resized[9:41, 10:50].flip(1)
    assert torch.equal(torch.as_tensor(result).permute(1, 2, 0), expected)


@pytest.mark.nightly
def test_no_other_library_is_imported() -> None:
    """What is known of them is known by name."""
    code = "import datapipe.transforms, sys; print([m for m in ('torchvision', 'timm', 'albumentations') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_objects_are_described_by_name() -> None:
    def inner(image: Any) -> Any:
        return image

    for thing, words in (
        (inner, "<locals>.inner"),
        (functools.partial(inner), "a partial of "),
        (Seen().__call__, "test_per_sample.Seen.__call__"),
        (np.asarray, "numpy.asarray"),
        (types.MethodType(inner, Seen()), "Seen.inner"),
    ):
        recipe = T.Recipe.of(thing)
        assert words in str(recipe.rest_reason)
