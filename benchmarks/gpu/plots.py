"""Plots from the results, made wherever matplotlib is: images/s by path, and the share of time the GPU stood still."""

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
    """The plots of whatever results are there, beside them. Raises SystemExit where there is nothing to plot."""
    reports = read_reports(out)
    made = []
    if "sweep" in reports:
        made += _plot_sweep(reports["sweep"], out)
    if "train" in reports:
        made += _plot_train(reports["train"], out)
    if not made:
        raise SystemExit(f"{out}: holds nothing to plot; run python -m benchmarks.gpu sweep or train first")
    for path in made:
        print(f"wrote {path}")
    return made


def _plot_sweep(report: dict[str, Any], out: Path) -> list[Path]:
    """The best of each path, and how paths grow with cores."""
    made = []
    suffix = _DRY if report["is_dry_run"] else ""
    found = [entry for entry in report["measurements"] if "images_per_s" in entry]
    for name in dict.fromkeys(entry["set"] for entry in found):
        mine = [entry for entry in found if entry["set"] == name]
        best: dict[str, float] = {}
        for entry in mine:
            if entry["phase"] in ("first", "settings"):
                best[entry["contender"]] = max(best.get(entry["contender"], 0.0), entry["images_per_s"])
        ordered = sorted(best, key=lambda contender: best[contender])
        path = out / f"gpu-rates-{name}.png"
        _bars(path, ordered, [best[contender] for contender in ordered], "images per second onto the GPU", f"{name}{suffix}")
        made.append(path)
        made += _plot_cores(mine, out / f"gpu-cores-{name}.png", f"{name}, by cores{suffix}")
    return made


def _plot_cores(found: list[dict[str, Any]], path: Path, heading: str) -> list[Path]:
    pyplot = _pyplot()
    curves: dict[str, dict[int, list[float]]] = {}
    for entry in found:
        num = (
            entry.get("num_cores") if entry["phase"] == "cores" else entry["num_threads"] if entry["phase"] == "rounds" else None
        )
        if num:
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
    axes.set_title(heading, loc="left", fontsize=11)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return [path]


def _plot_train(report: dict[str, Any], out: Path) -> list[Path]:
    """Per network: images/s, and the idle share."""
    made = []
    suffix = _DRY if report["is_dry_run"] else ""
    found = report["measurements"]
    for model, name in dict.fromkeys((entry["model"], entry["set"]) for entry in found):
        mine = sorted(
            (entry for entry in found if (entry["model"], entry["set"]) == (model, name)),
            key=lambda entry: float(entry["images_per_s"]),
        )
        feeds = [entry["contender"] for entry in mine]
        for what, values, label in (
            ("rate", [entry["images_per_s"] for entry in mine], "images per second, end to end"),
            ("idle", [100 * entry["idle_share"] for entry in mine], "time in which the GPU stood still for data, %"),
        ):
            path = out / f"gpu-train-{what}-{model}-{name}.png"
            _bars(path, feeds, values, label, f"{model}, bf16, {name}{suffix}")
            made.append(path)
    return made


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
    axes.set_title(heading, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.14)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _color(contender: str) -> str:
    if contender.startswith("gpu-ours"):
        return OURS
    return LIMIT if contender in ("gpu-synthetic", "gpu-cached") else THEIRS


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
