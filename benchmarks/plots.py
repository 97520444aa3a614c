"""Bars with their spread, readable without colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

OURS, THEIRS, LIMIT = "#0072B2", "#999999", "#E69F00"  # Okabe and Ito's palette: safe for colour-blind readers


def plot_rates(result: dict[str, Any], path: Path, *, title: str) -> None:
    """One bar per contender: the median, a whisker from the slowest to the fastest round, a dot per round."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    contenders = {name: entry for name, entry in result["contenders"].items() if name != "ours-again"}
    names = sorted(contenders, key=lambda name: contenders[name]["median"])
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(names) + 1.4), layout="constrained")
    for height, name in enumerate(names):
        entry = contenders[name]
        color = OURS if name.startswith("ours") else LIMIT if name.startswith("limit") else THEIRS
        below, above = entry["median"] - entry["lowest"], entry["highest"] - entry["median"]
        axes.barh(height, entry["median"], color=color, xerr=[[below], [above]], error_kw={"capsize": 3, "lw": 1})
        axes.plot(entry["rounds"], [height] * len(entry["rounds"]), "|", color="black", alpha=0.5, markersize=5)
        axes.annotate(f"{entry['median']:,.0f}", (entry["highest"], height), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(names)), [contenders[name]["title"] for name in names])
    axes.set_xlabel("images per second (median of rounds; whiskers: slowest and fastest round)")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    print(f"wrote {path}")
