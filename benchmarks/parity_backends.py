"""How far DALI's pixels are from those of images_cpu and of torchvision: whole recipes, from encoded photographs.

Each way makes the same samples with the same seed, by the public loader as far as it has the choice.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.parity_case import Bound, Pair
from datapipe import transforms as T
from datapipe.codecs.probe import probe
from datapipe.kinds.images.dali.gate import choose_cut_form
from datapipe.kinds.images.dali.pipeline import DaliPipeline
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.kinds.loader import DataLoader
from datapipe.order.draws import Draws
from datapipe.transforms.protocols import Cuts

SIDE = 224
SEED = 0
_PADDING, _FILL = 32, (9, 80, 200)
_CROP = T.RandomResizedCrop(SIDE)
_CUBIC_CROP = T.RandomResizedCrop(SIDE, interpolation="bicubic")
_TO_FLOAT = (T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD))
_UNIT = 255 * 0.226  # of normalised values, of 255: by the mean of the three deviations

Images = torch.Tensor  # (n, 3, h, w)


@dataclass(frozen=True)
class Photos:
    """An image folder; rows are in the order of ids."""

    root: Path
    encoded: tuple[bytes, ...]
    sizes: NDArray[np.int64]  # (n, 2) height, width

    @classmethod
    def of(cls, root: Path) -> Photos:
        paths = sorted(path for path in root.glob("*/*") if path.is_file())
        encoded = tuple(path.read_bytes() for path in paths)
        headers = [probe(data) for data in encoded]
        return cls(root, encoded, np.array([(header.height, header.width) for header in headers]))

    @property
    def draws(self) -> Draws:
        """Those of a loader's first epoch."""
        return Draws(SEED, 0, np.arange(len(self.encoded)))


@dataclass(frozen=True)
class BackendCase:
    """One recipe, made by a backend and by what it is compared with."""

    recipe: str
    backend: str
    device: str  # on which the backend works
    against: str
    bound: Bound  # over all pixels
    inside: float  # the greatest difference away from the border: all but the outermost rows and columns
    ours: Callable[[Photos], Images]
    theirs: Callable[[Photos], Images]
    unit: float  # in which the values of both come, of 255

    def pairs(self, photos: Photos) -> Iterator[Pair]:
        """Image by image."""
        ours, theirs = self.ours(photos), self.theirs(photos)
        if ours.shape != theirs.shape:
            raise SystemExit(f"{self.recipe}: shapes differ, {tuple(ours.shape)} and {tuple(theirs.shape)}")
        for our, their in zip(ours, theirs, strict=True):
            yield our.float() * self.unit, their.float() * self.unit


@dataclass(frozen=True)
class Recipe:
    """The same by datapipe and by torchvision's functions."""

    name: str
    transforms: tuple[Any, ...]
    do: Callable[[Any, Photos, int], Any]  # torchvision's, to the image in that row, a uint8 tensor or a PIL image
    largest: float  # difference allowed between DALI's pixels and torch's, of 255
    mean: float  # of all differences
    inside: float = 1  # the greatest difference away from the border, where anything is resampled


def recipes() -> list[Recipe]:
    """All of them. Raises ImportError where torchvision is not installed."""
    import_torchvision()
    tv = importlib.import_module("torchvision.transforms.v2.functional")
    flip, upside_down = T.RandomHorizontalFlip(), T.RandomVerticalFlip()

    def flipped(image: Any, photos: Photos, row: int, *, first: int, both: bool) -> Any:
        """As datapipe draws it for the flips at `first` and behind it in the list of transforms."""
        draws = photos.draws
        if both and draws.uniform(first, 1)[row, 0] < 0.5:
            image = tv.vertical_flip(image)
        return tv.horizontal_flip(image) if draws.uniform(first + both, 1)[row, 0] < 0.5 else image

    def resized_crop(image: Any, photos: Photos, row: int) -> Any:
        box = _CROP.boxes(photos.sizes, photos.draws, 0)[row].tolist()
        return flipped(tv.resized_crop(image, *box, [SIDE, SIDE]), photos, row, first=1, both=False)

    def cubic_crop(image: Any, photos: Photos, row: int) -> Any:
        box = _CUBIC_CROP.boxes(photos.sizes, photos.draws, 0)[row].tolist()
        return tv.resized_crop(image, *box, [SIDE, SIDE], interpolation=tv.InterpolationMode.BICUBIC)

    def padded_crop(image: Any, photos: Photos, row: int) -> Any:
        padded = tv.pad(image, [_PADDING] * 4, fill=list(_FILL) if isinstance(image, torch.Tensor) else _FILL)
        room = photos.sizes[row] + 2 * _PADDING - SIDE + 1
        top, left = (photos.draws.uniform(0, 2)[row] * room).astype(int).tolist()
        return flipped(tv.crop(padded, top, left, SIDE, SIDE), photos, row, first=1, both=True)

    def centre(image: Any, photos: Photos, row: int) -> Any:
        return tv.center_crop(tv.resize(image, [256]), [SIDE, SIDE])

    return [
        Recipe("RandomResizedCrop, flip", (_CROP, flip), resized_crop, 24, 0.3),
        Recipe("RandomResizedCrop, bicubic", (_CUBIC_CROP,), cubic_crop, 24, 0.3, inside=20),
        Recipe("Resize, CenterCrop", (T.Resize(256), T.CenterCrop(SIDE)), centre, 2, 0.3),
        Recipe(
            "RandomCrop with padding, flips",
            (T.RandomCrop(SIDE, padding=_PADDING, fill=_FILL), upside_down, flip),
            padded_crop,
            0,
            0,
        ),
    ]


