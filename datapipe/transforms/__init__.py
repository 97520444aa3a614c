"""Image transforms with the names, defaults and meaning of torchvision.transforms.v2, and features of sound."""

from __future__ import annotations

from datapipe.transforms.geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from datapipe.transforms.log_mel import LogMel
from datapipe.transforms.pixels.auto_augment import RandAugment, TrivialAugmentWide
from datapipe.transforms.pixels.blur import GaussianBlur
from datapipe.transforms.pixels.color import (
    ColorJitter,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from datapipe.transforms.pixels.compound import RandomApply, RandomChoice, RandomOrder
from datapipe.transforms.pixels.dtype import IMAGENET_MEAN, IMAGENET_STD, Normalize, ToDtype
from datapipe.transforms.pixels.erasing import RandomErasing
from datapipe.transforms.pixels.mix import CutMix, MixUp
from datapipe.transforms.recipe import Recipe

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "GaussianBlur",
    "LogMel",
    "MixUp",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Recipe",
    "Resize",
    "ToDtype",
    "TrivialAugmentWide",
]
