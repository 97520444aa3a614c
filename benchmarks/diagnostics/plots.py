"""The proof as a picture: measured against logged, predicted against what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.diagnostics.outcomes import Applied, Finding
from benchmarks.plots import LIMIT, OURS, THEIRS


def plot(findings: Sequence[Finding], applied: Sequence[Applied], path: Path, *, title: str) -> None:
    """Two panels, each with a diagonal on which a perfect diagnosis would lie."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
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
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    print(f"wrote {path}")
