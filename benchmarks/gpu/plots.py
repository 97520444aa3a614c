"""Plots from the results, made wherever matplotlib is: rates by path and cores, training, and how right the diagnosis is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import read_reports
from benchmarks.gpu.summary import title
from benchmarks.plots import LIMIT, OURS, THEIRS

_DRY = " (dry run on a CPU: says nothing)"


def plot_all(out: Path) -> list[Path]:
    """Plot the results that exist, into files next to them. Raises SystemExit if there is nothing to plot."""
    reports = read_reports(out)
    made = []
    for stage, plot in (("sweep", _plot_rates), ("train", _plot_train), ("diagnose", _plot_diagnose)):
        if stage in reports:
            made += plot(reports[stage], out)
    if "sweep" in reports and "further" in reports:
        made += _plot_cores([*reports["sweep"]["measurements"], *reports["further"]["measurements"]], reports["further"], out)
    if not made:
        raise SystemExit(f"{out}: holds nothing to plot; run python -m benchmarks.gpu sweep, train or diagnose first")
    for path in made:
        print(f"wrote {path}")
    return made


def _heading(text: str, report: dict[str, Any]) -> str:
    return f"{text}{_DRY if report['is_dry_run'] else ''}"


def _plot_rates(report: dict[str, Any], out: Path) -> list[Path]:
    """The best of each path."""
    best: dict[str, float] = {}
    for entry in report["measurements"]:
        if "images_per_s" in entry:
            best[entry["contender"]] = max(best.get(entry["contender"], 0.0), entry["images_per_s"])
    ordered = sorted(best, key=lambda contender: best[contender])
    path = out / "gpu-rates.png"
    heading = _heading("photographs", report)
    _bars(path, ordered, [best[contender] for contender in ordered], "images per second onto the GPU", heading)
    return [path]


def _plot_cores(found: list[dict[str, Any]], report: dict[str, Any], out: Path) -> list[Path]:
    """How paths grow with cores."""
    pyplot = _pyplot()
    curves: dict[str, dict[int, list[float]]] = {}
    for entry in found:
        if entry.get("phase") in ("cores", "rounds"):
            num = entry.get("num_cores") or entry["num_threads"]
            curves.setdefault(entry["contender"], {}).setdefault(num, []).append(entry["images_per_s"])
    if not curves:
        return []
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for (contender, points), marker in zip(curves.items(), "os^vD", strict=False):
        cores = sorted(points)
        axes.plot(cores, [statistics.median(points[num]) for num in cores], marker=marker, color=_color(contender),
                  linestyle="-" if contender != "gpu-ours-cpu" else "--", label=title(contender))  # fmt: skip
    axes.set_xticks(sorted({num for points in curves.values() for num in points}))
    axes.set_xlabel("CPU cores")
    axes.set_ylabel("images per second")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    path = out / "gpu-cores.png"
    _finish(figure, axes, path, _heading("photographs, by cores", report))
    return [path]


def _plot_diagnose(report: dict[str, Any], out: Path) -> list[Path]:
    """What the diagnosis said over what was true."""
    found = [entry for entry in report["measurements"] if entry["question"] == "accuracy"]
    if not found:
        return []
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(5, 5), layout="constrained")
    highest = 1.1 * max(max(entry["true_ms"], entry["told_ms"]) for entry in found)
    axes.plot([0, highest], [0, highest], color=LIMIT, linewidth=1)
    for is_synced, color, label in ((True, THEIRS, "loss waited for"), (False, OURS, "host ahead")):
        mine = [entry for entry in found if entry["is_synced"] == is_synced]
        if mine:
            axes.plot([entry["true_ms"] for entry in mine], [entry["told_ms"] for entry in mine], "o", color=color, label=label)
    axes.set_xlabel("the GPU waits for data, ms per step")
    axes.set_ylabel("datapipe diagnose says, ms per step")
    axes.legend(frameon=False)
    path = out / "gpu-diagnose.png"
    _finish(figure, axes, path, _heading("delays of known size", report))
    return [path]


def _plot_train(report: dict[str, Any], out: Path) -> list[Path]:
    """Per network: images/s, and the idle share; medians over rounds."""
    made = []
    found = report["measurements"]
    for model in dict.fromkeys(entry["model"] for entry in found):
        fed: dict[str, list[dict[str, Any]]] = {}
        for entry in found:
            if entry["model"] == model:
                fed.setdefault(entry["contender"], []).append(entry)
        feeds = sorted(fed, key=lambda feed: _median(fed[feed], "images_per_s"))
        for what, name, scale, label in (
            ("rate", "images_per_s", 1, "images per second, end to end"),
            ("idle", "idle_share", 100, "time in which the GPU stood still for data, %"),
        ):
            path = out / f"gpu-train-{what}-{model}.png"
            _bars(path, feeds, [scale * _median(fed[feed], name) for feed in feeds], label, _heading(f"{model}, bf16", report))
            made.append(path)
    return made


def _median(found: list[dict[str, Any]], name: str) -> float:
    return statistics.median(float(entry[name]) for entry in found)


def _bars(path: Path, contenders: Sequence[str], values: Sequence[float], label: str, heading: str) -> None:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(contenders) + 1.4), layout="constrained")
    for height, (contender, value) in enumerate(zip(contenders, values, strict=True)):
        axes.barh(height, value, color=_color(contender))
        axes.annotate(
            f"{value:,.0f}" if value >= 100 else f"{value:.2f}", (value, height), (6, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(contenders)), [title(contender) for contender in contenders])
    axes.set_xlabel(label)
    axes.margins(x=0.14)
    _finish(figure, axes, path, heading)


def _finish(figure: Any, axes: Any, path: Path, heading: str) -> None:
    """Write a figure, dressed as all of these are."""
    axes.set_title(heading, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    _pyplot().close(figure)


def _color(contender: str) -> str:
    if contender.startswith("gpu-ours"):
        return OURS
    return LIMIT if contender in ("gpu-synthetic", "gpu-cached") else THEIRS


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
