"""What is compared with torchvision, how, and how far apart the two may be.

Each case takes one photograph and a number, draws parameters with datapipe's own draws, and carries
them out twice: by datapipe, and by torchvision.transforms.v2.functional with the same parameters. Both
results are scaled to 0..255. The bounds are what the documentation publishes; the tests hold them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.parity_case import (
    EXACT,
    FLOAT_RESIZE,
    NEARLY,
    PIL_CUBIC,
    PIL_RESIZE,
    SIDE,
    Bound,
    Case,
    Pair,
    Pixels,
    as_tensor,
    box_of,
    cut,
    pixels,
    run,
    square,
    torchvision_resizes,
)
from benchmarks.parity_pixel_cases import augment_cases, pixel_cases
from datapipe import transforms as T


def cases(resizes: str = "") -> list[Case]:
    """All of them. Raises ImportError where torchvision is not installed.

    `resizes`: what to take the bounds for, a result of `torchvision_resizes`; that of this process by default.
    """
    import_torchvision()
    tv = importlib.import_module("torchvision.transforms.v2.functional")
    on_tensors = EXACT if (resizes or torchvision_resizes()) == "integers" else FLOAT_RESIZE
    return [*_geometry_cases(tv, on_tensors), *_dtype_cases(tv), *pixel_cases(tv), *augment_cases(tv)]


def _geometry_cases(tv: Any, bilinear_on_tensors: Bound) -> Iterator[Case]:
    size = [SIDE, SIDE]
    bilinear = (bilinear_on_tensors, PIL_RESIZE)

    def case(name: str, transform: Any, bounds: tuple[Bound, Bound], do: Callable[[Any, Pixels, int], Any]) -> Iterator[Case]:
        for against, bound in zip(("tensor", "PIL"), bounds, strict=True):

            def compare(photo: Pixels, number: int, against: str = against) -> Pair:
                theirs = do(as_tensor(photo) if against == "tensor" else tv.to_pil_image(as_tensor(photo)), photo, number)
                theirs = theirs if against == "tensor" else tv.pil_to_tensor(theirs)
                return cut(transform, photo, number).float(), theirs.float()

            yield Case(name, against, bound, compare)

    crop = T.RandomResizedCrop(SIDE)
    yield from case(
        "RandomResizedCrop",
        crop,
        bilinear,
        lambda image, photo, number: tv.resized_crop(image, *box_of(crop, photo, number), size),
    )
    yield from case("Resize, shorter side", T.Resize(180), bilinear, lambda image, *_: tv.resize(image, [180]))
    yield from case("Resize, enlarging", T.Resize((700, 900)), bilinear, lambda image, *_: tv.resize(image, [700, 900]))
    cubic: dict[str, Any] = {"interpolation": "bicubic"}
    cubic_crop = T.RandomResizedCrop(SIDE, **cubic)
    yield from case(
        "RandomResizedCrop, bicubic", cubic_crop, (EXACT, PIL_CUBIC),
        lambda image, photo, number: tv.resized_crop(
            image, *box_of(cubic_crop, photo, number), size, interpolation=tv.InterpolationMode.BICUBIC
        ),
    )  # fmt: skip
    for name, wanted in (("shorter side", 180), ("enlarging", (700, 900))):
        yield from case(
            f"Resize, {name}, bicubic", T.Resize(wanted, **cubic), (EXACT, PIL_CUBIC),
            lambda image, *_, wanted=wanted: tv.resize(image, wanted, interpolation=tv.InterpolationMode.BICUBIC),
        )  # fmt: skip
    yield from case("CenterCrop", T.CenterCrop(SIDE), (EXACT, EXACT), lambda image, *_: tv.center_crop(image, size))
    yield from case(
        "CenterCrop, padding", T.CenterCrop((601, 444)), (EXACT, EXACT), lambda image, *_: tv.center_crop(image, [601, 444])
    )
    yield from case(
        "Pad", T.Pad((3, 5, 7, 2), fill=(9, 8, 7)), (EXACT, EXACT), lambda image, *_: tv.pad(image, [3, 5, 7, 2], fill=[9, 8, 7])
    )
    flip = T.RandomHorizontalFlip(1)
    yield from case("RandomHorizontalFlip", flip, (EXACT, EXACT), lambda image, *_: tv.horizontal_flip(image))
    yield from case("RandomVerticalFlip", T.RandomVerticalFlip(1), (EXACT, EXACT), lambda image, *_: tv.vertical_flip(image))
    resize_crop_flip = [T.Resize(256), T.CenterCrop(SIDE), T.RandomHorizontalFlip(1)]
    yield from case(
        "Resize, CenterCrop, flip", resize_crop_flip, bilinear,
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
            ours = pixels(T.ToDtype(dtype, scale=True), square(photo), number)
            return ours.float() * 255, tv.to_dtype(square(photo), dtype, scale=True).float() * 255

        def normalise(photo: Pixels, number: int, dtype: torch.dtype = dtype) -> Pair:
            recipe = T.Recipe.of([T.ToDtype(dtype, scale=True), T.Normalize(mean, std)])
            theirs = tv.normalize(tv.to_dtype(square(photo), dtype, scale=True), list(mean), list(std))
            return run(recipe, square(photo), number).float() * to_255, theirs.float() * to_255

        yield Case(f"ToDtype({name}, scale=True)", "tensor", EXACT, convert)
        yield Case(f"ToDtype({name}, scale=True), Normalize", "tensor", bound, normalise)

    def back(photo: Pixels, number: int) -> Pair:
        image = tv.to_dtype(square(photo), torch.float32, scale=True).mul_(0.7)
        ours = pixels(T.ToDtype(torch.uint8, scale=True), image, number)
        return ours.float(), tv.to_dtype(image, torch.uint8, scale=True).float()

    def alone(photo: Pixels, number: int) -> Pair:
        image = tv.to_dtype(square(photo), torch.float32, scale=True)
        theirs = tv.normalize(image, list(mean), list(std)) * to_255
        return pixels(T.Normalize(mean, std), image, number) * to_255, theirs

    yield Case("ToDtype(uint8, scale=True)", "tensor", EXACT, back)
    yield Case("Normalize", "tensor", NEARLY, alone)
