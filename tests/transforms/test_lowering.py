"""torchvision's transforms, lowered, against the same objects called with the image: chains in which nothing is random."""

from __future__ import annotations

import functools
import importlib
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from made_by_recipe import made, photo
from PIL import Image
from torchvision_reference import torchvision_v2

import datapipe.transforms as T
from benchmarks.parity_case import torchvision_resizes
from datapipe.errors import OptionError

v2 = torchvision_v2()
v1: Any = importlib.import_module("torchvision.transforms")
F1: Any = importlib.import_module("torchvision.transforms.functional")
F2: Any = importlib.import_module("torchvision.transforms.v2.functional")
presets: Any = importlib.import_module("torchvision.transforms._presets")
tv_tensors: Any = importlib.import_module("torchvision.tv_tensors")
CUBIC, MEAN, STD = v1.InterpolationMode.BICUBIC, T.IMAGENET_MEAN, T.IMAGENET_STD

# (chain, the greatest difference allowed, of 255): those that docs/transforms.md gives against PIL.
EXACT, RESIZED, CUBIC_RESIZED = 0.0001, 2.001, 24.0  # a little for floating point
ON_PIL: list[tuple[Callable[[], Any], float]] = [
    (lambda: v1.Compose([v1.Resize(64), v1.CenterCrop(56), v1.ToTensor(), v1.Normalize(MEAN, STD)]), RESIZED),
    (lambda: v2.Compose([v2.Resize(64), v2.CenterCrop(56), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]), RESIZED),
    (lambda: v1.Compose([v1.Resize(64, interpolation=CUBIC), v1.CenterCrop(56), v1.ToTensor()]), CUBIC_RESIZED),
    (lambda: [v1.Resize((50, 70), antialias=None), v1.PILToTensor()], RESIZED),
    (lambda: [v2.Resize((50, 70), antialias=False), v2.PILToTensor()], RESIZED),
    (lambda: [v1.Resize(64, max_size=70), v1.ToTensor()], RESIZED),
    (lambda: [v2.Resize(None, max_size=70), v2.ToImage()], RESIZED),
    (lambda: [v1.Resize([64]), v1.PILToTensor()], RESIZED),
    (lambda: [v1.CenterCrop(200), v1.ToTensor()], EXACT),
    (lambda: [v1.Pad((1, 2, 3, 4), fill=(9, 80, 200)), v1.ToTensor()], EXACT),
    (lambda: [v2.Pad([1, 2], fill=7), v2.ToImage(), v2.ToPureTensor()], EXACT),
    (lambda: [v1.RandomCrop((98, 128), padding=4, fill=(1, 2, 3)), v1.ToTensor()], EXACT),
    (lambda: [v2.RandomCrop((98, 136), padding=(8, 4), fill=(1, 2, 3)), v2.PILToTensor()], EXACT),
    (lambda: [v1.RandomCrop((90, 120)), v1.PILToTensor()], EXACT),
    (lambda: [v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0), v1.ToTensor()], EXACT),
    (lambda: [v2.ToImage(), v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True)], EXACT),
    (lambda: [v1.ToTensor(), v1.RandomVerticalFlip(1.0), v1.Normalize((0.5,), (0.25,))], 0.001),
    (lambda: [v1.RandomResizedCrop(40, scale=(1, 1), ratio=(4 / 3, 4 / 3)), v1.ToTensor()], RESIZED),
    (lambda: [v1.RandomResizedCrop(40, scale=(4, 4), ratio=(0.2, 0.3)), v1.ToTensor()], RESIZED),
    (lambda: [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)], EXACT),
    (lambda: [v2.PILToTensor(), v2.ToDtype(torch.float32), v2.Normalize(mean=[0.0], std=[255.0])], 0.001),
    (lambda: [v2.ToImage(), v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)], EXACT),
    (lambda: [v2.PILToTensor(), v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)], EXACT),
    (lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToDtype(torch.uint8, scale=True)], EXACT),
    (lambda: [v2.ToDtype(torch.float32, scale=True), v2.ToImage()], EXACT),  # a PIL image passes it as it is
    (lambda: [v1.Grayscale(3), v1.ToTensor()], 1.001),
    (lambda: [v2.ToImage(), v2.Grayscale(3)], EXACT),
    (lambda: [v1.ColorJitter(brightness=(1.3, 1.3)), v1.ToTensor()], 1.001),
    (lambda: [v1.ColorJitter(contrast=(0.7, 0.7)), v1.ToTensor()], 1.001),
    (lambda: [v2.ToImage(), v2.ColorJitter(saturation=(1.4, 1.4))], 1.001),
    (lambda: [v1.GaussianBlur(5, sigma=(1.5, 1.5)), v1.ToTensor()], 1.001),
    (lambda: [v1.RandomInvert(1.0), v1.RandomPosterize(4, 1.0), v1.RandomSolarize(90, 1.0), v1.ToTensor()], EXACT),
    (lambda: [v2.ToImage(), v2.RandomEqualize(1.0), v2.RandomAutocontrast(1.0), v2.RandomAdjustSharpness(1.7, 1.0)], 1.0),
    (lambda: [v1.RandomApply([v1.RandomInvert(1.0)], p=1.0), v1.ToTensor()], EXACT),
    (lambda: [v2.RandomApply([v2.RandomInvert(1.0), v2.Identity()], p=0.0), v2.ToImage()], EXACT),
    (lambda: [v2.RandomChoice([v2.Identity(), v2.Compose([v2.RandomInvert(1.0), v2.RandomSolarize(90, 1.0)])], p=[0, 1]),
              v2.ToImage()], EXACT),
    (lambda: [v1.RandomOrder([v1.RandomInvert(1.0), torch.nn.Identity()]), v1.ToTensor()], EXACT),
    (lambda: torch.nn.Sequential(v2.Resize(64), v2.PILToTensor(), torch.nn.Identity()), RESIZED),
    (lambda: [functools.partial(F1.resize, size=64), functools.partial(F1.center_crop, output_size=50), F1.to_tensor], RESIZED),
    (lambda: [F1.hflip, F2.pil_to_tensor, functools.partial(F2.to_dtype, dtype=torch.float32, scale=True),
              functools.partial(F2.normalize, mean=[0.5] * 3, std=[0.5] * 3)], 0.001),
    (lambda: presets.ImageClassification(crop_size=56, resize_size=64), RESIZED),
]  # fmt: skip


