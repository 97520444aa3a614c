"""Pixel and batch operations: what is compared with torchvision's, and how far apart the two may be."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.parity_case import (
    EXACT,
    NEARLY,
    NEIGHBOUR,
    ONE_STEP,
    PIL_HUE,
    PIL_NEIGHBOUR,
    PIL_STEP,
    SIDE,
    THRESHOLD,
    Bound,
    Case,
    Pair,
    Pixels,
    draws_of,
    joined,
    pixels,
    square,
)
from datapipe import transforms as T
from datapipe.order.draws import Draws
from datapipe.transforms.pixels.auto_augment import OPERATIONS, apply_operation


def pixel_cases(tv: Any) -> Iterator[Case]:
    """Operations on uint8 and float32 tensors, and on PIL images; `tv` is torchvision.transforms.v2.functional."""
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

    for op, do, integer, pil in (
        (T.ColorJitter(brightness=0.4), jitter, ONE_STEP, ONE_STEP),
        (T.ColorJitter(contrast=0.4), jitter, ONE_STEP, PIL_STEP),
        (T.ColorJitter(saturation=0.4), jitter, ONE_STEP, PIL_STEP),
        (T.ColorJitter(hue=0.1), jitter, ONE_STEP, PIL_HUE),
        (T.ColorJitter(0.4, 0.4, 0.4), jitter, Bound(4, 2, 0.05), Bound(5, 4, 1.5)),
        (T.ColorJitter(0.4, 0.4, 0.4, 0.1), jitter, Bound(4, 2, 0.05), PIL_HUE),
        (T.RandomGrayscale(1.0), gray, ONE_STEP, PIL_STEP),
        (T.GaussianBlur(23), blur, ONE_STEP, ONE_STEP),
        (T.GaussianBlur((3, 7), sigma=(0.5, 5)), blur, ONE_STEP, ONE_STEP),
        (T.RandomErasing(1.0), erase, EXACT, EXACT),
        (T.RandomErasing(1.0, value=(10, 20, 30)), erase, EXACT, EXACT),
    ):
        yield _pil_case(tv, op, do, pil)
        for dtype in (torch.uint8, torch.float32):

            def compare(photo: Pixels, number: int, op: Any = op, do: Any = do, dtype: torch.dtype = dtype) -> Pair:
                image = tv.to_dtype(square(photo), dtype, scale=True)
                unit = 1.0 if dtype == torch.uint8 else 255.0
                params = op.draw(draws_of(number), 0, (SIDE, SIDE))
                theirs = do(image, params, op)
                return pixels(op, image, number).float() * unit, theirs.float() * unit

            bound = integer if dtype == torch.uint8 else EXACT if integer is EXACT else NEARLY
            yield Case(f"{op!r}, {str(dtype).removeprefix('torch.')}", "tensor", bound, compare)

    occasional: list[tuple[Any, Callable[[Any], Any], Bound, Bound]] = [
        (T.RandomInvert(1.0), tv.invert, EXACT, EXACT),
        (T.RandomPosterize(3, 1.0), lambda image: tv.posterize(image, 3), EXACT, EXACT),
        (T.RandomSolarize(100, 1.0), lambda image: tv.solarize(image, 100), EXACT, EXACT),
        (T.RandomAutocontrast(1.0), tv.autocontrast, ONE_STEP, PIL_STEP),
        (T.RandomEqualize(1.0), tv.equalize, EXACT, EXACT),
        (T.RandomAdjustSharpness(2.5, 1.0), lambda image: tv.adjust_sharpness(image, 2.5), ONE_STEP, ONE_STEP),
    ]
    for op, apply, bound, pil in occasional:

        def happen(photo: Pixels, number: int, op: Any = op, apply: Any = apply) -> Pair:
            return pixels(op, square(photo), number).float(), apply(square(photo)).float()

        yield Case(f"{op!r}, uint8", "tensor", bound, happen)
        yield _pil_case(tv, op, lambda image, params, op, apply=apply: apply(image), pil)
    yield from _mix_cases()


def _pil_case(tv: Any, op: Any, do: Callable[..., Any], bound: Bound) -> Case:
    """One operation on uint8 images, against torchvision's on PIL images."""

    def compare(photo: Pixels, number: int) -> Pair:
        params = op.draw(draws_of(number), 0, (SIDE, SIDE))
        theirs = tv.pil_to_tensor(do(tv.to_pil_image(square(photo)), params, op))
        return pixels(op, square(photo), number).float(), theirs.float()

    return Case(f"{op!r}, uint8", "PIL", bound, compare)


def _mix_cases() -> Iterator[Case]:
    v2: Any = importlib.import_module("torchvision.transforms.v2")

    def compare(photo: Pixels, number: int, name: str) -> Pair:
        batch = torch.stack([square(photo), square(photo).flip(1), square(photo).flip(0)]).float() / 255
        labels = torch.tensor([0, 2, 1])
        op: Any = getattr(T, name)(alpha=0.8, num_classes=3)
        params = op.draw(draws_of(number), 0, (SIDE, SIDE))
        ours, our_labels = op.apply(batch.clone(), labels, params)
        their = getattr(v2, name)(alpha=0.8, num_classes=3)
        lam = float(params["lam"][0])
        given = {"labels": labels, "batch_size": 3, "lam": lam, "lam_adjusted": lam}
        if name == "CutMix":
            top, left, height, width = params["box"][0].tolist()
            given["box"] = (left, top, left + width, top + height)
        theirs, their_labels = their.transform(batch, given), their.transform(labels, given)
        return joined(ours, our_labels) * 255, joined(theirs, their_labels) * 255

    yield Case("MixUp", "tensor", NEARLY, lambda photo, number: compare(photo, number, "MixUp"))
    yield Case("CutMix", "tensor", NEARLY, lambda photo, number: compare(photo, number, "CutMix"))


def augment_cases(tv: Any) -> Iterator[Case]:
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
    on_pil = bounds | dict.fromkeys(("Color", "Contrast", "AutoContrast"), PIL_STEP) | {"Solarize": THRESHOLD}
    on_pil |= dict.fromkeys(("ShearX", "ShearY", "Rotate"), PIL_NEIGHBOUR)
    for position, name in enumerate(OPERATIONS):

        def compare(photo: Pixels, number: int, name: str = name, position: int = position, on_pil: bool = False) -> Pair:
            op = T.TrivialAugmentWide() if number % 2 else T.RandAugment(num_ops=1, magnitude=number * 7 % 31)
            # Among many samples some chose this operation: take the first one's strength.
            params = op.draw(Draws(number, 0, np.arange(400)), 0, (SIDE, SIDE))
            magnitude = float(params["magnitude"][params["choice"] == position][0])
            ours = square(photo).unsqueeze(0).contiguous(memory_format=torch.channels_last)
            apply_operation(ours, name, np.array([magnitude]), (7, 80, 200))
            theirs = do[name](tv.to_pil_image(square(photo)) if on_pil else square(photo), magnitude)
            return ours[0].float(), (tv.pil_to_tensor(theirs) if on_pil else theirs).float()

        yield Case(f"augment: {name}", "tensor", bounds.get(name, EXACT), compare)
        yield Case(f"augment: {name}", "PIL", on_pil.get(name, EXACT), functools.partial(compare, on_pil=True))
