"""FFCV with its own file format. Runs in FFCV's environment: imports neither datapipe nor torchvision."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from pathlib import Path

import numpy as np
from ffcv.fields.decoders import IntDecoder
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

from benchmarks.contenders import endlessly
from benchmarks.contenders.ffcv_write import StoredImageField
from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD, Task


def make(task: Task, *, beton: str = "ffcv.beton") -> Iterator[Sized]:
    """FFCV's ImageNet recipe, normalised on the CPU by its look-up table, the page cache in use."""
    images = [
        RandomResizedCropRGBImageDecoder((CROP, CROP)),
        RandomHorizontalFlip(),
        NormalizeImage(np.array(IMAGENET_MEAN) * 255, np.array(IMAGENET_STD) * 255, np.float32),
        ToTensor(),
        ToTorchImage(),
    ]
    loader = Loader(
        str(Path(task.data) / beton),
        batch_size=task.batch_size,
        num_workers=task.num_threads,
        os_cache=True,
        order=OrderOption.RANDOM,
        seed=task.seed,
        drop_last=True,
        custom_fields={"image": StoredImageField},
        pipelines={"image": images, "label": [IntDecoder(), ToTensor()]},
    )
    return endlessly(lambda: (batch for batch, _ in loader))
