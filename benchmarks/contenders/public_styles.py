"""Datasets in the style of public repositories, each written anew: what one line has to serve, or to leave as it is.

Each is made of a folder of photographs and a number of samples.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD


@dataclass(frozen=True, slots=True)
class Style:
    """A kind of Dataset. `make(folder, number of samples)`; `needs`: packages besides those of the tests."""

    title: str
    make: Callable[[Path, int], Any]
    collate_fn: Callable[[Any], Any] | None = None
    shuffles: bool | None = True
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def _files(folder: Path, num: int) -> list[str]:
    files = sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    return [files[number % len(files)] for number in range(num)]


def _transforms() -> Any:
    import_torchvision()
    return importlib.import_module("torchvision.transforms")


class Files(Dataset[Any]):
    """A list of files, and a function from a file to a sample."""

    def __init__(self, files: list[str], sample: Callable[[str], Any]) -> None:
        self.files, self.sample = files, sample

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Any:
        return self.sample(self.files[number]), number


def _of_files(sample: Callable[[], Callable[[str], Any]]) -> Callable[[Path, int], Any]:
    return lambda folder, num: Files(_files(folder, num), sample())


def _opened(transform: Any) -> Callable[[str], Any]:
    return lambda file: transform(Image.open(file).convert("RGB"))


# -- zip files that each worker holds open ---------------------------------------------------------------


def _zip(folder: Path, name: str, encode: Callable[[str], bytes]) -> Path:
    """Return a zip file beside a folder, with each of its images; made once."""
    path = folder.with_name(f"{folder.name}-{name}.zip")
    if not path.exists():
        part = path.with_suffix(".part")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as file:
            for number, photo in enumerate(dict.fromkeys(_files(folder, 400))):
                file.writestr(f"{number:06}", encode(photo))
        part.rename(path)
    return path


class Zipped(Dataset[Any]):
    """Images in a zip file, which each process opens when it first needs it."""

    def __init__(self, path: Path, num: int, transform: Callable[[Image.Image], Any]) -> None:
        self.path, self.num, self.transform = path, num, transform
        with zipfile.ZipFile(path) as file:
            self.names = file.namelist()
        self._file: zipfile.ZipFile | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, number: int) -> Any:
        if self._file is None:
            self._file = zipfile.ZipFile(self.path)
        data = self._file.read(self.names[number % len(self.names)])
        return self.transform(Image.open(io.BytesIO(data))), number


def _zip_of_photos(folder: Path, num: int) -> Zipped:
    """As Swin Transformer: timm's training transform over images in a zip file."""
    made = importlib.import_module("timm.data").create_transform(
        CROP, is_training=True, auto_augment="rand-m5-inc1", re_prob=0.25, re_mode="pixel", interpolation="bicubic"
    )
    return Zipped(_zip(folder, "photos", lambda photo: Path(photo).read_bytes()), num, lambda image: made(image.convert("RGB")))


def _zip_of_pixels(folder: Path, num: int) -> Zipped:
    """As StyleGAN3: small PNGs in a zip file, given as bytes."""

    def encode(photo: str) -> bytes:
        sink = io.BytesIO()
        Image.open(photo).convert("RGB").resize((64, 64)).save(sink, "PNG", compress_level=0)
        return sink.getvalue()

    return Zipped(_zip(folder, "pixels", encode), num, lambda image: np.array(image).transpose(2, 0, 1).copy())


# -- recipes ---------------------------------------------------------------------------------------------


def _whole_by_bicubic() -> Callable[[str], Any]:
    """As BLIP's evaluation: whole images to 384 x 384."""
    transforms = _transforms()
    size = transforms.Resize((384, 384), interpolation=transforms.InterpolationMode.BICUBIC)
    return _opened(transforms.Compose([size, transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]))


def _randaugment() -> Callable[[str], Any]:
    """As BLIP's training: a crop by bicubic, then RandAugment."""
    transforms = _transforms()
    cut = transforms.RandomResizedCrop(CROP, scale=(0.2, 1.0), interpolation=transforms.InterpolationMode.BICUBIC)
    end = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    return _opened(transforms.Compose([cut, transforms.RandomHorizontalFlip(), transforms.RandAugment(2, 5), *end]))


