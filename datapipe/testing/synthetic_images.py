"""Generate photographs: an image folder for trials, with nothing to download.

The pictures have the properties of photographs that matter to loaders: ImageNet's sizes, about 78 KB of JPEG each, a
spectrum that falls with frequency, hard edges, occlusion. Each shows one large object whose colour,
outline and stripes belong to its class, so a small network learns them within an epoch.

Backgrounds are dead leaves (discs of all sizes that occlude each other: the simplest images with the
statistics of natural ones; Lee, Mumford and Huang, "Occlusion Models for Natural Images", 2001) with
1/f noise over them. Needs numpy and Pillow only.
"""

from __future__ import annotations

import colorsys
import io
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from datapipe.errors import OptionError

# (width, height) in pixels and frequency: the sizes that make up most of ImageNet.
SCALES: dict[str, tuple[tuple[tuple[int, int], float], ...]] = {
    "imagenet": (
        ((500, 375), 0.36), ((500, 333), 0.15), ((375, 500), 0.14), ((640, 480), 0.13), ((800, 600), 0.10), ((400, 300), 0.12),
    ),
    "small": (((80, 60), 0.5), ((60, 80), 0.2), ((96, 64), 0.3)),
}  # fmt: skip

_CANVAS = {"imagenet": 1536, "small": 384}  # side of the textures from which pictures are cut, pixels
_NUM_CANVASES = 3
_QUALITY = 90
_Pixel = TypeVar("_Pixel", bound=np.generic)
_LEAST_DETAIL, _MOST_DETAIL = 0.05, 1.3  # gain of the noise: it sets the bytes per pixel


@dataclass(frozen=True, slots=True)
class _Canvases:
    """Large textures, made once."""

    leaves: list[NDArray[np.float32]]  # (side, side, 3), 0 to 255
    noise: list[NDArray[np.float32]]  # (side, side, 3), zero mean


