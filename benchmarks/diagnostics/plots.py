"""The proof as a picture: measured against logged, predicted against what came of it, planted against blamed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.diagnostics.outcomes import Applied, Finding, confusion
from benchmarks.plots import LIMIT, OURS, THEIRS


def plot(findings: Sequence[Finding], applied: Sequence[Applied], path: Path, *, title: str) -> None:
    """Three panels, each with a diagonal on which a perfect diagnosis would lie."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right, stages) = pyplot.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    known = [(f.logged_s, f.measured_s) for f in findings if f.measured_s is not None and f.logged_s is not None]
    pairs = [(logged * 1e3 + 0.01, measured * 1e3 + 0.01) for logged, measured in known]
    left.plot(*zip(*pairs, strict=True), ".", color=OURS, alpha=0.5)
    for jitter, color in (("none", THEIRS), ("periodic", OURS), ("heavy", LIMIT)):
        pairs = [(one.true_s * 1e3, one.predicted_s * 1e3) for one in applied if one.cell.jitter == jitter]
        if pairs:
            label = f"jitter {jitter}: {len(pairs)} remedies"
            right.plot(*zip(*pairs, strict=True), ".", color=color, alpha=0.7, label=label)
    for axes, what in ((left, f"idle for data per step, ms: {len(known)} cells, {title}"), (right, "step with a remedy, ms")):
        axes.set(xscale="log", yscale="log")
        low, high = axes.get_xlim()
        axes.plot([low, high], [low, high], "-", color="black", lw=0.8, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(what, loc="left", fontsize=11)
    low, high = right.get_xlim()
    right.fill_between([low, high], [0.8 * low, 0.8 * high], [1.2 * low, 1.2 * high], color="black", alpha=0.07, lw=0)
    right.legend(frameon=False, loc="upper left")
    left.set(xlabel="by the device's own log (+ 0.01)", ylabel="by the bracket (+ 0.01)")
    right.set(xlabel="measured after it was applied", ylabel="predicted before (shaded: within 20%)")
    _draw_stages(stages, confusion(findings))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    print(f"wrote {path}")


def _draw_stages(axes: Any, counts: dict[str, dict[str, int]]) -> None:
    """Cells by planted and blamed stage; a row's colour is the share of its cells."""
    from matplotlib.patches import Rectangle

    planted = list(counts)
    blamed = [*planted, *sorted({name for row in counts.values() for name in row} - set(planted))]
    for height, row in enumerate(planted):
        total = sum(counts[row].values())
        for place, column in enumerate(blamed):
            num = counts[row].get(column, 0)
            color = OURS if row == column else LIMIT
            axes.add_patch(Rectangle((place - 0.5, height - 0.5), 1, 1, facecolor=color, alpha=0.6 * num / total, lw=0))
            axes.text(place, height, str(num) if num else "", ha="center", va="center")
    axes.set(
        xlim=(-0.5, len(blamed) - 0.5), ylim=(len(planted) - 0.5, -0.5), xlabel="stage that is blamed", ylabel="stage at fault"
    )
    axes.set_xticks(range(len(blamed)), [_wrapped(name) for name in blamed], fontsize=8)
    axes.set_yticks(range(len(planted)), [_wrapped(name) for name in planted], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    num = sum(sum(row.values()) for row in counts.values())
    axes.set_title(f"who is to blame: {num} starved cells", loc="left", fontsize=11)


def _wrapped(name: str) -> str:
    return name.replace(" ", "\n")
