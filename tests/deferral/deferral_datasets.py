"""Datasets as people write them: a class with Pillow, transforms and chance of its own. Shared by the tests of deferral."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import importlib
import io
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import encode, picture
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe.deferral.dataset import DeferringDataset
from datapipe.deferral.requests import BatchRequest

v2: Any = torchvision_v2()
T: Any = importlib.import_module("torchvision.transforms")
tv_tensors: Any = importlib.import_module("torchvision.tv_tensors")
F: Any = importlib.import_module("torchvision.transforms.functional")
folder: Any = importlib.import_module("torchvision.datasets.folder")

NUM = 8
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Open = Callable[[str], Any]
Make = Callable[[Any], Any]

TRAIN = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])
TEST = T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor(), T.Normalize(MEAN, STD)])


def make_files(root: Path, *, num: int = NUM, **options: Any) -> list[str]:
    """JPEGs of different sizes, and a zip of them next to them."""
    root.mkdir(parents=True, exist_ok=True)
    paths = []
    with zipfile.ZipFile(root / "all.zip", "w") as archive:
        for number in range(num):
            path = root / f"{number}.jpg"
            path.write_bytes(encode(picture(number, 70 + 9 * number, 130 - 8 * number), "JPEG", quality=92, **options))
            archive.write(path, path.name)
            paths.append(str(path))
    return paths


class Images(Dataset[Any]):
    """Opens a file and makes something of it."""

    def __init__(self, paths: list[str], make: Make, open_: Open | None = None) -> None:
        self.paths, self.make, self.open = paths, make, open_ or by_path

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        return self.make(self.open(self.paths[number])), number


def by_path(path: str) -> Any:
    return Image.open(path).convert("RGB")


def by_file_object(path: str) -> Any:
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def by_bytes(path: str) -> Any:
    return Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB")


def by_zip(path: str) -> Any:
    with zipfile.ZipFile(Path(path).parent / "all.zip") as archive, archive.open(Path(path).name) as file:
        return Image.open(file).convert("RGB")


def by_with(path: str) -> Any:
    with Image.open(path) as image:
        return image.convert("RGB")


def by_pil_loader(path: str) -> Any:
    return folder.pil_loader(path)


def by_default_loader(path: str) -> Any:
    return folder.default_loader(path)


def by_load(path: str) -> Any:
    image = Image.open(path)
    image.load()
    return image


def by_exif(path: str) -> Any:
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def by_copy(path: str) -> Any:
    return Image.open(path).copy()


def by_draft(path: str) -> Any:
    image = Image.open(path)
    image.draft("RGB", (60, 60))
    return image.convert("RGB")


def by_grey(path: str) -> Any:
    return Image.open(path).convert("L").convert("RGB")


OPENING: dict[str, Open] = {
    function.__name__: function
    for function in (
        by_path, by_file_object, by_bytes, by_zip, by_with, by_pil_loader, by_default_loader, by_load, by_exif, by_copy, by_draft,
        by_grey,
    )
}  # fmt: skip


def functional(image: Any) -> Any:
    """With Python's `random` and numpy's."""
    width, height = image.size
    side = random.randint(30, 60)
    left, top = random.randint(0, width - side), int(np.random.randint(0, height - side))
    image = F.resized_crop(image, top, left, side, side, [32, 32])
    if random.random() < 0.5:
        image = F.hflip(image)
    return F.normalize(F.to_tensor(image), MEAN, STD)


def plain_pillow(image: Any) -> Any:
    image = image.crop((3, 4, 60, 61)).resize((32, 32), Image.Resampling.BILINEAR).transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return F.to_tensor(image)


def through_numpy(image: Any) -> Any:
    return torch.from_numpy(np.asarray(image.resize((32, 32)), np.float32) / 255).permute(2, 0, 1)


def fit(image: Any) -> Any:
    return F.to_tensor(ImageOps.fit(image, (32, 32)))


def drawn_on(image: Any) -> Any:
    before = image.crop((0, 0, 40, 40))
    image.paste((255, 0, 0), (0, 0, 30, 30))
    return torch.stack([F.to_tensor(before), F.to_tensor(image.crop((0, 0, 40, 40)))])


def filtered(image: Any) -> Any:
    return F.to_tensor(image.resize((32, 32)).filter(ImageFilter.GaussianBlur(1)))


def enhanced(image: Any) -> Any:
    return F.to_tensor(ImageEnhance.Contrast(ImageEnhance.Brightness(image.resize((32, 32), 2)).enhance(1.2)).enhance(0.7))


def thumbnail(image: Any) -> Any:
    image.thumbnail((48, 48))
    return F.to_tensor(image.resize((32, 32)))


def beyond_the_edge(image: Any) -> Any:
    return F.to_tensor(image.crop((-5, -6, 30, 40)).resize((32, 32), 2))


def one_pixel(image: Any) -> Any:
    return torch.tensor(image.getpixel((3, 3)) + image.resize((5, 5)).load()[1, 2])


def turned(image: Any) -> Any:
    return F.to_tensor(image.transpose(Image.Transpose.ROTATE_90).resize((32, 32), 2).transpose(Image.Transpose.TRANSPOSE))


# name -> (what is done, how much of 255 the result may differ by: the resize's, 0 where Pillow resizes)
TRANSFORMS: dict[str, tuple[Make, float]] = {
    "training": (TRAIN, 1),
    "evaluation": (TEST, 1),
    "functional": (functional, 1),
    "plain Pillow": (plain_pillow, 1),
    "crop only": (T.Compose([T.RandomCrop(32), T.RandomVerticalFlip(), T.ToTensor()]), 0),
    "bicubic": (T.Compose([T.Resize((32, 32), interpolation=T.InterpolationMode.BICUBIC), T.ToTensor()]), 5),
    "nearest": (T.Compose([T.RandomResizedCrop(32, interpolation=T.InterpolationMode.NEAREST), T.ToTensor()]), 0),
    "lanczos": (T.Compose([T.RandomResizedCrop(32, interpolation=T.InterpolationMode.LANCZOS), T.ToTensor()]), 0),
    "two resizes": (T.Compose([T.Resize(50), T.RandomResizedCrop(32), T.ToTensor()]), 3),
    "padded": (T.Compose([T.Pad(4), T.RandomCrop(32), T.ToTensor()]), 0),
    "grey": (T.Compose([T.Resize((32, 32)), T.Grayscale(), T.ToTensor()]), 1),
    "sometimes grey": (T.Compose([T.RandomResizedCrop(32), T.RandomGrayscale(0.5), T.ToTensor()]), 1.01),
    "jitter": (T.Compose([T.RandomResizedCrop(32), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.ToTensor()]), 17),
    "blur": (T.Compose([T.RandomResizedCrop(32), T.GaussianBlur(3), T.ToTensor()]), 1.01),
    "solarise": (T.Compose([T.RandomResizedCrop(32), T.RandomSolarize(128, 1.0), T.ToTensor()]), 1),
    "RandAugment": (T.Compose([T.RandomResizedCrop(32), T.RandAugment(), T.ToTensor()]), 17),
    "AutoAugment": (T.Compose([T.RandomResizedCrop(32), T.AutoAugment(), T.ToTensor()]), 17),
    "AugMix": (T.Compose([T.RandomResizedCrop(32), T.AugMix(), T.ToTensor()]), 17),
    "erasing": (T.Compose([TRAIN, T.RandomErasing(1.0)]), 1),
    "affine": (T.Compose([T.RandomAffine(10), T.CenterCrop(32), T.ToTensor()]), 0),
    "uint8": (T.Compose([T.RandomResizedCrop(32), T.PILToTensor()]), 1),
    "to float": (T.Compose([T.RandomResizedCrop(32), T.PILToTensor(), T.ConvertImageDtype(torch.float32)]), 1),
    "v2": (
        v2.Compose([v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]),
        1,
    ),
    "v2 jitter": (v2.Compose([v2.RandomResizedCrop(32), v2.ColorJitter(0.3, 0.3), v2.ToImage()]), 17),
    "v2 of tensors": (
        v2.Compose(
            [v2.RandomCrop(40), v2.Resize(32), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        ),
        1,
    ),
    "v2 of tensors that are cut": (
        v2.Compose([v2.ToImage(), v2.RandomResizedCrop(32), v2.ToDtype(torch.float32, scale=True)]),
        0,
    ),
    "sequential": (
        T.Compose([torch.nn.Sequential(T.RandomCrop(32), T.RandomVerticalFlip()), T.ToTensor(), T.Normalize(MEAN, STD)]),
        0,
    ),
    "ten crops": (T.Compose([T.TenCrop(32), T.Lambda(lambda crops: torch.stack([F.to_tensor(crop) for crop in crops]))]), 0),
    "through numpy": (through_numpy, 0),
    "fit": (fit, 5),
    "drawn on": (drawn_on, 0),
    "filtered": (filtered, 5),
    "enhanced": (enhanced, 0),
    "thumbnail": (thumbnail, 0),
    "beyond the edge": (beyond_the_edge, 0),
    "one pixel": (one_pixel, 0),
    "turned": (turned, 0),
    "lambda": (lambda image: TRAIN(image), 1),
    "partial": (functools.partial(lambda size, image: F.to_tensor(F.resize(image, size)), [32, 32]), 1),
}

Point = collections.namedtuple("Point", "image label")


@dataclasses.dataclass
class Sample:
    image: Any
    size: Any


class Holder:
    """An object that pytrees do not look into."""

    def __init__(self, image: Any) -> None:
        self.image = image


def samples_of(dataset: Any, keys: list[int], *, defers: bool, seed: int = 7) -> list[Any]:
    """The samples of one fetch with the seeds of that fetch."""
    wrapped = DeferringDataset(dataset, defers=defers)
    made = wrapped.__getitems__(BatchRequest(keys, [seed + 1000 * key for key in keys]))
    assert isinstance(made, list)
    return made


def both_ways(dataset: Any, num: int = NUM) -> tuple[list[Any], list[Any]]:
    """The same samples with deferral and without."""
    return samples_of(dataset, list(range(num)), defers=True), samples_of(dataset, list(range(num)), defers=False)


@contextlib.contextmanager
def deferral(on: bool) -> Iterator[None]:
    """Loaders that are taken over meanwhile defer images, or do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATAPIPE_DEFER", str(int(on)))
        yield


def loaded(dataset: Any, *, defer: bool = True, **options: Any) -> Any:
    """A loader over the dataset, taken over."""
    taken = {name: options.pop(name) for name in ("seed", "faithful", "device") if name in options}
    with deferral(defer):
        return dp.from_torch(DataLoader(dataset, **{"batch_size": 4, **options}), **{"seed": 3, "device": "cpu", **taken})