def _luma() -> Callable[[str], Any]:
    """As pytorch/examples' super_resolution: the Y of YCbCr in two sizes."""
    transforms = _transforms()
    cut, end = transforms.CenterCrop(240), transforms.ToTensor()
    small = transforms.Compose([cut, transforms.Resize(80), end])
    large = transforms.Compose([cut, end])

    def sample(file: str) -> Any:
        luma, _, _ = Image.open(file).convert("YCbCr").split()
        return small(luma.copy()), large(luma)

    return sample


def _pasted() -> Callable[[str], Any]:
    """A mark pasted on a fifth of the images."""
    transforms = _transforms()
    cut = [transforms.Resize(256), transforms.CenterCrop(CROP)]
    usual = transforms.Compose([*cut, transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)])
    mark = Image.new("RGB", (40, 40), (255, 0, 0))

    def sample(file: str) -> Any:
        image = Image.open(file).convert("RGB")
        if sum(file.encode()) % 5 == 0:
            image.paste(mark, (10, 10))
        return usual(image)

    return sample


def _array_resized() -> Callable[[str], Any]:
    """As textual inversion: an array is cut, and made an image again that is resized."""

    def sample(file: str) -> Any:
        pixels = np.array(Image.open(file).convert("RGB")).astype(np.uint8)
        side, (height, width) = min(pixels.shape[:2]), pixels.shape[:2]
        top, left = (height - side) // 2, (width - side) // 2
        image = Image.fromarray(pixels[top : top + side, left : left + side]).resize(
            (256, 256), resample=Image.Resampling.BICUBIC
        )
        return torch.from_numpy((np.array(image) / 127.5 - 1.0).astype(np.float32)).permute(2, 0, 1)

    return sample


