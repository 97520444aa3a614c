"""The transforms that image classifiers are usually trained and validated with."""

from __future__ import annotations

import torch

from datapipe.errors import OptionError
from datapipe.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    CutMix,
    MixUp,
    Normalize,
    RandAugment,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    TrivialAugmentWide,
)

AUGMENTATIONS = {"none": (), "rand": (RandAugment,), "trivial": (TrivialAugmentWide,)}


def training_recipe(
    size: int, *, num_classes: int, augment: str = "none", mixup: float = 0.0, cutmix: float = 0.0
) -> list[object]:
    """A random crop of `size` pixels, flipped half the time, normalised float32; on request augmented and mixed.

    `mixup`, `cutmix`: alpha of the Beta distribution, 0 for none. Raises OptionError for both at once, for an unknown
    `augment`, and what the transforms raise.
    """
    if augment not in AUGMENTATIONS:
        raise OptionError(f"augment is {augment!r}; choose one of {', '.join(AUGMENTATIONS)}")
    if mixup and cutmix:
        raise OptionError(f"mixup={mixup} and cutmix={cutmix} would both mix each batch; pass one of them")
    mix = [MixUp(alpha=mixup, num_classes=num_classes)] if mixup else []
    cut = [CutMix(alpha=cutmix, num_classes=num_classes)] if cutmix else []
    changed = [operation() for operation in AUGMENTATIONS[augment]]
    return [RandomResizedCrop(size), RandomHorizontalFlip(), *changed, *_normalised(), *mix, *cut]


def validation_recipe(size: int) -> list[object]:
    """The middle `size` pixels of an image whose shorter side is 8/7 of that, normalised float32."""
    return [Resize(round(size * 8 / 7)), CenterCrop(size), *_normalised()]


def _normalised() -> list[object]:
    return [ToDtype(torch.float32, scale=True), Normalize(IMAGENET_MEAN, IMAGENET_STD)]
