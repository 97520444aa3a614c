"""Decide which chains datapipe's engine may compute. The decision depends on the chain alone, never on a sample's pixels.

So every process decides alike, and a sample has the same pixels wherever it is made. What a chain needs of the engine is tried
on synthetic images, once per process: that a JPEG of its kind decodes as by Pillow, that resizes keep within their tolerance,
that conversions to tensors are exact. What colours make of a resize's tolerance is bounded by the numbers that were drawn.
"""

from __future__ import annotations

import io
import math
from collections.abc import Hashable, Iterable
from typing import Any, cast

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

from datapipe.codecs import decode
from datapipe.codecs.probe import probe
from datapipe.deferral import execution
from datapipe.deferral.graph import JpegSource, Node, Step, chain_of, fold
from datapipe.deferral.pillow_seams import PILLOW_STEPS
from datapipe.deferral.preparing import tried_once
from datapipe.deferral.tensor_operations import ARITHMETIC, FILTERS
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
        reason = _reason_against_resizing(front.resampled, front.is_of_tensor)
        if reason is None and math.prod(map(_amplification, on_image[front.num_steps :])) > MAX_AMPLIFICATION:
            reason = AMPLIFIED
    for step in on_image[front.num_steps :]:
        reason = reason or _reason_against_color(step.name)
    if reason is None and len(steps) > len(on_image):
        mode = on_image[-1].mode if on_image else source.mode
        tried = tuple((step.name, _TRIED_NUMBER if step.name in ARITHMETIC else step.args) for step in steps[len(on_image) :])
        reason = _reason_against_conversion(mode, tried)
    return reason


def are_exact(nodes: Iterable[Node]) -> bool:
    """Return whether images have the pixels that Pillow would give them, bit for bit, whatever computes them."""
    return not any(_is_approximated(*chain_of(node)) for node in nodes)


def _is_approximated(source: JpegSource, steps: list[Step]) -> bool:
    front = fold(source, steps)
    if front is None or reason_against(source, steps) is not None:
        return False
    is_resized = front.resampled is not None and not front.is_of_tensor
    return is_resized or any(step.name in execution.FASTER for step in steps[front.num_steps :])


def _amplification(step: Step) -> float:
    """Return how many times larger differences between pixels may become."""
    if step.name in ("adjust_brightness", "adjust_contrast", "adjust_saturation"):
        return max(1.0, float(step.args[0]))
    if step.name == "point":
        table = np.array(step.args[0]).reshape(3, 256)
        return max(1.0, float(np.abs(np.diff(table, axis=1)).max()))
    return 1.0


# -- trials on synthetic images ----------------------------------------------------------------------


@tried_once
def reason_against_decoding(kind: Hashable) -> str | None:
    """Return why Pillow decodes JPEGs of a kind; None: datapipe's decoder gives the same pixels, whole and by regions."""
    data = _jpeg_of(kind)
    if data is None:
        return RARE
    header, decoder = probe(data), decode.open_decoder()
    with Image.open(io.BytesIO(data)) as image:
        exact = np.asarray(image.convert("RGB"))
    for top, left, height, width in ((0, 0, header.height, header.width), (17, 21, 40, 31)):
        ours = decoder(data, header, [top, left, height, width])
        theirs = exact[top : top + height, left : left + width]
        reason = disagreement(ours, theirs, 0)
        if reason is not None:
            return reason
    return None


@tried_once
def reason_against_whole(kind: Hashable) -> str | None:
    """Return why Pillow decodes whole JPEGs of a kind; None: simplejpeg gives the same pixels, also in Pillow's layout."""
    if not hasattr(Image, "fromarrow"):
        return "this Pillow does not take images from memory"
    data = _jpeg_of(kind)
    if data is None:
        return RARE
    with Image.open(io.BytesIO(data)) as image:
        exact = np.asarray(image.convert("RGB"))
    made = simplejpeg.decode_jpeg(data, "RGB"), np.asarray(execution.image_over(simplejpeg.decode_jpeg(data, "RGBX")))
    return disagreement(made[0], exact, 0) or disagreement(made[1], exact, 0)


@tried_once
def _reason_against_resizing(interpolation: Interpolation, is_of_tensor: bool) -> str | None:
    resize, most = (PILLOW_STEPS["resize_image"], 0) if is_of_tensor else (PILLOW_STEPS["resize"], TOLERANCE[interpolation])
    pixels = picture(96, 120)
    # An image is scaled alike on both sides: see the tolerances.
    for height, width in ((40, 50), (120, 150), (7, 90 if is_of_tensor else 9)):
        exact = np.asarray(resize(Image.fromarray(pixels), (width, height), FILTERS[interpolation]))
        reason = disagreement(_resized(pixels, height, width, interpolation), exact, most)
        if reason is not None:
            return reason
    return None