def _upright() -> Callable[[str], Any]:
    """An image turned by its EXIF tag, and the middle of its array."""

    def sample(file: str) -> Any:
        pixels = np.asarray(ImageOps.exif_transpose(Image.open(file)).convert("RGB"))
        top, left = (max(0, (side - CROP) // 2) for side in pixels.shape[:2])
        part = np.zeros((CROP, CROP, 3), np.uint8)
        cut = pixels[top : top + CROP, left : left + CROP]
        part[: cut.shape[0], : cut.shape[1]] = cut
        return torch.from_numpy(part)

    return sample


def _albumentations() -> Callable[[str], Any]:
    """An array of the whole image, and albumentations."""
    library = importlib.import_module("albumentations")
    made = library.Compose([library.RandomResizedCrop(size=(CROP, CROP)), library.HorizontalFlip(), library.Normalize()])

    def sample(file: str) -> Any:
        return torch.from_numpy(made(image=np.array(Image.open(file).convert("RGB")))["image"].transpose(2, 0, 1))

    return sample


def _opencv() -> Callable[[str], Any]:
    """OpenCV alone."""
    cv2 = importlib.import_module("cv2")

    def sample(file: str) -> Any:
        image = cv2.cvtColor(cv2.imread(file), cv2.COLOR_BGR2RGB)
        scale = 256 / max(image.shape[:2]) * float(np.random.uniform(0.8, 1.2))
        shift = [128 - scale * side / 2 for side in image.shape[1::-1]]
        moved = cv2.warpAffine(image, np.array([[scale, 0, shift[0]], [0, scale, shift[1]]], np.float32), (256, 256))
        return torch.from_numpy(moved).permute(2, 0, 1).float().div(255)

    return sample


def _processed(*, squares: bool) -> Callable[[str], Any]:
    """CLIP's image processor in `__getitem__`; `squares`: as LLaVA, after the image is made square by `paste`."""
    import_torchvision()
    processor = importlib.import_module("transformers").CLIPImageProcessor()
    color = tuple(int(255 * value) for value in processor.image_mean)

    def sample(file: str) -> Any:
        image = Image.open(file).convert("RGB")
        if squares:
            side = max(image.size)
            square = Image.new("RGB", (side, side), color)
            square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
            image = square
        return processor.preprocess(image, return_tensors="pt")["pixel_values"][0]

    return sample


def _photographs() -> Callable[[str], Any]:
    """Whole images, of which a `collate_fn` makes something."""
    return lambda file: Image.open(file).convert("RGB")


@functools.cache
def _patches() -> Any:
    import_torchvision()
    size = {"shortest_edge": 56 * 56, "longest_edge": 256 * 28 * 28}
    return importlib.import_module("transformers").Qwen2VLImageProcessor(size=size)


def patched(samples: list[tuple[Any, int]]) -> dict[str, torch.Tensor]:
    """The `collate_fn` of a vision-language model: Qwen2-VL's image processor, for the images of a batch."""
    return dict(_patches()(images=[image for image, _ in samples], return_tensors="pt"))


class Pixels(Dataset[Any]):
    """As CIFAR's: small images in memory, each made one of Pillow's."""

    def __init__(self, num: int, transform: Any) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 256, (num, 64, 64, 3), np.uint8)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> Any:
        return self.transform(Image.fromarray(self.pixels[number])), number


class Stream(IterableDataset[Any]):
    """Files that the workers share."""

    def __init__(self, files: list[str], transform: Any) -> None:
        self.files, self.transform = files, transform

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for file in self.files[first::step]:
            yield self.transform(Image.open(file).convert("RGB"))


def _in_memory(folder: Path, num: int) -> Pixels:
    transforms = _transforms()
    cut = [transforms.RandomCrop(64, padding=4), transforms.RandomHorizontalFlip()]
    end = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    return Pixels(num, transforms.Compose([*cut, *end]))


def _stream(folder: Path, num: int) -> Stream:
    transforms = _transforms()
    return Stream(
        _files(folder, num), transforms.Compose([transforms.Resize(256), transforms.CenterCrop(CROP), transforms.ToTensor()])
    )


def _hub(folder: Path, num: int) -> Any:
    """As diffusers' text_to_image: a dataset of Hugging Face's with a transform that resizes by Lanczos."""
    library = importlib.import_module("datasets")
    transforms = _transforms()
    cut = transforms.Resize(256, interpolation=transforms.InterpolationMode.LANCZOS), transforms.CenterCrop(256)
    made = transforms.Compose(
        [*cut, transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
    )
    rows = {"image": [{"path": None, "bytes": Path(file).read_bytes()} for file in _files(folder, num)]}
    data = library.Dataset.from_dict(rows).cast_column("image", library.Image())

    def transform(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"pixel_values": [made(image.convert("RGB")) for image in rows["image"]]}

    return data.with_transform(transform)


def stacked(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The `collate_fn` of diffusers' examples."""
    return {"pixel_values": torch.stack([sample["pixel_values"] for sample in samples]).contiguous().float()}


STYLES = {
    "zip": Style("images in a zip, RandAugment (Swin)", _zip_of_photos, needs=("timm",)),
    "zip-pixels": Style("PNGs of 64 x 64 in a zip (StyleGAN3)", _zip_of_pixels),
    "whole": Style("whole images by bicubic (BLIP's evaluation)", _of_files(_whole_by_bicubic), shuffles=False),
    "randaugment": Style("bicubic crop, RandAugment (BLIP)", _of_files(_randaugment)),
    "luma": Style("YCbCr (super_resolution)", _of_files(_luma)),
    "lanczos": Style("Hugging Face `with_transform`, Lanczos (diffusers)", _hub, stacked, needs=("datasets",)),
    "paste": Style("`paste` on a fifth of the samples", _of_files(_pasted)),
    "array-resized": Style("array, cut, resized (textual inversion)", _of_files(_array_resized)),
    "exif": Style("`exif_transpose`, then an array", _of_files(_upright)),
    "albumentations": Style("array, albumentations", _of_files(_albumentations), needs=("albumentations",)),
    "opencv": Style("OpenCV alone", _of_files(_opencv), needs=("cv2",)),
    "clip": Style("CLIP's image processor", _of_files(functools.partial(_processed, squares=False)), needs=("transformers",)),
    "square": Style(
        "`paste`, CLIP's image processor (LLaVA)", _of_files(functools.partial(_processed, squares=True)), needs=("transformers",)
    ),
    "patches": Style(
        "Qwen2-VL's image processor in `collate_fn`", _of_files(_photographs), patched, needs=("transformers",)
    ),
    "memory": Style("pixels of 64 x 64 in memory", _in_memory),
    "stream": Style("an IterableDataset", _stream, shuffles=None),
}  # fmt: skip
