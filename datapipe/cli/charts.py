"""Draw charts with Pillow: bars, a histogram, shares over time. Large letters, so that they can be read as thumbnails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from datapipe.core.atomic import atomic_writer
from datapipe.core.errors import StorageError
from datapipe.core.printable import printable

_WIDTH, _HEIGHT = 960, 540  # pixels
_BOX = (110, 135, 920, 470)  # of the plot: left, top, right, bottom
_INK, _FAINT, _PAPER = "#222222", "#D0D0D0", "#FFFFFF"
_OURS, _OTHERS = "#0072B2", "#999999"  # distinct in lightness too


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart: its value, and the least and greatest of its rounds."""

    title: str
    value: float
    low: float
    high: float


def draw_bars(path: Path, bars: Sequence[Bar], *, title: str, subtitle: str) -> None:
    """Write a PNG with a horizontal bar for each of `bars`; the first one stands out. Raises StorageError."""
    image, canvas = _paper(title, subtitle)
    left, top, right, bottom = _BOX
    left += 80
    scale = (right - left - 130) / max(bar.high for bar in bars)
    step = min(110, (bottom - top) // len(bars))
    for number, bar in enumerate(bars):
        y = top + number * step
        middle, height = y + step // 2, step * 0.6
        fill = _OTHERS if number else _OURS
        canvas.rectangle((left, middle - height / 2, left + bar.value * scale, middle + height / 2), fill=fill)
        if bar.high > bar.low:
            canvas.line((left + bar.low * scale, middle, left + bar.high * scale, middle), fill=_INK, width=2)
        canvas.text((left - 14, middle), bar.title, fill=_INK, font=font_of(26), anchor="rm")
        canvas.text((left + bar.high * scale + 14, middle), f"{bar.value:,.0f}", fill=_INK, font=font_of(30), anchor="lm")
    save_png(image.crop((0, 0, _WIDTH, top + len(bars) * step + 30)), path)


def draw_histogram(path: Path, counts: Sequence[int], edges: Sequence[str], *, title: str, subtitle: str) -> None:
    """Write a PNG with a column for each of `counts`; `edges`, one more, are the texts at their borders. Raises StorageError."""
    image, canvas = _paper(title, subtitle)
    left, top, right, bottom = _BOX
    scale, step = (bottom - top) / max(1, *counts), (right - left) / len(counts)
    for number, count in enumerate(counts):
        x = left + number * step
        canvas.rectangle((x + 2, bottom - count * scale, x + step - 2, bottom), fill=_OURS)
    canvas.line((left, bottom, right, bottom), fill=_INK, width=2)
    every = -(-len(edges) // 8)
    for number, text in enumerate(edges):
        if number % every == 0:
            canvas.text((left + number * step, bottom + 12), text, fill=_INK, font=font_of(22), anchor="mt")
    canvas.text((left - 12, top), f"{max(counts):,}", fill=_INK, font=font_of(22), anchor="rm")
    canvas.text((left - 12, bottom), "0", fill=_INK, font=font_of(22), anchor="rm")
    save_png(image, path)


def draw_shares(
    path: Path, points: Sequence[tuple[float, float]], borders: Sequence[float], *, title: str, subtitle: str
) -> None:
    """Write a PNG of shares (0 to 1) over steps, with a vertical line at each of `borders`. Raises StorageError."""
    image, canvas = _paper(title, subtitle)
    left, top, right, bottom = _BOX
    last = max([step for step, _ in points] + [1])

    def place(step: float, share: float) -> tuple[float, float]:
        return left + (right - left) * step / last, bottom - (bottom - top) * share

    for percent in (0, 50, 100):
        _, y = place(0, percent / 100)
        canvas.line((left, y, right, y), fill=_FAINT, width=2)
        canvas.text((left - 12, y), f"{percent}%", fill=_INK, font=font_of(24), anchor="rm")
    for border in borders:
        x, _ = place(border, 0)
        canvas.line((x, top, x, bottom), fill=_FAINT, width=2)
    places = [place(*point) for point in points]
    if len(places) > 1:
        canvas.polygon([(places[0][0], bottom), *places, (places[-1][0], bottom)], fill="#CCE3F0")
        canvas.line(places, fill=_OURS, width=5, joint="curve")
    for x, y in places if len(places) < 40 else ():
        canvas.ellipse((x - 5, y - 5, x + 5, y + 5), fill=_OURS)
    canvas.text((left, bottom + 12), "0", fill=_INK, font=font_of(22), anchor="mt")
    canvas.text((right, bottom + 12), f"step {last:,.0f}", fill=_INK, font=font_of(22), anchor="rt")
    save_png(image, path)


def _paper(title: str, subtitle: str) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (_WIDTH, _HEIGHT), _PAPER)
    canvas = ImageDraw.Draw(image)
    canvas.text((30, 44), printable(title), fill=_INK, font=font_of(34), anchor="lm")
    canvas.text((30, 84), printable(subtitle), fill="#555555", font=font_of(22), anchor="lm")
    return image, canvas


def save_png(image: Image.Image, path: Path) -> None:
    """Write the image atomically. Raises StorageError."""
    try:
        with atomic_writer(path) as file:
            image.save(file, "PNG")
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be written ({exc.strerror}); choose another place") from exc


def font_of(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font that Pillow brings, in that size in pixels."""
    return ImageFont.load_default(size)
