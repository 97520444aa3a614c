"""What public training code makes of an image, written anew in its style: each idiom that deferral has to serve or leave alone.

Each is a function from an image of Pillow's to tensors or an array, in random crops of a photograph.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps

from benchmarks.contenders.torchvision_transforms import import_torchvision, transforms_of
from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD

Recipe = Callable[[Image.Image], Any]


def recipe_of(kind: str) -> Recipe:
    """Return the recipe of a kind. Raises KeyError for one that is not here.

    torchvision is imported here, not by the recipes, whose code is looked at.
    """
    import_torchvision()
    importlib.import_module("torchvision.transforms")
    return _RECIPES[kind]()


class TwoViews:
    """Two views of one image, by SimCLR's recipe."""

    def __init__(self) -> None:
        transforms = _transforms()
        jitter = transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)
        self.view = transforms.Compose(
            [
                transforms.RandomResizedCrop(CROP),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([jitter], p=0.8),
                transforms.RandomGrayscale(0.2),
                transforms.RandomApply([transforms.GaussianBlur(23)], p=0.5),
                transforms.ToTensor(),
                transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
            ]
        )

    def __call__(self, image: Image.Image) -> list[Any]:
        return [self.view(image), self.view(image)]


class TenCrops:
    """Two large and eight small crops of one image, with Pillow's blur and solarisation, as DINO makes them."""

    def __init__(self) -> None:
        transforms = _transforms()
        colors = [
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            transforms.RandomGrayscale(0.2),
        ]
        end = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        bicubic = transforms.InterpolationMode.BICUBIC
        large = transforms.RandomResizedCrop(CROP, scale=(0.4, 1.0), interpolation=bicubic)
        small = transforms.RandomResizedCrop(96, scale=(0.05, 0.4), interpolation=bicubic)
        self.crops = [
            transforms.Compose([large, *colors, _blurred, *end]),
            transforms.Compose([large, *colors, transforms.RandomApply([_solarized], p=0.2), *end]),
            *[transforms.Compose([small, *colors, transforms.RandomApply([_blurred], p=0.5), *end])] * 8,
        ]

    def __call__(self, image: Image.Image) -> list[Any]:
        return [crop(image) for crop in self.crops]


class Pyramid:
    """Four sizes of one image, each made of the one before, as models of depth take them."""

    def __init__(self) -> None:
        transforms = _transforms()
        self.sizes = [transforms.Resize((CROP >> level, CROP >> level)) for level in range(4)]
        self.end = transforms.Compose([transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)])

    def __call__(self, image: Image.Image) -> list[Any]:
        levels = []
        for resize in self.sizes:
            image = resize(image)
            levels.append(self.end(image))
        return levels


class AsArray:
    """A resize and a crop whose last step is a numpy array, as code without torchvision's ToTensor has it."""

    def __init__(self) -> None:
        transforms = _transforms()
        self.cut = transforms.Compose([transforms.Resize((256, 256)), transforms.RandomCrop(CROP)])

    def __call__(self, image: Image.Image) -> Any:
        return torch.from_numpy(np.array(self.cut(image)).transpose(2, 0, 1).astype(np.float32) / 127.5 - 1)


class Touching:
    """The usual recipe after something that looks at every pixel."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Image.Image) -> Any:
        return self.transform(Image.fromarray(np.asarray(image)))


def _one_mean() -> Recipe:
    """One mean for three channels, as examples of diffusion models have it."""
    transforms = _transforms()
    cut = [transforms.Resize(256), transforms.RandomCrop(CROP), transforms.RandomHorizontalFlip()]
    return transforms.Compose([*cut, transforms.ToTensor(), transforms.Normalize([0.5], [0.5])])  # type: ignore[no-any-return]


def _converted() -> Recipe:
    """Bytes that `convert_image_dtype` makes floats of, as torchvision's own references do."""
    transforms = _transforms()
    cut = [transforms.RandomResizedCrop(CROP), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    end = [transforms.ConvertImageDtype(torch.float32), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    return transforms.Compose([*cut, *end])  # type: ignore[no-any-return]


def mixed(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
    """A `collate_fn` that draws: batches mixed with themselves, as MixUp does."""
    images, labels = torch.utils.data.default_collate(samples)
    share = float(np.random.beta(0.2, 0.2))
    return images * share + images[torch.randperm(len(images))] * (1 - share), labels


def _blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius=float(np.random.uniform(0.1, 2.0))))


def _solarized(image: Image.Image) -> Image.Image:
    return ImageOps.solarize(image)


def _transforms() -> Any:
    return sys.modules["torchvision.transforms"]


_RECIPES: dict[str, Callable[[], Recipe]] = {
    "two-crops": TwoViews,
    "ten-crops": TenCrops,
    "pyramid": Pyramid,
    "one-mean": _one_mean,
    "convert-dtype": _converted,
    "array": AsArray,
    "pixels": lambda: Touching(transforms_of()),
}
