"""Carry out recorded steps on pixels: by the functions that were called, or faster, with the same result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image

from datapipe.deferral.graph import Step
from datapipe.deferral.pillow_seams import PILLOW_STEPS
from datapipe.deferral.tensor_operations import ARITHMETIC, OPERATIONS
from datapipe.deferral.torchvision_seams import TENSOR_STEPS
from datapipe.transforms.pixels.blur import blur_planes, gaussian_kernels
from datapipe.transforms.pixels.planar import to_planes

# The output channels (v, p, q or t of Pillow's formula) in each sixth of the circle of hues.
_SIXTHS = ("vtp", "qvp", "pvt", "pqv", "tpv", "vpq")


def by_pillow(image: Image.Image, steps: list[Step]) -> Image.Image:
    """Carry out steps on an image by the functions that were called."""
    for step in steps:
        image = PILLOW_STEPS[step.name](image, *step.args)
    return image


def by_engine(image: Image.Image, steps: list[Step]) -> Image.Image:
    """Execute what follows the front of a chain: with Pillow, except for operations that are slow there."""
    for step in steps:
        function = FASTER.get(step.name) or PILLOW_STEPS[step.name]
        image = function(image, *step.args)
    return image


def as_tensor(image: Image.Image, steps: list[Step]) -> torch.Tensor:
    """Carry out the steps that make a tensor of an image, by the functions that were called."""
    value: Any = image
    for step in steps:
        value = (OPERATIONS.get(step.name) or TENSOR_STEPS[step.name])(value, *step.args)
    return value  # type: ignore[no-any-return]


def image_over(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return an RGB image whose memory are (h, w, 4) RGBX pixels, contiguous and held by nobody else: nothing is copied.

    Pillow has RGB images so in memory, and takes such memory as an Arrow array since 11.2.
    """
    height, width, _ = pixels.shape
    buffer = pa.py_buffer(pixels)
    values = pa.Array.from_buffers(pa.uint8(), buffer.size, [None, buffer])
    return Image.fromarrow(pa.FixedSizeListArray.from_arrays(values, 4), "RGB", (width, height))


# -- to a tensor, bit for bit as torchvision ---------------------------------------------------------


def planes_of(pixels: Any) -> torch.Tensor:
    """Return a (c, h, w) view of a Pillow image or of (h, w, c) pixels."""
    array = np.asarray(pixels)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None]).permute(2, 0, 1)


def as_batch(pixels: Any) -> Any:
    """Return contiguous (h, w, 3) pixels as (1, 3, h, w), without a copy, laid out as torch's resize wants them."""
    height, width, _ = pixels.shape
    return np.ndarray((1, 3, height, width), np.uint8, pixels, 0, (3 * height * width, 1, 3 * width, 3))


def finish(planes: torch.Tensor, steps: list[Step], out: torch.Tensor | None = None) -> torch.Tensor:
    """Execute the steps that make a tensor of uint8 planes (c, h, w), into memory of its own or into `out`."""
    first = steps[0]
    if out is not None and out.dtype is torch.float32:
        value = out.copy_(planes)
    elif first.name in ("pil_to_tensor", "to_image"):
        value = _interleaved(planes.shape, torch.uint8) if out is None else out
        value.copy_(planes)
    elif planes.shape[0] == 1:  # of one channel torch takes both layouts for contiguous, and copies neither
        value = _interleaved(planes.shape, torch.float32).copy_(planes)
    else:
        value = torch.empty(planes.shape, dtype=torch.float32).copy_(planes)
    for step in steps:
        if step.name not in ("pil_to_tensor", "to_image"):
            value = _calculated(value if value.dtype is torch.float32 else value.to(torch.float32), step)
    return value


def _calculated(value: torch.Tensor, step: Step) -> torch.Tensor:
    """Execute a step that calculates with each value of a float32 tensor, in its memory."""
    if step.name == "to_tensor":
        return value.div_(255)
    if step.name == "v2 to_dtype":
        return value.mul_(1.0 / 255)
    if step.name == "rsub":
        return value.neg_().add_(step.args[0])
    if step.name in ARITHMETIC:
        return getattr(value, f"{step.name}_")(step.args[0])  # type: ignore[no-any-return]
    if step.name == "float":
        return value
    mean, std = step.args
    return value.sub_(_per_channel(mean)).div_(_per_channel(std))


