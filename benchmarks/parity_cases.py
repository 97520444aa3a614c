"""What is compared with torchvision, how, and how far apart the two may be.

Each case takes one photograph and a number, draws parameters with datapipe's own draws, and carries
them out twice: by datapipe, and by torchvision.transforms.v2.functional with the same parameters. Both
results are scaled to 0..255. The bounds are what the documentation publishes; the tests hold them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contenders.torchvision_transforms import import_torchvision
from datapipe import transforms as T
from datapipe.draws import Draws
from datapipe.transforms.execute import cut_through, row_cuts
from datapipe.transforms.pixels.auto_augment import OPERATIONS, apply_operation
from datapipe.transforms.protocols import PixelOp

Pixels = NDArray[np.uint8]  # (h, w, 3)
Pair = tuple[torch.Tensor, torch.Tensor]  # datapipe's and torchvision's, in units of 1 / 255
_SIDE = 224


@dataclass(frozen=True)
class Bound:
    """The greatest differences allowed, of 255: of any value, of 99.9 % of them, on average."""

    largest: float
    p999: float
    mean: float


@dataclass(frozen=True)
class Case:
    """One transform against one of torchvision's ways to do it."""

    name: str
    against: str  # "tensor" or "PIL"
    bound: Bound
    compare: Callable[[Pixels, int], Pair]


EXACT = Bound(0, 0, 0)
NEARLY = Bound(0.001, 0.001, 0.001)  # other roundings of the same float32 arithmetic
ONE_STEP = Bound(1, 1, 0.02)  # uint8 steps: the fraction cut off lies next to a whole number
PIL_RESIZE = Bound(2, 1, 0.1)  # the distance of torch's own integer resize: one step, in one value of a million two
NEIGHBOUR = Bound(255, 0, 0.01)  # a pixel in a thousand at most takes the other of two equally near neighbours


def cases() -> list[Case]:
    """All of them. Raises ImportError where torchvision is not installed."""
    import_torchvision()
    tv = importlib.import_module("torchvision.transforms.v2.functional")
    return [*_geometry_cases(tv), *_dtype_cases(tv), *_pixel_cases(tv), *_augment_cases(tv)]


def _geometry_cases(tv: Any) -> Iterator[Case]:
    size = [_SIDE, _SIDE]

    def case(name: str, transform: Any, bounds: tuple[Bound, Bound], do: Callable[[Any, Pixels, int], Any]) -> Iterator[Case]:
        for against, bound in zip(("tensor", "PIL"), bounds, strict=True):

            def compare(photo: Pixels, number: int, against: str = against) -> Pair:
                theirs = do(_as_tensor(photo) if against == "tensor" else tv.to_pil_image(_as_tensor(photo)), photo, number)
                theirs = theirs if against == "tensor" else tv.pil_to_tensor(theirs)
                return _cut(transform, photo, number).float(), theirs.float()

            yield Case(name, against, bound, compare)

    crop = T.RandomResizedCrop(_SIDE)
    yield from case(
        "RandomResizedCrop",
        crop,
        (EXACT, PIL_RESIZE),
        lambda image, photo, number: tv.resized_crop(image, *_box(crop, photo, number), size),
    )
    yield from case("Resize, shorter side", T.Resize(180), (EXACT, PIL_RESIZE), lambda image, *_: tv.resize(image, [180]))
    yield from case(
        "Resize, enlarging", T.Resize((700, 900)), (EXACT, PIL_RESIZE), lambda image, *_: tv.resize(image, [700, 900])
    )
    yield from case("CenterCrop", T.CenterCrop(_SIDE), (EXACT, EXACT), lambda image, *_: tv.center_crop(image, size))
    yield from case(
        "CenterCrop, padding", T.CenterCrop((601, 444)), (EXACT, EXACT), lambda image, *_: tv.center_crop(image, [601, 444])
    )
    yield from case(
        "Pad", T.Pad((3, 5, 7, 2), fill=(9, 8, 7)), (EXACT, EXACT), lambda image, *_: tv.pad(image, [3, 5, 7, 2], fill=[9, 8, 7])
    )
    flip = T.RandomHorizontalFlip(1)
    yield from case("RandomHorizontalFlip", flip, (EXACT, EXACT), lambda image, *_: tv.horizontal_flip(image))
    yield from case("RandomVerticalFlip", T.RandomVerticalFlip(1), (EXACT, EXACT), lambda image, *_: tv.vertical_flip(image))
    resize_crop_flip = [T.Resize(256), T.CenterCrop(_SIDE), T.RandomHorizontalFlip(1)]
    yield from case(
        "Resize, CenterCrop, flip", resize_crop_flip, (EXACT, PIL_RESIZE),
        lambda image, *_: tv.horizontal_flip(tv.center_crop(tv.resize(image, [256]), size)),
    )  # fmt: skip