def called(chain: Any, image: Any) -> torch.Tensor:
    """What the user's own objects make of the image."""
    for transform in chain if isinstance(chain, list) else [chain]:
        image = transform(image)
    return torch.as_tensor(image)


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The greatest difference, of 255; of normalised images (by 0.224 to 0.25) in the units of those."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    unit = 1.0 if not theirs.is_floating_point() else 255.0 if theirs.min() >= 0 else 255 * 0.224
    return float((ours.double() - theirs.double()).abs().max()) * unit


@pytest.mark.parametrize(("make", "limit"), ON_PIL, ids=[str(number) for number in range(len(ON_PIL))])
def test_chains_on_pil_images_agree(make: Callable[[], Any], limit: float) -> None:
    chain = make()
    recipe = T.Recipe.of(chain, input_kind="pil")
    assert recipe.rest == (), recipe.rest_reason
    assert recipe.output_kind in ("tensor", "image")
    for height, width in ((90, 120), (120, 90)) if limit == RESIZED else ((90, 120),):
        image = photo(height, width)
        assert distance(made(recipe, image), called(chain, Image.fromarray(image))) <= limit


ON_TENSORS: list[tuple[Callable[[], Any], float]] = [
    (
        lambda: [v2.Resize(64), v2.CenterCrop(56), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
        0.001 if torchvision_resizes() == "integers" else 1.001,
    ),
    (lambda: [v2.Resize(64, interpolation="bicubic"), v2.CenterCrop(80)], EXACT),
    (lambda: [v1.Resize(64, interpolation=CUBIC), v1.ConvertImageDtype(torch.float32)], CUBIC_RESIZED),
    (lambda: [v1.ColorJitter(0, 0, 0, (0.2, 0.2)), v2.RandomErasing(0.0)], 1.0),
    (lambda: [v2.ToTensor(), v2.RGB(), v2.ToDtype({torch.Tensor: torch.float32}, scale=True)], EXACT),
]


@pytest.mark.parametrize(("make", "limit"), ON_TENSORS, ids=[str(number) for number in range(len(ON_TENSORS))])
def test_chains_on_tensors_agree(make: Callable[[], Any], limit: float) -> None:
    torchvision_v2(measured=True)
    chain, image = make(), photo(90, 120)
    for kind in ("tensor", "any"):
        recipe = T.Recipe.of(chain, input_kind=kind)  # type: ignore[arg-type]
        if kind == "any" and isinstance(chain[0], v2.ToTensor):
            continue  # takes PIL images, too, and makes something else of them
        assert recipe.rest == (), recipe.rest_reason
        assert distance(made(recipe, image), called(chain, torch.from_numpy(image).permute(2, 0, 1))) <= limit


def test_what_is_lowered_is_the_same_recipe() -> None:
    """So it draws the same, too: what has nothing to do does not count."""
    native = [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ColorJitter(0.4), T.ToDtype(torch.float32, scale=True),
              T.Normalize(MEAN, STD), T.RandomErasing(0.3)]  # fmt: skip
    theirs = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4),
                         v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.RandomErasing(0.3)])  # fmt: skip
    older = v1.Compose([v1.RandomResizedCrop(32), v1.Compose([v1.RandomHorizontalFlip()]), v1.ColorJitter(0.4),
                        v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(0.3)])  # fmt: skip
    mixed = [v1.RandomResizedCrop(32), T.RandomHorizontalFlip(), [v2.ColorJitter(0.4)], v1.ToTensor(), native[4], native[5]]
    assert T.Recipe.of(native) == T.Recipe.of(theirs) == T.Recipe.of(older) == T.Recipe.of(mixed)
    image = photo(80, 70)
    assert torch.equal(made(T.Recipe.of(native), image, 3), made(T.Recipe.of(theirs), image, 3))
    assert pickle.loads(pickle.dumps(T.Recipe.of(theirs))) == T.Recipe.of(native)