def make_image_folder(
    directory: str | os.PathLike[str],
    *,
    num_images: int,
    num_classes: int = 10,
    seed: int = 0,
    scale: str = "imagenet",
    num_threads: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Path:
    """Write `num_images` JPEGs to `directory/class_NNN/NNNNNN.jpg` and return the directory.

    Classes take turns, so they are equally large to within one. The same arguments give the same
    files (of one version of numpy and Pillow), whatever the number of threads; None takes one per
    core. `scale`: "imagenet" (0.1 to 0.5 megapixels) or "small" (under 100 pixels, for tests).
    `on_progress` is called with 1 for each file, from any of the threads. Raises OptionError for
    counts below 1, an unknown scale, or a directory that holds anything already.
    """
    root = Path(directory)
    if num_images < 1 or num_classes < 1:
        raise OptionError(f"num_images is {num_images} and num_classes {num_classes}; both must be at least 1")
    if scale not in SCALES:
        raise OptionError(f"scale is {scale!r}; choose one of {', '.join(map(repr, SCALES))}")
    if root.exists() and any(root.iterdir()):
        raise OptionError(f"{root}: is not empty; choose a new directory for the generated images")
    for label in range(min(num_classes, num_images)):
        (root / class_name(label)).mkdir(parents=True, exist_ok=True)
    canvases = _make_canvases(seed, _CANVAS[scale])

    def write(number: int) -> None:
        label = number % num_classes
        data = _encode_image(_draw_image(number, label=label, seed=seed, scale=scale, canvases=canvases), number)
        (root / class_name(label) / f"{number:06d}.jpg").write_bytes(data)
        if on_progress is not None:
            on_progress(1)

    with ThreadPoolExecutor(num_threads or len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(write, range(num_images)):
            pass
    return root


def class_name(label: int) -> str:
    """Return the folder name of a class."""
    return f"class_{label:03d}"


def _draw_image(number: int, *, label: int, seed: int, scale: str, canvases: _Canvases) -> NDArray[np.uint8]:
    """Return the picture of that number and class, (height, width, 3) RGB."""
    rng = np.random.default_rng((seed, number))
    sizes, shares = zip(*SCALES[scale], strict=True)
    width, height = sizes[rng.choice(len(sizes), p=shares)]
    above, below = rng.uniform(0.65, 1.15, 2).tolist()
    light = np.linspace(above, below, height, dtype=np.float32)[:, None, None]
    picture = _cut(canvases.leaves, rng, height, width) * light
    mask = Image.new("L", (width, height))
    _draw_outline(ImageDraw.Draw(mask), label % len(_OUTLINES), rng, width, height)
    left, top, right, bottom = mask.getbbox() or (0, 0, 0, 0)
    box = np.s_[top:bottom, left:right]
    shades = np.array([0.6, 1.0], np.float32)[_stripes(label, rng, height, width)[box], None] * light[top:bottom]
    np.copyto(picture[box], shades * _class_color(label, rng), where=np.asarray(mask)[box][:, :, None] > 0)
    detail = math.exp(rng.uniform(math.log(_LEAST_DETAIL), math.log(_MOST_DETAIL)))
    picture += _cut(canvases.noise, rng, height, width) * np.float32(detail)
    return np.clip(picture, 0, 255, out=picture).astype(np.uint8)


def _encode_image(pixels: NDArray[np.uint8], number: int) -> bytes:
    """Return JPEG bytes; every third picture keeps full chroma, as about a third of ImageNet does."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY, subsampling=0 if number % 3 == 2 else 2)
    return file.getvalue()


# -- classes -------------------------------------------------------------------------------------


def _class_color(label: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the class's hue (golden-section steps around the circle), with some variation."""
    hue = (label * 0.6180339887 + rng.normal(0, 0.02)) % 1.0
    return np.array(colorsys.hsv_to_rgb(hue, rng.uniform(0.6, 0.95), rng.uniform(0.6, 0.95)), np.float32) * 255


def _stripes(label: int, rng: np.random.Generator, height: int, width: int) -> NDArray[np.int32]:
    """Return (height, width) bands of 0 and 1 whose direction belongs to the class."""
    angle = math.pi * (label % 7) / 7 + rng.normal(0, 0.08)
    period = min(height, width) / rng.uniform(8, 14)
    per_band = 2 / period
    y = np.arange(height, dtype=np.float32)[:, None] * np.float32(math.sin(angle) * per_band)
    x = np.arange(width, dtype=np.float32)[None, :] * np.float32(math.cos(angle) * per_band)
    bands = x + y
    bands -= bands.min()
    return bands.astype(np.int32) & 1


def _draw_outline(draw: ImageDraw.ImageDraw, outline: int, rng: np.random.Generator, width: int, height: int) -> None:
    """Draw a filled shape over a third to a half of the shorter side, from the picture's centre."""
    radius = min(width, height) * rng.uniform(0.3, 0.5)
    x, y = width * rng.uniform(0.35, 0.65), height * rng.uniform(0.35, 0.65)
    corners, inner = _OUTLINES[outline]
    if corners == 0:
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
        return
    turn = rng.uniform(-0.3, 0.3)
    angles = turn + np.arange(2 * corners) * math.pi / corners
    reach = np.where(np.arange(2 * corners) % 2, inner, 1.0) * radius
    draw.polygon([(x + r * math.sin(a), y - r * math.cos(a)) for a, r in zip(angles, reach, strict=True)], fill=255)


# (corners, how far the points between them reach): disc, triangle, square, star, hexagon, cross-like star.
_OUTLINES = ((0, 1.0), (3, 0.5), (4, 0.7071), (5, 0.45), (6, 0.866), (4, 0.3))


# -- textures ------------------------------------------------------------------------------------


def _make_canvases(seed: int, side: int) -> _Canvases:
    rngs = [np.random.default_rng((seed, 0x5EED, part)) for part in range(_NUM_CANVASES)]
    return _Canvases([_dead_leaves(rng, side) for rng in rngs], _pink_noises(rngs[0], side))


def _cut(canvases: list[NDArray[_Pixel]], rng: np.random.Generator, height: int, width: int) -> NDArray[_Pixel]:
    """Return a window of one of the canvases at a random place, mirrored half the time."""
    canvas = canvases[rng.integers(len(canvases))]
    top, left = rng.integers(canvas.shape[0] - height), rng.integers(canvas.shape[1] - width)
    window = canvas[top : top + height, left : left + width]
    return window[:, ::-1] if rng.random() < 0.5 else window


def _dead_leaves(rng: np.random.Generator, side: int) -> NDArray[np.float32]:
    """Return discs with radii distributed as r^-3, small ones as likely on top as large ones."""
    canvas = Image.new("RGB", (side, side))
    draw = ImageDraw.Draw(canvas)
    number = round(5_000 * (side / 1536) ** 2)  # enough to cover it several times
    smallest, largest = 14.0, 300.0
    share = rng.random(number)
    radii = (smallest**-2 - share * (smallest**-2 - largest**-2)) ** -0.5
    places = rng.uniform(0, side, (number, 2))
    grey = rng.uniform(40, 215, (number, 1))
    colors = np.clip(grey + rng.normal(0, 22, (number, 3)), 0, 255).astype(int)
    draw.rectangle((0, 0, side, side), fill=(110, 115, 120))
    for (x, y), r, color in zip(places.tolist(), radii.tolist(), colors.tolist(), strict=True):
        draw.ellipse((x - r, y - r, x + r, y + r), fill=tuple(color))
    return np.asarray(canvas, np.float32)


def _pink_noises(rng: np.random.Generator, side: int) -> list[NDArray[np.float32]]:
    """Return noises of zero mean whose amplitude falls as 1/f; mostly grey, as light varies more than colour."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :]).astype(np.float32)
    frequency[0, 0] = np.inf
    planes = []
    for _ in range(4):
        plane = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((side, side), np.float32)) / frequency, (side, side))
        planes.append(plane / plane.std())
    noises = []
    for turn in range(_NUM_CANVASES):  # which of the planes is the light's
        light, *colors = planes[turn:] + planes[:turn]
        noise = np.empty((side, side, 3), np.float32)
        for channel, color in enumerate(colors):
            np.add(light * np.float32(30), color * np.float32(10), out=noise[:, :, channel])
        noises.append(noise)
    return noises