def _dtype_cases(tv: Any) -> Iterator[Case]:
    mean, std = T.IMAGENET_MEAN, T.IMAGENET_STD
    to_255 = 255 * 0.226  # a step of normalised images, of 255

    for dtype, bound in (
        (torch.float32, NEARLY),
        (torch.float16, Bound(0.4, 0.3, 0.05)),
        (torch.bfloat16, Bound(3, 2.5, 0.4)),
    ):
        name = str(dtype).removeprefix("torch.")

        def convert(photo: Pixels, number: int, dtype: torch.dtype = dtype) -> Pair:
            ours = _pixels(T.ToDtype(dtype, scale=True), _square(photo), number)
            return ours.float() * 255, tv.to_dtype(_square(photo), dtype, scale=True).float() * 255

        def normalise(photo: Pixels, number: int, dtype: torch.dtype = dtype) -> Pair:
            recipe = T.Recipe.of([T.ToDtype(dtype, scale=True), T.Normalize(mean, std)])
            theirs = tv.normalize(tv.to_dtype(_square(photo), dtype, scale=True), list(mean), list(std))
            return _run(recipe, _square(photo), number).float() * to_255, theirs.float() * to_255

        yield Case(f"ToDtype({name}, scale=True)", "tensor", EXACT, convert)
        yield Case(f"ToDtype({name}, scale=True), Normalize", "tensor", bound, normalise)

    def back(photo: Pixels, number: int) -> Pair:
        image = tv.to_dtype(_square(photo), torch.float32, scale=True).mul_(0.7)
        ours = _pixels(T.ToDtype(torch.uint8, scale=True), image, number)
        return ours.float(), tv.to_dtype(image, torch.uint8, scale=True).float()

    def alone(photo: Pixels, number: int) -> Pair:
        image = tv.to_dtype(_square(photo), torch.float32, scale=True)
        theirs = tv.normalize(image, list(mean), list(std)) * to_255
        return _pixels(T.Normalize(mean, std), image, number) * to_255, theirs

    yield Case("ToDtype(uint8, scale=True)", "tensor", EXACT, back)
    yield Case("Normalize", "tensor", NEARLY, alone)