def backend_cases() -> list[BackendCase]:
    """Every recipe by DALI, against all others. Raises ImportError where torchvision is not installed."""
    return [case for recipe in recipes() for normalised in (False, True) for case in _cases_of(recipe, normalised=normalised)]


def _cases_of(recipe: Recipe, *, normalised: bool) -> Iterator[BackendCase]:
    transforms = [*recipe.transforms, *(_TO_FLOAT if normalised else ())]
    # Normalised, a step weighs by its channel, and float32 arithmetic is done in another order.
    scale, rounding = (1.02, 0.001) if normalised else (1.0, 0.0)
    step = 1.0 if recipe.largest else 0.0
    bound = Bound(*(round(scale * value + rounding, 3) for value in (recipe.largest, step, recipe.mean)))
    makers: dict[str, Callable[[Photos], Images]] = {
        "dali": lambda photos: loaded(photos, transforms, "dali"),
        "dali, whole images": lambda photos: piped(photos, transforms, decodes_regions=False),
        "images_cpu": lambda photos: loaded(photos, transforms, "images_cpu"),
        "torchvision, tensor": lambda photos: by_torchvision(photos, recipe, "tensor", normalised=normalised),
        "torchvision, PIL": lambda photos: by_torchvision(photos, recipe, "PIL", normalised=normalised),
    }
    for way in ("dali",) if normalised else ("dali", "dali, whole images"):
        for against in ("images_cpu", "torchvision, tensor", "torchvision, PIL"):
            yield BackendCase(
                recipe=recipe.name + ", Normalize" * normalised,
                backend=way,
                device="cpu",
                against=against,
                bound=bound,
                inside=round(scale * step * recipe.inside * (2 if against.endswith("PIL") else 1) + rounding, 3),
                ours=makers[way],
                theirs=makers[against],
                unit=_UNIT if normalised else 1.0,
            )


# -- the ways --------------------------------------------------------------------------------------


def loaded(photos: Photos, transforms: list[Any], backend: str) -> Images:
    """By the loader, shuffled, and put in the order of ids."""
    loader = DataLoader(
        photos.root, batch_size=16, shuffle=True, seed=SEED, transform=transforms, output="dict", backend=backend, device="cpu"
    )
    batches = list(loader)
    ids = torch.cat([batch["id"] for batch in batches])
    if sorted(ids.tolist()) != list(range(len(photos.encoded))):
        raise SystemExit(f"{backend}: the samples are {sorted(ids.tolist())}")
    return torch.cat([batch["image"] for batch in batches])[torch.argsort(ids)]


def piped(photos: Photos, transforms: list[Any], *, decodes_regions: bool) -> Images:
    """By DALI's pipeline alone, from cuts drawn here: uint8 recipes."""
    recipe = T.Recipe.of(transforms)
    height, width = recipe.check_equal_sizes()
    form, num = choose_cut_form(recipe, None), len(photos.encoded)
    graph = GraphOptions(height, width, num, None, form, decodes_regions, num_threads=1, hw_decoder_load=0.0)
    cuts: list[Cuts] = recipe.draw_cuts(photos.draws, photos.sizes)
    pixels, _ = DaliPipeline(graph).run(photos.encoded, cuts[0], None)
    return pixels.permute(0, 3, 1, 2)


def by_torchvision(photos: Photos, recipe: Recipe, kind: str, *, normalised: bool) -> Images:
    """By torchvision's functions on tensors or on PIL images, with datapipe's parameters."""
    tv = importlib.import_module("torchvision.transforms.v2.functional")
    images = []
    for row, data in enumerate(photos.encoded):
        image: Any = Image.open(io.BytesIO(data)).convert("RGB")
        image = recipe.do(image if kind == "PIL" else tv.pil_to_tensor(image), photos, row)
        images.append(tv.pil_to_tensor(image) if kind == "PIL" else image)
    stacked: Images = torch.stack(images)
    if normalised:
        scaled = tv.to_dtype(stacked, torch.float32, scale=True)
        stacked = tv.normalize(scaled, list(T.IMAGENET_MEAN), list(T.IMAGENET_STD))
    return stacked
