"""Transforms said by name and value are equal ones again, and nothing but transforms comes of names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from fixtures import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import transforms as T
from datapipe.errors import OptionError
from datapipe.transforms import Recipe
from datapipe.transforms.naming import named, recipe_named

FLOATS = [T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
LISTS: list[list[Any]] = [
    [],
    [T.Resize(256, interpolation="bicubic"), T.CenterCrop((224, 200)), T.Pad(4, fill=(1, 2, 3)), T.RandomCrop(200, padding=4)],
    [T.Resize(None, max_size=300), T.RandomVerticalFlip(0.3), T.RandAugment(1, 3), T.TrivialAugmentWide()],
    [T.RandomResizedCrop(24, scale=(0.3, 0.9)), T.RandomHorizontalFlip(), T.RandomAdjustSharpness(2.0), T.RandomAutocontrast()],
    [T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8), T.RandomGrayscale(0.2), T.GaussianBlur(9, (0.1, 2.0))],
    [
        T.RandomChoice([T.RandomSolarize(128), T.RandomEqualize()], p=[1, 3]),
        T.RandomOrder([T.RandomInvert(), T.RandomPosterize(4)]),
    ],
    [T.RandomResizedCrop(24), *FLOATS, T.RandomErasing(0.2), T.MixUp(alpha=0.2, num_classes=10), T.CutMix(num_classes=10)],
    [T.ToDtype(torch.bfloat16, scale=True)],
]


def through(recipe: Recipe) -> Recipe:
    return recipe_named(msgspec.msgpack.decode(msgspec.msgpack.encode(named(recipe))))


@pytest.mark.parametrize("transforms", LISTS)
def test_transforms_come_out_equal(transforms: list[Any]) -> None:
    recipe = Recipe.of(transforms)
    found = through(recipe)
    assert found == recipe
    assert found.explain() == recipe.explain()
    assert [*found.geometry, *found.pixels] == [*recipe.geometry, *recipe.pixels]


def test_all_transforms_are_tried() -> None:
    tried = {type(op).__name__ for transforms in LISTS for op in transforms}
    tried |= {type(op).__name__ for ops in LISTS for outer in ops for op in getattr(outer, "transforms", ())}
    assert tried == {name for name in T.__all__ if name[0].isupper() and name not in ("Recipe", "LogMel")} - {
        "IMAGENET_MEAN", "IMAGENET_STD"
    }  # fmt: skip


def test_code_is_not_sent() -> None:
    with pytest.raises(OptionError, match="it is code, which is not sent"):
        named(Recipe.of([lambda image: image]))


@pytest.mark.parametrize(
    "data",
    [
        None, {}, "RandomResizedCrop", [{}], [{"transform": "Recipe"}], [{"transform": "os.system"}], [{"transform": ["Resize"]}],
        [{"transform": "Resize"}], [{"transform": "Resize", "size": "x"}], [{"transform": "Resize", "size": 3, "self": 1}],
        [{"transform": "LogMel"}], [{"dtype of torch": "float32"}], [{"dtype of torch": "object"}], [1],
        [{"transform": "RandomApply", "transforms": [{"transform": "Resize", "size": 3}]}],
        [{"transform": "ToDtype", "dtype": "float32"}], [{"transform": "RandomApply", "transforms": 7}],
    ],
)  # fmt: skip
def test_what_names_no_transform_is_refused(data: object) -> None:
    with pytest.raises(OptionError):
        recipe_named(data)


PLAIN = st.none() | st.booleans() | st.integers(-9, 400) | st.floats() | st.text(max_size=5)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
ARGUMENTS = ("size", "p", "mean", "std", "dtype", "scale", "ratio", "padding", "fill", "brightness", "kernel_size", "transforms")


@settings(quick)
@given(st.sampled_from(sorted(T.__all__)), st.dictionaries(st.sampled_from(ARGUMENTS), VALUES, max_size=3))
def test_values_are_checked(name: str, values: dict[str, Any]) -> None:
    try:
        recipe_named([{"transform": name, **values}])
    except OptionError:
        return