def _pixel_cases(tv: Any) -> Iterator[Case]:
    adjustments = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)

    def jitter(image: torch.Tensor, params: dict[str, Any], op: T.ColorJitter) -> torch.Tensor:
        wanted = (op.brightness, op.contrast, op.saturation, op.hue)
        for number in params["order"][0].tolist():
            if wanted[number] is not None:
                image = adjustments[number](image, float(params["factors"][0, number]))
        return image

    def erase(image: torch.Tensor, params: dict[str, Any], op: T.RandomErasing) -> torch.Tensor:
        top, left, height, width = params["box"][0].tolist()
        value = torch.tensor(op.value if isinstance(op.value, tuple) else [op.value]).view(-1, 1, 1)
        erased: torch.Tensor = tv.erase(image, top, left, height, width, value)
        return erased

    def gray(image: torch.Tensor, params: dict[str, Any], op: Any) -> torch.Tensor:
        luma: torch.Tensor = tv.rgb_to_grayscale(image, num_output_channels=3)
        return luma

    def blur(image: torch.Tensor, params: dict[str, Any], op: T.GaussianBlur) -> torch.Tensor:
        blurred: torch.Tensor = tv.gaussian_blur(image, list(op.kernel_size), [float(params["sigma"][0])] * 2)
        return blurred

    for op, do, integer in (
        (T.ColorJitter(brightness=0.4), jitter, ONE_STEP),
        (T.ColorJitter(contrast=0.4), jitter, ONE_STEP),
        (T.ColorJitter(saturation=0.4), jitter, ONE_STEP),
        (T.ColorJitter(hue=0.1), jitter, ONE_STEP),
        (T.ColorJitter(0.4, 0.4, 0.4, 0.1), jitter, Bound(4, 2, 0.05)),
        (T.RandomGrayscale(1.0), gray, ONE_STEP),
        (T.GaussianBlur(23), blur, ONE_STEP),
        (T.GaussianBlur((3, 7), sigma=(0.5, 5)), blur, ONE_STEP),
        (T.RandomErasing(1.0), erase, EXACT),
        (T.RandomErasing(1.0, value=(10, 20, 30)), erase, EXACT),
    ):
        for dtype in (torch.uint8, torch.float32):

            def compare(photo: Pixels, number: int, op: Any = op, do: Any = do, dtype: torch.dtype = dtype) -> Pair:
                image = tv.to_dtype(_square(photo), dtype, scale=True)
                unit = 1.0 if dtype == torch.uint8 else 255.0
                params = op.draw(_draws(number), 0, (_SIDE, _SIDE))
                theirs = do(image, params, op)
                return _pixels(op, image, number).float() * unit, theirs.float() * unit

            bound = integer if dtype == torch.uint8 else EXACT if integer is EXACT else NEARLY
            yield Case(f"{op!r}, {str(dtype).removeprefix('torch.')}", "tensor", bound, compare)

    yield from _mix_cases()


def _mix_cases() -> Iterator[Case]:
    v2: Any = importlib.import_module("torchvision.transforms.v2")

    def compare(photo: Pixels, number: int, name: str) -> Pair:
        batch = torch.stack([_square(photo), _square(photo).flip(1), _square(photo).flip(0)]).float() / 255
        labels = torch.tensor([0, 2, 1])
        op: Any = getattr(T, name)(alpha=0.8, num_classes=3)
        params = op.draw(_draws(number), 0, (_SIDE, _SIDE))
        ours, our_labels = op.apply(batch.clone(), labels, params)
        their = getattr(v2, name)(alpha=0.8, num_classes=3)
        lam = float(params["lam"][0])
        given = {"labels": labels, "batch_size": 3, "lam": lam, "lam_adjusted": lam}
        if name == "CutMix":
            top, left, height, width = params["box"][0].tolist()
            given["box"] = (left, top, left + width, top + height)
        theirs, their_labels = their.transform(batch, given), their.transform(labels, given)
        return _joined(ours, our_labels) * 255, _joined(theirs, their_labels) * 255

    yield Case("MixUp", "tensor", NEARLY, lambda photo, number: compare(photo, number, "MixUp"))
    yield Case("CutMix", "tensor", NEARLY, lambda photo, number: compare(photo, number, "CutMix"))


