"""Draw the picture of README.md: images per second beside other loaders, from the committed results, for light and dark pages."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.shown.machines import cpu, on_each_cpu

PICTURES = {theme: ROOT / "docs" / "images" / f"images-per-second-{theme}.svg" for theme in ("light", "dark")}
_SETS = {"images-photos": "photographs", "images-256": "256 pixels"}
_TITLES = {"ours": "datapipe", "ffcv": "FFCV", "dali-webdataset": "DALI, on the CPU", "torch": "torch DataLoader"}
_INK = {"light": ("#1f2328", "#59636e", "#0072b2", "#a9b1ba"), "dark": ("#f0f6fc", "#9198a1", "#4aa8e0", "#59636e")}
_WIDTH, _LEFT, _RIGHT, _TOP = 760, 142, 62, 84  # pixels; beside each column of bars _RIGHT for its figures
_BAR, _STEP, _HEAD = 24, 31, 34  # height of a bar, from one to the next, of a group's title
_FONT = "font-family='-apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def pictures(found: dict[str, Any]) -> dict[Path, str]:
    """Return the SVG of each file, or nothing if results are missing."""
    if any(name not in found for name in _SETS):
        return {}
    return {path: draw(found, theme) for theme, path in PICTURES.items()}


def draw(found: dict[str, Any], theme: str) -> str:
    """Return the bars as SVG, a column for each kind of CPU: the median of the rounds, a line from the slowest to the fastest."""
    ink, faint, _, _ = _INK[theme]
    by_set = {name: list(on_each_cpu(found, name)) for name in _SETS}
    num_columns = min(map(len, by_set.values()))
    longest = max(one["contenders"][row]["highest"] for results in by_set.values() for one in results for row in _TITLES)
    column = (_WIDTH - _LEFT) / num_columns  # pixels
    scale = (column - _RIGHT) / longest
    settings = found["images-photos"]["settings"]
    head = f"JPEG to a normalised 224 x 224 float32 tensor, {settings['num_threads']} cores"
    shapes = [
        _text(0, 20, "Images per second", ink, size=18, weight=600),
        _text(0, 42, f"{head}; median of {settings['num_rounds']} rounds, slowest to fastest", faint, size=13),
    ]
    lefts = [_LEFT + column * number for number in range(num_columns)]
    shapes += [
        _text(left, 70, cpu(one), ink, size=14, weight=600) for left, one in zip(lefts, by_set["images-photos"], strict=False)
    ]
    y = _TOP
    for name, title in _SETS.items():
        size = f"{found[name]['dataset']['mean_nbytes'] / 1000:.0f} KB"
        shapes.append(_text(0, y + 20, f"{title}, {size} on average", ink, size=14, weight=600))
        y += _HEAD
        for row, label in _TITLES.items():
            shapes.append(_text(_LEFT - 10, y + _BAR / 2 + 5, label, ink, size=14, anchor="end"))
            for left, one in zip(lefts, by_set[name], strict=False):
                shapes += _bar(left, y, one["contenders"][row], scale, theme, is_ours=row == "ours")
            y += _STEP
        y += 10
    label = escape("Images per second of datapipe, FFCV, DALI on the CPU and torch's DataLoader", quote=True)
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {y}' role='img' aria-label='{label}' {_FONT}>"
    return "\n".join([head, *shapes, "</svg>\n"])


def _bar(left: float, y: float, entry: dict[str, Any], scale: float, theme: str, *, is_ours: bool) -> list[str]:
    ink, _, ours, theirs = _INK[theme]
    low, high = (left + entry[name] * scale for name in ("lowest", "highest"))
    fill, middle = ours if is_ours else theirs, y + _BAR / 2
    return [
        f"<rect x='{left:.1f}' y='{y}' width='{entry['median'] * scale:.1f}' height='{_BAR}' rx='2' fill='{fill}'/>",
        f"<path d='M{low:.1f} {middle}H{high:.1f}' stroke='{ink}'/>",
        _text(high + 8, middle + 5, f"{entry['median']:,.0f}", ink, size=14),
    ]


def _text(x: float, y: float, text: str, fill: str, *, size: int, weight: int = 400, anchor: str = "start") -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'"
    return f"<text {place} font-size='{size}' font-weight='{weight}' fill='{fill}'>{escape(text)}</text>"
