"""The frame of a chart over time: labels at the left, a drawing that scrolls and zooms, ticks below. Pure.

The drawing is stretched to whatever width it has, so labels are text of the page, not of the drawing. `page.js` zooms
by widening it; without it the whole time is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.diagnostics.report.axis import Axis, ticks
from datapipe.diagnostics.report.markup import Markup, element

WIDTH = 20_000  # of drawings, in their own units
_NUM_TICKS = 6


def plot(
    shapes: Sequence[Markup],
    *,
    name: str,
    label: str,
    axis: Axis,
    height: int,
    side: Sequence[tuple[float, str]],
    **data: str,
) -> Markup:
    """`axis`: seconds to WIDTH. `height`: in pixels and in the drawing's units. `side`: labels and how far down each
    stands, in pixels. `data`: attributes of the drawing that the script reads."""
    drawing = element(
        "svg",
        shapes,
        viewBox=f"0 0 {WIDTH} {height}",
        preserveAspectRatio="none",
        height=height,
        role="img",
        aria_label=label,
        **data,
    )
    marks = [
        element("span", f"{second:g} s", style=f"left:{100 * axis.share(second):.3f}%")
        for second in ticks(axis.low, axis.high, num=_NUM_TICKS)
        if axis.share(second) < 0.96
    ]
    wide = element("div", drawing, element("div", marks, class_="ticks"), class_="wide", data_low=axis.low, data_high=axis.high)
    labels = [element("span", text, style=f"top:{top:.0f}px") for top, text in side]
    return element(
        "div",
        element("div", labels, class_="side", style=f"height:{height}px"),
        element("div", wide, class_="scroll", tabindex=0, role="region", aria_label=label),
        class_=f"plot {name}",
    )
