"""torchvision's own transforms, also where its compiled operators do not fit this build of torch."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD

_schemas: list[Any] = []  # a library's definitions end with it


def import_torchvision() -> Any:
    """Import torchvision. Its import names two operators that only its compiled part defines, so where
    that part was built for another torch (a CUDA build beside torch for the CPU) they are declared first."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _schemas.append(library)
        return importlib.import_module("torchvision")


def transforms_of() -> Any:
    """PIL image -> (3, 224, 224) float32: the lines of torchvision's ImageNet recipe."""
    import_torchvision()
    transforms = importlib.import_module("torchvision.transforms")
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