@functools.lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def _interleaved(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    channels, height, width = shape
    return torch.empty((height, width, channels), dtype=dtype).permute(2, 0, 1)


# -- colours -----------------------------------------------------------------------------------------


def blurred(image: Image.Image, sizes: list[int], sigma: Any) -> Image.Image:
    """Apply torchvision's blur in two passes, rounded alike: with a square kernel of 23 torchvision takes ten times as long."""
    if not (isinstance(sigma, (list, tuple)) and len(sigma) == 2 and image.mode == "RGB"):
        return PILLOW_STEPS["gaussian_blur"](image, sizes, sigma)  # type: ignore[no-any-return]
    planes = to_planes(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None])
    along_x, along_y = (
        _without_tails(gaussian_kernels(size, np.array([one], np.float64))) for size, one in zip(sizes, sigma, strict=True)
    )
    result = blur_planes(planes, along_x, along_y).round_().to(torch.uint8)[0]
    return Image.fromarray(result.permute(1, 2, 0).contiguous().numpy())


def _without_tails(kernel: NDArray[np.float64]) -> NDArray[np.float64]:
    """The middle of a (1, k) symmetric kernel; what is cut off is less than float32 tells from nothing beside the rest."""
    half = kernel.shape[1] // 2
    tail = int(np.searchsorted(kernel[0, : half + 1], 1e-8))
    return kernel[:, tail : kernel.shape[1] - tail]


def hue_shifted(image: Image.Image, factor: float) -> Image.Image:
    """Return what torchvision's `adjust_hue` returns, bit for bit, for an RGB image.

    Pillow converts each pixel to HSV and back by divisions. The tables below hold all that these can result in.
    """
    hues, saturations = _hsv_tables()
    height, width = image.height, image.width
    pixels = np.asarray(image).reshape(-1, 3)
    red, green, blue = (pixels[:, channel].astype(np.int16) for channel in range(3))
    value = np.maximum(np.maximum(red, green), blue)
    chroma = value - np.minimum(np.minimum(red, green), blue)
    is_red, is_green = red == value, green == value
    place = np.where(is_red, np.int32(0), np.where(is_green, np.int32(1), np.int32(2)))
    place <<= 17
    place += chroma.astype(np.int32) << 9
    place += np.where(is_red, green - blue, np.where(is_green, blue - red, red - green))
    place += 256
    hue = hues.take(place)
    hue += np.int32(factor * 255).astype(np.uint8)  # modulo 256, as in torchvision
    place = value.astype(np.int32)
    place <<= 8
    place += chroma
    saturation = saturations.take(place)
    place = hue.astype(np.int32)
    place <<= 8
    place += saturation
    brightness = value.astype(np.float32)
    out = np.empty((height, width, 3), np.uint8)
    for channel, shares in enumerate(_rgb_tables()):
        result = shares.take(place)
        result *= brightness
        result += 0.5  # the assignment drops the fraction
        out.reshape(-1, 3)[:, channel] = result
    return Image.fromarray(out)


@functools.cache
def _hsv_tables() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the hues by (largest channel, chroma, difference + 256 of the next two), and the saturations by (value, chroma).

    Pillow makes them, from one colour for each.
    """
    chroma, difference = np.mgrid[0:256, -256:256]
    smallest = 255 - chroma
    second = np.clip(smallest + np.maximum(difference, 0), 0, 255)
    third = np.clip(smallest + np.maximum(-difference, 0), 0, 255)
    hues = []
    for largest in range(3):
        colors = np.empty((256, 512, 3), np.uint8)
        colors[..., largest] = 255
        colors[..., (largest + 1) % 3] = second
        colors[..., (largest + 2) % 3] = third
        hues.append(np.array(Image.fromarray(colors).convert("HSV"))[..., 0])
    value, chroma = np.mgrid[0:256, 0:256]
    colors = np.maximum(np.stack([value, value - chroma, value - chroma], -1), 0).astype(np.uint8)
    saturations = np.array(Image.fromarray(colors).convert("HSV"))[..., 1]
    return np.stack(hues).reshape(-1), saturations.reshape(-1)


@functools.cache
def _rgb_tables() -> list[NDArray[np.float32]]:
    """Return for each output channel its share of the value, by (hue, saturation): Pillow's formula, in hsv2rgb of Convert.c."""
    sixths = np.arange(256, dtype=np.float32) * np.float32(6) / np.float32(255)
    number = np.floor(sixths)
    rest = (sixths - number).astype(np.float64)
    weights = {"v": np.zeros(256), "p": np.ones(256), "q": rest, "t": 1 - rest}
    saturation = (np.arange(256, dtype=np.float32) / np.float32(255)).astype(np.float64)
    tables = []
    for channel in range(3):
        weight = np.choose(number.astype(np.int64) % 6, [weights[sixth[channel]] for sixth in _SIXTHS])
        tables.append((1 - saturation * weight[:, None]).astype(np.float32).reshape(-1))
    return tables


FASTER: Mapping[str, Callable[..., Image.Image]] = {"gaussian_blur": blurred, "adjust_hue": hue_shifted}