def _augment_cases(tv: Any) -> Iterator[Case]:
    """Every operation of RandAugment and TrivialAugmentWide, at strengths from the tables of both."""
    nearest: dict[str, Any] = {"interpolation": "nearest", "fill": [7, 80, 200]}
    still: dict[str, Any] = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0], **nearest}
    corner: dict[str, Any] = {**still, "center": [0, 0]}
    do: dict[str, Callable[[torch.Tensor, float], Any]] = {
        "Identity": lambda image, m: image,
        "ShearX": lambda image, m: tv.affine(image, **{**corner, "shear": [math.degrees(math.atan(m)), 0.0]}),
        "ShearY": lambda image, m: tv.affine(image, **{**corner, "shear": [0.0, math.degrees(math.atan(m))]}),
        "TranslateX": lambda image, m: tv.affine(image, **{**still, "translate": [int(m), 0]}),
        "TranslateY": lambda image, m: tv.affine(image, **{**still, "translate": [0, int(m)]}),
        "Rotate": lambda image, m: tv.rotate(image, m, **nearest),
        "Brightness": lambda image, m: tv.adjust_brightness(image, 1.0 + m),
        "Color": lambda image, m: tv.adjust_saturation(image, 1.0 + m),
        "Contrast": lambda image, m: tv.adjust_contrast(image, 1.0 + m),
        "Sharpness": lambda image, m: tv.adjust_sharpness(image, 1.0 + m),
        "Posterize": lambda image, m: tv.posterize(image, int(m)),
        "Solarize": lambda image, m: tv.solarize(image, 255.0 * m),
        "AutoContrast": lambda image, m: tv.autocontrast(image),
        "Equalize": lambda image, m: tv.equalize(image),
    }
    bounds = dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness", "AutoContrast"), ONE_STEP)
    bounds |= dict.fromkeys(("ShearX", "ShearY", "Rotate"), NEIGHBOUR)
    for position, name in enumerate(OPERATIONS):

        def compare(photo: Pixels, number: int, name: str = name, position: int = position) -> Pair:
            op = T.TrivialAugmentWide() if number % 2 else T.RandAugment(num_ops=1, magnitude=number * 7 % 31)
            # Among many samples some chose this operation: take the first one's strength.
            params = op.draw(Draws(number, 0, np.arange(400)), 0, (_SIDE, _SIDE))
            magnitude = float(params["magnitude"][params["choice"] == position][0])
            ours = _square(photo).unsqueeze(0).contiguous(memory_format=torch.channels_last)
            apply_operation(ours, name, np.array([magnitude]), (7, 80, 200))
            return ours[0].float(), do[name](_square(photo), magnitude).float()

        yield Case(f"augment: {name}", "tensor", bounds.get(name, EXACT), compare)


def _draws(number: int) -> Draws:
    return Draws(0, 0, np.array([number]))


def _joined(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.cat([images.flatten(), labels.flatten()])


def _as_tensor(photo: Pixels) -> torch.Tensor:
    return torch.from_numpy(photo).permute(2, 0, 1)


def _square(photo: Pixels) -> torch.Tensor:
    """The middle of the photograph, (3, 224, 224) uint8."""
    top, left = (photo.shape[0] - _SIDE) // 2, (photo.shape[1] - _SIDE) // 2
    return _as_tensor(photo[top : top + _SIDE, left : left + _SIDE].copy())


def _box(crop: T.RandomResizedCrop, photo: Pixels, number: int) -> list[int]:
    box: list[int] = crop.boxes(np.array([photo.shape[:2]]), _draws(number), 0)[0].tolist()
    return box


def _cut(transforms: Any, photo: Pixels, number: int) -> torch.Tensor:
    """Cut the photograph as a CPU backend would, decoding the region only."""
    chain = T.Recipe.of(transforms).draw_cuts(_draws(number), np.array([photo.shape[:2]]))
    top, left, height, width = chain[0].region[0].tolist()
    out = torch.empty((*chain[-1].window[0, 2:].tolist(), 3), dtype=torch.uint8)
    cut_through(photo[top : top + height, left : left + width], [row_cuts(cuts)[0] for cuts in chain], out.numpy())
    return out.permute(2, 0, 1)


def _pixels(op: PixelOp, image: torch.Tensor, number: int) -> torch.Tensor:
    """One pixel operation on one image (3, h, w), in the memory format of blocks."""
    block = image.unsqueeze(0).clone(memory_format=torch.channels_last)
    return op.apply(block, op.draw(_draws(number), 0, (image.shape[1], image.shape[2])))[0]


def _run(recipe: T.Recipe, image: torch.Tensor, number: int) -> torch.Tensor:
    block = image.permute(1, 2, 0).unsqueeze(0).contiguous()
    out = torch.empty(block.shape, dtype=recipe.output_dtype)
    recipe.run_pixels(block, _draws(number), out)
    return out[0].permute(2, 0, 1)
