"""Adjust colours and tones in place: brightness to sharpness of planes, posterize to equalize of uint8 images.

`planes` are (m, 3, h, w) float32 and `factor` is (m, 1, 1, 1). `top` is 255 for planes that hold the whole numbers of
uint8 images, which stay whole (each step truncates, as torchvision's cast to uint8 does), or 1 for floating point images.
`images` are (m, 3, h, w) uint8.
"""

from __future__ import annotations

import torch

from datapipe.transforms.pixels.planar import Planes, to_planes


def gray(planes: Planes, top: float) -> Planes:
    """Return the (m, 1, h, w) luma by ITU-R BT.601 with torchvision's coefficients."""
    red, green, blue = planes[:, 0:1], planes[:, 1:2], planes[:, 2:3]
    luma = red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)
    return luma.floor_() if top == 255 else luma


def adjust_brightness(planes: Planes, factor: torch.Tensor, top: float) -> None:
    """Scale brightness: towards black (0) or brighter (> 1)."""
    _settle(planes.mul_(factor), top)


def adjust_contrast(planes: Planes, factor: torch.Tensor, top: float) -> None:
    """Scale contrast: towards the mean luma of the image (0) or away from it (> 1)."""
    # Sum in float64, where a sum of whole numbers is exact, so that a flip does not change it.
    mean = gray(planes, top).mean((1, 2, 3), keepdim=True, dtype=torch.float64).to(planes.dtype)
    _settle(planes.mul_(factor).add_(mean.mul_(1 - factor)), top)


def adjust_saturation(planes: Planes, factor: torch.Tensor, top: float) -> None:
    """Scale saturation: towards gray (0) or away from it (> 1)."""
    luma = gray(planes, top).mul_(1 - factor)
    _settle(planes.mul_(factor).add_(luma), top)


def adjust_hue(planes: Planes, turn: torch.Tensor, top: float) -> None:
    """Turn the hue by `turn` of the full circle, in HSV.

    The hue is computed in sixths of the circle and converted back by channel = v - range * clamp(..., 0, 1), with one tent
    function of the hue per channel: the closed form of the piecewise conversion, without its branches.
    """
    red, green, blue = planes[:, 0:1], planes[:, 1:2], planes[:, 2:3]
    # amin and amax, because aminmax takes forty times as long. Masks as numbers, because where takes ten times as long as
    # lerp, which is exact for the weights 0 and 1.
    lowest, highest = planes.amin(1, keepdim=True), planes.amax(1, keepdim=True)
    spread = highest - lowest
    divisor = spread.clamp(min=1e-20)  # if all three are equal, every numerator is 0 as well
    not_red, not_green = (highest - red).sign_(), (highest - green).sign_()
    from_green = (blue - red).div_(divisor).add_(2)
    from_blue = (red - green).div_(divisor).add_(4)
    sixth = (green - blue).div_(divisor).lerp_(from_green.lerp_(from_blue, not_green), not_red)
    sixth.add_(turn * 6)
    sixth.sub_((sixth / 6).floor_().mul_(6))
    torch.addcmul(highest, (sixth - 3).abs_().neg_().add_(2).clamp_(0, 1), spread, value=-1, out=red)
    torch.addcmul(highest, (sixth - 2).abs_().sub_(1).clamp_(0, 1), spread, value=-1, out=green)
    torch.addcmul(highest, (sixth - 4).abs_().sub_(1).clamp_(0, 1), spread, value=-1, out=blue)
    if top == 255:
        planes.clamp_(min=0).mul_((255 + 1.0 - 1e-3) / 255).floor_()  # torchvision's conversion from 0..1 to 0..255
    else:
        planes.clamp_(0, 1)


def adjust_sharpness(planes: Planes, factor: torch.Tensor, top: float) -> None:
    """Scale sharpness: towards a 3 x 3 blur (0) or away from it (> 1); the outermost pixels do not change.

    The blur weighs the pixel itself 5 and its eight neighbours 1.
    """
    if planes.shape[2] <= 2 or planes.shape[3] <= 2:
        return
    inner = planes[:, :, 1:-1, 1:-1]
    rows = (planes[:, :, :-2] + planes[:, :, 1:-1]).add_(planes[:, :, 2:])
    blurred = (rows[:, :, :, :-2] + rows[:, :, :, 1:-1]).add_(rows[:, :, :, 2:]).add_(inner, alpha=4).mul_(1 / 13)
    if top == 255:
        blurred.round_()
    inner.add_(blurred.sub_(inner).mul_(1 - factor))
    _settle(planes, top)


def posterize(images: torch.Tensor, bits: torch.Tensor) -> None:
    """Keep the `bits` (one number, or (m, 1, 1, 1); 0 to 8) highest bits."""
    shift = 8 - bits
    images.bitwise_and_(((255 >> shift) << shift).to(torch.uint8))


def solarize(images: torch.Tensor, threshold: torch.Tensor) -> None:
    """Invert values of at least `threshold` (one number, or (m, 1, 1, 1); 0 to 255, may be fractional)."""
    lowest = threshold.ceil().clamp(max=255).to(torch.uint8)
    torch.where(images >= lowest, ~images, images, out=images)


def autocontrast(images: torch.Tensor) -> None:
    """Stretch each channel to 0..255; a channel of a single value does not change."""
    planes = to_planes(images)
    lowest, highest = planes.amin((2, 3), keepdim=True), planes.amax((2, 3), keepdim=True)
    flat = highest == lowest
    lowest.masked_fill_(flat, 0)
    scale = highest.sub_(lowest).mul_(1.0 / 255).masked_fill_(flat, 1)
    images.copy_(planes.sub_(lowest).div_(scale).clamp_(0, 255))


def equalize(images: torch.Tensor) -> None:
    """Equalize each channel's histogram in whole numbers, like PIL's ImageOps.equalize."""
    num_samples, _, height, width = images.shape
    values = images.reshape(num_samples, 3, height * width).long()
    counts = torch.zeros((num_samples, 3, 256), dtype=torch.long, device=images.device)
    counts.scatter_add_(2, values, torch.ones(1, dtype=torch.long, device=images.device).expand_as(values))
    below = counts.cumsum(2)
    brightest = below.argmax(2, keepdim=True)  # the first value at which all pixels are counted
    step = (height * width - counts.gather(2, brightest)) // 255
    table = (below - counts + step // 2) // step.clamp(min=1)  # from the pixels darker than the value
    unchanged = torch.arange(256, device=images.device).expand_as(table)
    table = torch.where(step > 0, table.clamp_(max=255), unchanged).to(torch.uint8)
    images.copy_(table.gather(2, values).view(num_samples, 3, height, width))


def _settle(planes: Planes, top: float) -> None:
    planes.clamp_(0, top)
    if top == 255:
        planes.floor_()