def test_arguments_arrive() -> None:
    """Every transform of the table by its arguments, none of them at its default."""
    pairs: list[tuple[Any, Any]] = [
        (v1.Resize(8, CUBIC, 9), T.Resize(8, "bicubic", 9)),
        (v2.RandomResizedCrop((3, 4), (0.2, 0.9), (0.5, 2), 3), T.RandomResizedCrop((3, 4), (0.2, 0.9), (0.5, 2), "bicubic")),
        (v1.RandomCrop(5, (1, 2, 3, 4), True, 9), T.RandomCrop(5, (1, 2, 3, 4), True, 9)),
        (v2.RandomCrop(5, (1, 2, 3, 4), True, 9), T.RandomCrop(5, (1, 2, 3, 4), True, 9)),
        (v1.RandomHorizontalFlip(0.3), T.RandomHorizontalFlip(0.3)),
        (v2.RandomVerticalFlip(0.3), T.RandomVerticalFlip(0.3)),
        (v1.ColorJitter(0.1, (0.2, 2), 0.3, 0.4), T.ColorJitter(0.1, (0.2, 2), 0.3, 0.4)),
        (v2.RandomGrayscale(0.7), T.RandomGrayscale(0.7)),
        (v1.GaussianBlur((3, 5), 0.7), T.GaussianBlur((3, 5), 0.7)),
        (v2.GaussianBlur((3, 5), (0.2, 0.7)), T.GaussianBlur((3, 5), (0.2, 0.7))),
        (v1.RandAugment(3, 4, 12, fill=8), T.RandAugment(3, 4, 12, fill=8)),
        (v2.TrivialAugmentWide(12, fill=[1, 2, 3]), T.TrivialAugmentWide(12, fill=(1, 2, 3))),
        (v1.RandomErasing(0.2, (0.1, 0.2), (0.5, 2), "random"), None),
        (v2.RandomErasing(0.2, (0.1, 0.2), (0.5, 2), (1, 2, 3)), T.RandomErasing(0.2, (0.1, 0.2), (0.5, 2), (1, 2, 3))),
        (v1.RandomPosterize(3, 0.2), T.RandomPosterize(3, 0.2)),
        (v2.RandomSolarize(30, 0.2), T.RandomSolarize(30, 0.2)),
        (v1.RandomAdjustSharpness(3, 0.2), T.RandomAdjustSharpness(3, 0.2)),
        (v2.RandomApply([v2.ColorJitter(0.3)], 0.2), T.RandomApply([T.ColorJitter(0.3)], 0.2)),
        (v1.RandomChoice([v1.RandomInvert(), v1.RandomEqualize()], [3, 1]),
         T.RandomChoice([T.RandomInvert(), T.RandomEqualize()], [3, 1])),
        (v2.RandomOrder([v2.RandomInvert(), v2.RandomAutocontrast()]), T.RandomOrder([T.RandomInvert(), T.RandomAutocontrast()])),
        (v1.RandomApply(torch.nn.ModuleList([v1.GaussianBlur(3)])), T.RandomApply([T.GaussianBlur(3)])),
    ]  # fmt: skip
    for theirs, ours in pairs:
        recipe = T.Recipe.of(theirs)
        if ours is None:
            assert "uint8 cannot hold" in str(recipe.rest_reason)
            ours, recipe = T.RandomErasing(0.2, (0.1, 0.2), (0.5, 2), "random"), T.Recipe.of([v1.ToTensor(), theirs])
        assert recipe.transforms[-1] == ours
        assert recipe.rest == ()
    mix = T.Recipe.of([v2.ToDtype(torch.float32), v2.MixUp(alpha=0.3, num_classes=7), v2.CutMix(alpha=0.4, num_classes=7)])
    assert [op for _, op in mix.batch] == [T.MixUp(alpha=0.3, num_classes=7), T.CutMix(alpha=0.4, num_classes=7)]


