"""Lengths of documents described for people: how they are spread, and how full rows of them would be."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.order.draws import Ints
from datapipe.packing.documents import Documents
from datapipe.packing.settings import Long, PackSettings
from datapipe.packing.windows import measured_fill

ROWS = (1024, 4096, 16384)  # lengths of rows
_LENGTHS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_MOST_WINDOWS = 8  # that are packed to say how full rows are
_BAR = 40  # characters of the longest bar of the histogram


def facts_of_lengths(tokens: Ints) -> dict[str, Any]:
    """Return how lengths are spread, JSON-safe. `tokens`: (n,) of each document."""
    bounds = [bound for bound in _LENGTHS if not len(tokens) or bound <= tokens.max()]
    counts = np.histogram(tokens, [*bounds, np.iinfo(np.int64).max])[0]
    return {
        "lengths": {
            "least": int(tokens.min()) if len(tokens) else 0,
            "median": int(np.median(tokens)) if len(tokens) else 0,
            "mean": float(tokens.mean()) if len(tokens) else 0.0,
            "most": int(tokens.max(initial=0)),
        },
        "histogram": [{"from": bound, "documents": int(count)} for bound, count in zip(bounds, counts.tolist(), strict=True)],
    }


def facts_of_rows(documents: Documents, tokens: Ints, length: int, *, long: Long = "split") -> dict[str, Any]:
    """Return how rows of this length are filled, and which share of documents is longer. `long`: what becomes of these."""
    settings = PackSettings(length, long=long)
    return {
        "length": length,
        "best_fit_fill": measured_fill(documents, settings, most_windows=_MOST_WINDOWS),
        "longer": float((tokens > length).mean()),
    }


def line_of_lengths(lengths: dict[str, Any]) -> str:
    """Return the least, the most, the median and the mean in words."""
    return f"{lengths['least']:,} to {lengths['most']:,} tokens, median {lengths['median']:,}, mean {lengths['mean']:,.0f}"


def histogram_lines(histogram: list[dict[str, int]]) -> list[str]:
    """Return a bar for each range of lengths that documents have."""
    most = max((one["documents"] for one in histogram), default=0)
    return [
        f"  {one['from']:>8,}  {one['documents']:>12,}  {'#' * max(1, round(_BAR * one['documents'] / most))}"
        for one in histogram
        if one["documents"]
    ]
