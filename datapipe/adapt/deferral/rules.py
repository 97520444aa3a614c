"""Decide which chains datapipe's engine may compute. The decision depends on the chain alone, never on a sample's pixels.

So every process decides alike, and a sample has the same pixels wherever it is made. What a chain needs of the engine is tried
on synthetic images, once per process: that a JPEG of its kind decodes as by Pillow, that resizes keep within their tolerance,
that conversions to tensors are exact. What colours make of a resize's tolerance is bounded by the numbers that were drawn.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from datapipe.adapt.deferral import execution
from datapipe.adapt.deferral.graph import JpegSource, Step, fold
from datapipe.adapt.deferral.pillow_seams import PILLOW_STEPS
from datapipe.adapt.deferral.synthetic import jpeg_of, picture
from datapipe.adapt.deferral.tensor_operations import ARITHMETIC, FILTERS
from datapipe.codecs import decode
from datapipe.codecs.probe import probe
from datapipe.transforms.execute import RESIZES
from datapipe.transforms.protocols import Interpolation

# Of 255. A bilinear resize differs by more than 1 in about one value of ten million, a bicubic one in one of a hundred thousand:
# Pillow 13 resizes the columns first where the height shrinks more, and what a bicubic filter makes of sharp edges is clipped
# between the passes. That is 6 at most in photographs, and up to 20 in noise.
TOLERANCE: dict[Interpolation, int] = {"bilinear": 2, "bicubic": 5}
MAX_AMPLIFICATION = 8  # by colours after a resize; SimCLR's strongest jitter has 5.8

NOT_BEGUN = "the engine does not begin with these operations"
AMPLIFIED = f"its colours enlarge what a resize differs by more than {MAX_AMPLIFICATION} times"
RARE = "JPEGs of its kind are rare, and not known to decode alike"


def reason_against(source: JpegSource, steps: list[Step]) -> str | None:
    """Return why Pillow computes a chain; None: the engine does."""
    on_image = [step for step in steps if step.mode != "tensor"]
    front = fold(source, on_image)
    if front is None:
        return NOT_BEGUN
    reason = reason_against_decoding(source.kind)
    if reason is None and front.resampled is not None:
        against = _reason_against_resizing_tensors if front.is_of_tensor else _reason_against_resizing
        reason = against(front.resampled) or _reason_against_colors(on_image[front.num_steps :])
    for step in on_image[front.num_steps :]:
        reason = reason or _reason_against_color(step.name)
    if reason is None and len(steps) > len(on_image):
        mode = on_image[-1].mode if on_image else source.mode
        tried = tuple((step.name, _TRIED_NUMBER if step.name in ARITHMETIC else step.args) for step in steps[len(on_image) :])
        reason = _reason_against_conversion(mode, tried)
    return reason


def _reason_against_colors(steps: list[Step]) -> str | None:
    if math.prod(map(_amplification, steps)) <= MAX_AMPLIFICATION:
        return None
    return AMPLIFIED


def _amplification(step: Step) -> float:
    """Return how many times larger differences between pixels may become."""
    if step.name in ("adjust_brightness", "adjust_contrast", "adjust_saturation"):
        return max(1.0, float(step.args[0]))
    if step.name == "point":
        table = np.array(step.args[0]).reshape(3, 256)
        return max(1.0, float(np.abs(np.diff(table, axis=1)).max()))
    return 1.0


# -- trials on synthetic images ----------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def reason_against_decoding(kind: Hashable) -> str | None:
    """Return why Pillow decodes JPEGs of a kind; None: datapipe's decoder gives the same pixels, whole and by regions."""
    data = jpeg_of(kind)
    if data is None:
        return RARE
    header, decoder = probe(data), decode.open_decoder()
    with Image.open(io.BytesIO(data)) as image:
        exact = np.asarray(image.convert("RGB"))
    for top, left, height, width in ((0, 0, header.height, header.width), (17, 21, 40, 31)):
        ours = decoder(data, header, [top, left, height, width])
        theirs = exact[top : top + height, left : left + width]
        reason = None if ours.shape == theirs.shape else f"it decodes to {ours.shape}"
        reason = reason or disagreement(ours, theirs, 0)
        if reason is not None:
            return reason
    return None


@functools.lru_cache(maxsize=8)
def _reason_against_resizing(interpolation: Interpolation) -> str | None:
    filter_ = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[interpolation]
    pixels = picture(96, 120)
    for height, width in ((40, 50), (120, 150), (7, 9)):  # scaled alike on both sides: see the tolerances
        exact = np.asarray(Image.fromarray(pixels).resize((width, height), filter_))
        reason = disagreement(_resized(pixels, height, width, interpolation), exact, TOLERANCE[interpolation])
        if reason is not None:
            return reason
    return None


@functools.lru_cache(maxsize=8)
def _reason_against_resizing_tensors(interpolation: Interpolation) -> str | None:
    pixels = picture(96, 120)
    for height, width in ((40, 50), (120, 150), (7, 90)):
        exact = np.asarray(PILLOW_STEPS["resize_image"](Image.fromarray(pixels), (width, height), FILTERS[interpolation]))
        reason = disagreement(_resized(pixels, height, width, interpolation), exact, 0)
        if reason is not None:
            return reason
    return None


def _resized(pixels: NDArray[np.uint8], height: int, width: int, interpolation: Interpolation) -> NDArray[np.uint8]:
    out = torch.empty((1, 3, height, width), dtype=torch.uint8)
    RESIZES[interpolation](torch.from_numpy(execution.as_batch(pixels)), [height, width], False, None, None, out=out)
    return out[0].permute(1, 2, 0).numpy()


@functools.lru_cache(maxsize=64)
def _reason_against_color(name: str) -> str | None:
    arguments = _TRIED_COLORS.get(name)
    if arguments is None:
        return None
    image = Image.fromarray(picture(40, 32))
    ours, theirs = execution.FASTER[name](image, *arguments), PILLOW_STEPS[name](image, *arguments)
    return disagreement(np.asarray(ours), np.asarray(theirs), 1)


@functools.lru_cache(maxsize=256)
def _reason_against_conversion(mode: str, steps: tuple[tuple[str, tuple[Any, ...]], ...]) -> str | None:
    pixels = picture(16, 17)
    image = Image.fromarray(pixels if mode == "RGB" else np.ascontiguousarray(pixels[:, :, 0]))
    replayed = [Step(None, name, args, "tensor", image.size) for name, args in steps]  # type: ignore[arg-type]
    theirs = execution.as_tensor(image, replayed)
    ours = execution.finish(execution.planes_of(image), replayed)
    into = execution.finish(execution.planes_of(image), replayed, torch.empty(ours.shape, dtype=ours.dtype))
    agree = torch.equal(theirs, ours) and torch.equal(theirs, into) and theirs.stride() == ours.stride()
    return None if agree else "the conversion to a tensor differs"


_TRIED_NUMBER = (0.7,)  # in place of what the user's code calculates with: each number is treated alike
_TRIED_COLORS: dict[str, tuple[Any, ...]] = {"gaussian_blur": ([5, 5], [1.1, 1.1]), "adjust_hue": (0.1,)}


def disagreement(ours: NDArray[np.uint8], exact: NDArray[np.uint8], most: int) -> str | None:
    """Return how values differ by more than `most`; None if they do not."""
    largest = int(np.abs(ours.astype(np.int16) - exact).max(initial=0))
    return None if largest <= most else f"values of a synthetic image differ by up to {largest} of 255, not {most}"