class Squared(v1.Resize):  # type: ignore[misc,name-defined]
    """A subclass: it may do anything."""


def with_hook() -> Any:
    crop = v1.CenterCrop(8)
    crop.register_forward_hook(lambda module, given, got: got)
    return crop


def with_attribute() -> Any:
    crop = v1.CenterCrop(8)
    crop.offset = 3
    return crop


KEPT: list[tuple[Callable[[], Any], str]] = [
    (lambda: Squared(8), r"Squared runs unchanged: datapipe has no such transform"),
    (lambda: v1.Resize(8, v1.InterpolationMode.NEAREST), r"torchvision\.transforms\.Resize .*interpolation is <.*NEAREST"),
    (lambda: v2.RandomResizedCrop(8, interpolation="lanczos"), r"v2\.RandomResizedCrop .*interpolation is 'lanczos'"),
    (lambda: [v2.ToImage(), v2.Resize(8, antialias=False)], r"antialias is False"),
    (lambda: v1.Pad(2, padding_mode="reflect"), r"padding_mode is 'reflect'"),
    (lambda: v2.Pad(2, fill={torch.Tensor: 3}), r"fill is \{"),
    (lambda: v1.Pad(-2), r"padding is -2"),
    (lambda: v1.RandomCrop(8, padding=2, padding_mode="edge"), r"padding_mode is 'edge'"),
    (lambda: v1.Grayscale(), r"num_output_channels is 1"),
    (lambda: v1.RandAugment(interpolation=v1.InterpolationMode.BILINEAR), r"only 'nearest'"),
    (lambda: v2.Lambda(lambda image: image), r"v2\.Lambda runs unchanged: datapipe has no such transform"),
    (lambda: lambda image: image, r"<lambda> runs unchanged"),
    (
        lambda: functools.partial(F1.resize, size=8, interpolation=v1.InterpolationMode.BOX),
        r"a partial of .*resize.*interpolation",
    ),
    (lambda: functools.partial(F1.resize, 8), r"a partial of .*resize"),
    (lambda: functools.partial(F1.resize, wide=8), r"its arguments are not supported"),
    (lambda: with_hook(), r"hooks"),
    (lambda: with_attribute(), r"offset"),
    (lambda: [v1.ToTensor(), v1.Resize(8)], r"Resize\(8\) comes after ToDtype.*swapping them would change the result"),
    (lambda: [v1.ColorJitter(0.3), v1.RandomCrop(8, padding=2)], r"RandomCrop.* comes after ColorJitter"),
    (lambda: [v1.ToTensor(), v1.RandAugment()], r"RandAugment.* works on uint8 images, but gets float32 images"),
    (lambda: [v1.ToTensor(), v1.ToTensor()], r"it takes PIL images but gets a tensor"),
    (lambda: v1.RandomErasing(), r"it takes tensors but gets a PIL image"),
    (lambda: v1.RandomApply([v1.RandomHorizontalFlip()]), r"RandomHorizontalFlip within it is not a pixel operation"),
    (lambda: v2.RandomChoice([v2.ToImage(), v2.Identity()]), r"ToImage within it makes another kind of image"),
    (lambda: v2.RandomOrder([v2.RandomInvert(), len]), r"datapipe has no such transform"),
    (lambda: v2.RandomApply([T.ToDtype(torch.float32)]), r"changes the dtype"),
    (lambda: v2.ToDtype({tv_tensors.Mask: torch.int64}), r"there is none for images"),
    (lambda: [v2.ToImage(), v2.ToDtype(torch.int32)], r"dtype is torch\.int32"),
    (lambda: v2.AutoAugment(), r"datapipe has no such transform"),
]