def _resized(pixels: NDArray[np.uint8], height: int, width: int, interpolation: Interpolation) -> NDArray[np.uint8]:
    out = torch.empty((1, 3, height, width), dtype=torch.uint8)
    RESIZES[interpolation](torch.from_numpy(execution.as_batch(pixels)), [height, width], False, None, None, out=out)
    return out[0].permute(1, 2, 0).numpy()


@tried_once
def _reason_against_color(name: str) -> str | None:
    arguments = _TRIED_COLORS.get(name)
    if arguments is None:
        return None
    image = Image.fromarray(picture(40, 32))
    ours, theirs = execution.FASTER[name](image, *arguments), PILLOW_STEPS[name](image, *arguments)
    return disagreement(np.asarray(ours), np.asarray(theirs), 1)


@tried_once
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
    """Return how shapes differ, or values by more than `most`; None if they do not."""
    if ours.shape != exact.shape:
        return f"it decodes to {ours.shape}"
    largest = int(np.abs(ours.astype(np.int16) - exact).max(initial=0))
    return None if largest <= most else f"values of a synthetic image differ by up to {largest} of 255, not {most}"


# -- JPEGs of every kind that cameras and libraries write, the same in every process --------------------

_HEIGHT, _WIDTH = 72, 88
_SUBSAMPLINGS = {(1, 1): "444", (2, 1): "422", (2, 2): "420", (1, 2): "440"}
_BY_PILLOW = {"444": 0, "422": 1, "420": 2}
_YCC, _RGB, _FROM_ZERO = (1, 2, 3), (82, 71, 66), (0, 1, 2)  # what components are called
_SOF, _SOS, _ADOBE = (0xC0, 0xC1, 0xC2), 0xDA, 0xEE


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """Return (height, width, 3) RGB with gradients, edges, saturated colours and noise."""
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([x * 255 / width, y * 255 / height, 127 + 127 * np.sin(x / 9 + y / 5)], -1)
    noise = np.random.default_rng(17).normal(0, 20, smooth.shape)
    edges = ((x // 11 + y // 7) % 5 == 0)[:, :, None] * np.array([255, -255, 120])
    made: NDArray[np.uint8] = np.clip(smooth + noise + edges, 0, 255).astype(np.uint8)
    return made


def _jpeg_of(kind: Hashable) -> bytes | None:
    """Return a JPEG of a source's kind; None for a kind that is not known to be decoded alike by all decoders."""
    mode, layers, transform, is_progressive, is_jfif = cast(Any, kind)
    if mode == "L":
        if len(layers) != 1 or layers[0][1] != layers[0][2] or layers[0][1] > 2:
            return None
        data = _encoded(Image.fromarray(picture(_HEIGHT, _WIDTH)[:, :, 0]), progressive=is_progressive)
        return _relabelled(data, (layers[0][0],), None, is_jfif=is_jfif)
    if len(layers) != 3:
        return None
    names, factors = tuple(layer[0] for layer in layers), tuple(layer[1:] for layer in layers)
    subsampling = _SUBSAMPLINGS.get(factors[0])
    if subsampling is None or factors[1:] != ((1, 1), (1, 1)) or names not in (_YCC, _RGB, _FROM_ZERO):
        return None
    if transform not in (None, 0, 1):
        return None
    if subsampling in _BY_PILLOW:
        data = _encoded(
            Image.fromarray(picture(_HEIGHT, _WIDTH)), progressive=is_progressive, subsampling=_BY_PILLOW[subsampling]
        )
    elif is_progressive:
        return None
    else:
        data = simplejpeg.encode_jpeg(picture(_HEIGHT, _WIDTH), quality=90, colorspace="RGB", colorsubsampling=subsampling)
    return _relabelled(data, names, transform, is_jfif=is_jfif)


def _encoded(image: Image.Image, **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=90, **options)
    return sink.getvalue()


def _relabelled(data: bytes, names: tuple[int, ...], transform: int | None, *, is_jfif: bool) -> bytes:
    """Return a JPEG whose components have those names, with Adobe's marker (None: without), and with JFIF's or without."""
    made, position = bytearray(b"\xff\xd8"), 2
    if transform is not None:
        made += b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([transform])
    while True:
        marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        segment = bytearray(data[position : position + 2 + length])
        position += 2 + length
        if marker in _SOF:
            for number, name in enumerate(names):
                segment[10 + 3 * number] = name
        is_dropped = marker == _ADOBE or (marker == 0xE0 and not is_jfif)
        if marker != _SOS:
            made += b"" if is_dropped else segment
            continue
        return bytes(made) + _with_scans(data, position - 2 - length, names)


def _with_scans(data: bytes, position: int, names: tuple[int, ...]) -> bytes:
    """Return the scans from `position` to the end, with their components renamed."""
    made, before = bytearray(data[position:]), {number + 1: name for number, name in enumerate(names)}
    at = 0
    while True:
        at = made.find(b"\xff\xda", at)
        if at < 0:
            return bytes(made)
        for number in range(made[at + 4]):
            place = at + 5 + 2 * number
            made[place] = before[made[place]]
        at += 2
