"""Draw the demo's picture with Pillow: two pairs of bars and two curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from datapipe.core.atomic import atomic_writer

if TYPE_CHECKING:
    from datapipe.cli.demo_training import Comparison

_WIDTH, _HEIGHT = 1200, 460
_INK, _FAINT, _PAPER = "#222222", "#CCCCCC", "#FFFFFF"
_COLORS = {"torch": "#999999", "datapipe": "#0072B2"}  # distinct in lightness too
_NAMES = {"torch": "torch DataLoader, files", "datapipe": "datapipe, shards"}


def draw(comparison: Comparison, path: Path) -> None:
    """Write the picture as PNG."""
    image = Image.new("RGB", (_WIDTH, _HEIGHT), _PAPER)
    canvas = ImageDraw.Draw(image)
    _bars(canvas, comparison, (40, 60, 560, 400))
    _curves(canvas, comparison, (680, 60, 1160, 400))
    for number, (name, title) in enumerate(_NAMES.items()):
        left = 40 + 300 * number
        canvas.rectangle((left, _HEIGHT - 34, left + 18, _HEIGHT - 16), fill=_COLORS[name])
        canvas.text((left + 26, _HEIGHT - 25), title, fill=_INK, font=_font(17), anchor="lm")
    with atomic_writer(path) as file:
        image.save(file, "PNG")


def _bars(canvas: ImageDraw.ImageDraw, comparison: Comparison, box: tuple[int, int, int, int]) -> None:
    left, top, right, _ = box
    canvas.text((left, top - 34), "images per second", fill=_INK, font=_font(20), anchor="lm")
    groups = {
        "loader alone": {name: one.alone for name, one in comparison.outcomes.items()},
        "training an epoch": {name: one.images_per_s for name, one in comparison.outcomes.items()},
    }
    longest = max(value for group in groups.values() for value in group.values())
    y = top
    for title, group in groups.items():
        canvas.text((left, y + 12), title, fill=_INK, font=_font(17), anchor="lm")
        y += 32
        for name, value in group.items():
            length = (right - left - 90) * value / longest
            canvas.rectangle((left, y, left + length, y + 40), fill=_COLORS[name])
            label = f"{value:,.0f}"
            if title != "loader alone":
                label += f"   {comparison.outcomes[name].waiting:.0%} waiting"
            inside = length > 260
            place, anchor, ink = (left + length - 10, "rm", "#FFFFFF") if inside else (left + length + 10, "lm", _INK)
            canvas.text((place, y + 20), label, fill=ink, font=_font(17), anchor=anchor)
            y += 50
        y += 18


def _curves(canvas: ImageDraw.ImageDraw, comparison: Comparison, box: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = box
    canvas.text((left, top - 34), "training loss over the epoch", fill=_INK, font=_font(20), anchor="lm")
    curves = {name: _smoothed(one.losses) for name, one in comparison.outcomes.items()}
    highest = 1.05 * max(comparison.chance_loss, *(max(curve) for curve in curves.values()))

    def place(position: float, loss: float) -> tuple[float, float]:
        return left + (right - left) * position, bottom - (bottom - top) * loss / highest

    for loss in range(int(highest) + 1):
        _, y = place(0, loss)
        canvas.line((left, y, right, y), fill=_FAINT)
        canvas.text((left - 10, y), str(loss), fill=_INK, font=_font(15), anchor="rm")
    _, y = place(0, comparison.chance_loss)
    for x in range(left, right, 12):
        canvas.line((x, y, x + 6, y), fill=_INK)
    canvas.text((right, y - 4), "chance", fill=_INK, font=_font(15), anchor="rb")
    for name, curve in curves.items():
        points = [place(number / max(1, len(curve) - 1), loss) for number, loss in enumerate(curve)]
        canvas.line(points, fill=_COLORS[name], width=3, joint="curve")


def _smoothed(losses: list[float]) -> list[float]:
    """Return means over three steps."""
    return [sum(losses[max(0, k - 1) : k + 2]) / len(losses[max(0, k - 1) : k + 2]) for k in range(len(losses))]


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