@pytest.mark.parametrize(("make", "reason"), KEPT, ids=[reason for _, reason in KEPT])
def test_what_is_not_the_same_is_kept(make: Callable[[], Any], reason: str) -> None:
    chain = make()
    kind = "tensor" if "none for" in reason else "pil"
    recipe = T.Recipe.of([v1.RandomHorizontalFlip(1.0), chain, v1.PILToTensor()], input_kind=kind)  # type: ignore[arg-type]
    last = chain[-1] if isinstance(chain, list) else chain
    assert recipe.rest[-2] is last
    assert re.search(reason, recipe.rest_reason or ""), recipe.rest_reason
    assert recipe.transforms[0] == T.RandomHorizontalFlip(1.0), "what comes before it is still lowered"
    assert recipe.output_kind is None


def test_what_must_fail_is_refused_at_once() -> None:
    for chain, says in (
        ([v1.Resize(8), v1.Normalize(MEAN, STD)], r"Normalize.*gets uint8 images; put ToDtype"),
        ([v2.ToImage(), v2.Normalize(MEAN, STD)], r"Normalize.*gets uint8 images"),
        ([v2.MixUp(num_classes=3)], r"MixUp.*floating point"),
        ([v2.ToDtype(torch.float32), v2.MixUp()], r"MixUp: num_classes is None"),
        ([v2.ToDtype(torch.float32), v2.CutMix(num_classes=3, labels_getter=len)], r"CutMix: labels_getter is your own"),
        ([v2.ToDtype(torch.float32), v2.CutMix(num_classes=3), v2.RandomErasing()], r"RandomErasing comes after CutMix"),
        ([len, v2.CutMix(num_classes=3)], r"CutMix mixes whole batches but comes after builtins\.len, which is called per"),
        (
            [len, T.CenterCrop(3)],
            r"CenterCrop\(3\) comes after builtins\.len; from there on.*move it before that, or use torchvision's",
        ),
        ([T.CenterCrop(3), T.Recipe.of([len])], r"a Recipe that ends with builtins\.len cannot be part of a list"),
        ([v1.Resize], r"Resize is a class; pass an instance"),
    ):
        with pytest.raises(OptionError, match=says):
            T.Recipe.of(chain)


def test_explain_says_what_was_lowered_from_what() -> None:
    chain = v2.Compose([v2.ToImage(), v2.Resize(30), T.CenterCrop(24), v2.ToDtype(torch.float32, scale=True),
                        v2.Normalize(MEAN, STD), v2.RandomErasing()])  # fmt: skip
    assert T.Recipe.of(chain).explain() == [
        "with the decode: Resize(30), from torchvision.transforms.v2.Resize",
        "with the decode: CenterCrop(24)",
        "on blocks of images: ToDtype(torch.float32, scale=True) + Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), "
        "from torchvision.transforms.v2.ToDtype + torchvision.transforms.v2.Normalize (one multiply-add)",
        "on blocks of images: RandomErasing(), from torchvision.transforms.v2.RandomErasing",
        "nothing to do: torchvision.transforms.v2.ToImage",
        "out: float32 RGB, 24 x 24, channels_last",
    ]
    assert T.Recipe.of([v1.Resize(30), v1.FiveCrop(9), len]).explain() == [
        "with the decode: Resize(30), from torchvision.transforms.Resize",
        "per sample: torchvision.transforms.FiveCrop, builtins.len",
        "  because torchvision.transforms.FiveCrop runs unchanged: datapipe has no such transform",
        "out: what builtins.len returns",
    ]


def test_a_nested_recipe_keeps_its_kind() -> None:
    inner = T.Recipe.of(v2.ToImage())
    assert inner.output_kind == "image"
    assert T.Recipe.of([inner, v2.Resize(9, antialias=False)]).rest_input == "tensor"
    assert T.Recipe.of([T.Recipe.of(v1.ToTensor()), v1.ToTensor()]).rest_input == "tensor"
    with_rest = T.Recipe.of([v1.CenterCrop(4), np.asarray])
    assert T.Recipe.of(with_rest) is with_rest
