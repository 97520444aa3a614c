"""What the stages found, as a page of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.gpu.report import read_reports
from benchmarks.gpu.settings import STAGES

Found = dict[str, Any]


def as_text(out: Path) -> str:
    """Of all results in a directory: what was found, what failed, what was not done."""
    reports = read_reports(out)
    if not reports:
        return f"{out}: holds no results of the GPU check"
    parts = []
    for stage in STAGES:
        if stage not in reports:
            parts.append(f"== {stage}: did not run")
            continue
        report = reports[stage]
        state = f"done in {report['wall_s']:.0f} s" if report["is_finished"] else "CUT OFF"
        dry = ", a dry run on the CPU" if report["is_dry_run"] else ""
        counts = f"{len(report['failures'])} failed, {len(report['skipped'])} skipped"
        parts.append(f"== {stage}: {state}{dry}; {len(report['measurements'])} measured, {counts}")
        parts += _TELLERS[stage](report["measurements"])
        parts += [f"  FAILED  {entry['what']}: {_last_line(entry['why'])}" for entry in report["failures"]]
        parts += [f"  skipped {entry['what']}: {_last_line(entry['why'])}" for entry in report["skipped"]]
    return "\n".join(parts)


def rows(head: Iterable[str], body: Iterable[Iterable[Any]]) -> list[str]:
    """A table in columns of equal width, indented; the first column to the left."""
    table = [[str(cell) for cell in line] for line in (head, *body)]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in _numbered(line, widths))
        for line in table
    ]


def _numbered(line: list[str], widths: list[int]) -> Iterable[tuple[int, tuple[str, int]]]:
    return enumerate(zip(line, widths, strict=True))


def title(contender: str) -> str:
    return CONTENDERS[contender].title if contender in CONTENDERS else contender


# -- stage by stage ------------------------------------------------------------------------------


def _tests(found: list[Found]) -> list[str]:
    return [f"  {entry['passed']} passed, {entry['failed']} failed, {entry['skipped']} skipped" for entry in found]


def _correct(found: list[Found]) -> list[str]:
    lines = []
    for entry in found:
        if entry["what"] == "machine":
            libraries = ", ".join(
                f"{name}: {'there' if answer == 'loads' else 'MISSING'}" for name, answer in entry["libraries"].items()
            )
            lines += [
                f"  {entry['nvidia_smi']}; {entry['num_cores']} cores; torch's CUDA {entry['torch_cuda']}",
                f"  {libraries}",
            ]
        if "of" in entry:
            lines.append(f"  {entry['what']}: yes, {entry['worst_mean_difference']} of 255 from Pillow on average at worst")
        if "ended_well" in entry:
            lines.append(f"  {entry['what']}: {'well' if entry['ended_well'] else 'NOT WELL'}, {entry['wall_s']:.1f} s in all")
    return [*lines, *_parity(found), *_decoders(found)]


def _decoders(found: list[Found]) -> list[str]:
    """Which engine takes what, with smooth chroma; in brackets the mean difference from Pillow."""
    lines = []
    for which in dict.fromkeys(entry["which"] for entry in found if "which" in entry):
        mine = [entry for entry in found if entry.get("which") == which]
        smooth = [cell for entry in mine for cell in entry["engines"] if cell.get("smooth_chroma") and "form" in cell]
        columns = list(dict.fromkeys((cell["form"], cell["view"]) for cell in smooth))
        body = []
        for engine in dict.fromkeys(cell["engine"] for cell in smooth):
            cells = {(cell["form"], cell["view"]): cell for cell in smooth if cell["engine"] == engine}
            body.append([engine, *(_taken(cells.get(column)) for column in columns)])
        versions = {entry["version"] for entry in mine if "version" in entry}
        nvjpeg = {(entry["nvjpeg"], path) for entry in mine for path in entry.get("libraries", ()) if "libnvjpeg.so" in path}
        lines.append(f"  nvImageCodec {', '.join(versions)} ({which}), nvJPEG {sorted(nvjpeg) or 'of none'}")
        lines += rows(["engine", *(f"{form} {view}" for form, view in columns)], body) if body else []
    return lines


def _taken(entry: Found | None) -> str:
    if entry is None:
        return "died"
    return f"yes ({entry['mean']:.2f})" if "mean" in entry else "yes" if entry["is_decoded"] else "no"


def _parity(found: list[Found]) -> list[str]:
    compared = [entry for entry in found if "p99.9" in entry]
    body = [
        [
            f"{entry['recipe']} | {entry['against']}",
            entry["max"],
            entry["p99.9"],
            entry["mean"],
            "yes" if entry["is_within"] else "NO",
        ]
        for entry in compared
    ]
    return rows(["images_cpu against", "max", "p99.9", "mean", "within"], body) if body else []


def _verdicts(found: list[Found]) -> list[str]:
    """What became of damaged files, by the way in which DALI decodes."""
    told = ("num_bad", "num_bad_on_cpu", "num_missed", "num_garbled", "worst_mean_difference")
    body = [[entry["what"], *(entry[name] for name in told)] for entry in found if "num_missed" in entry]
    lines = rows(["damaged files", "bad", "bad on the CPU", "missed", "garbled", "whole ones differ by"], body) if body else []
    return lines + [f"  {entry['what']}: raised {entry['raised']}" for entry in found if "raised" in entry]


def _survive(found: list[Found]) -> list[str]:
    told = (
        "num_changed", "num_equal", "worst_difference", "num_taken", "device_mb_grown", "host_mb_grown", "threads_grown",
        "files_grown",
    )  # fmt: skip
    asked = [entry for entry in found if "question" in entry]
    lines = [f"  {entry['what']}: " + ", ".join(f"{name} {entry[name]}" for name in told if name in entry) for entry in asked]
    return _verdicts(found) + lines


def _overlap(found: list[Found]) -> list[str]:
    body = [
        [
            f"{title(entry['contender'])}, {entry['load']} x {entry['demand']:g}",
            f"{entry['gap_ms']:.3f}",
            f"{entry['idle_share']:.2%}",
            f"{entry['expected_idle_share']:.2%}",
            f"{entry['compute_ms'] / entry['own_compute_ms']:.3f}",
        ]
        for entry in found
        if entry["question"] == "idle"
    ]
    lines = rows(["fed by, beside", "gap ms", "idle", "unavoidable", "compute grew to"], body) if body else []
    for entry in found:
        if entry["question"] == "hold":
            waits = ", ".join(f"{wait:.1f}" for wait in entry["waits_ms"])
            lines.append(f"  {title(entry['contender'])}: next() took {waits} ms under a kernel of {entry['hold_ms']:.0f} ms")
        if entry["question"] == "bus":
            lines.append(f"  a {entry['dtype']} batch over the bus: {entry['copy_ms']:.2f} ms, {entry['gb_per_s']:.1f} GB/s")
    return list(dict.fromkeys(lines))


def _sweep(found: list[Found]) -> list[str]:
    lines = []
    for phase in ("first", "settings", "combined", "chosen", "kept", "taken", "cores"):
        measured = [entry for entry in found if entry.get("phase") == phase]
        body = [[_variant(entry), f"{entry['images_per_s']:.0f}", entry.get("jpeg_engine_percent", "-")] for entry in measured]
        lines += rows([phase, "images/s", "JPEG engines %"], body) if body else []
    for entry in found:
        if entry.get("phase") == "medians":
            lines += [f"  median of rounds: {title(contender)} {value:.0f}" for contender, value in entry["medians"].items()]
            lines += [
                f"  {pair}: {ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
                for pair, ratio in entry["ratios"].items()
            ]
    return lines


def _variant(entry: Found) -> str:
    options = {**entry["options"], **entry["options"].get("dali", {})}
    options.pop("dali", None)
    told = ", ".join(f"{name} {value}" for name, value in options.items())
    cores = f", {entry['num_cores']} cores" if "num_cores" in entry else ""
    return f"{title(entry['contender'])}{cores}{', ' if told else ''}{told}"


def _train(found: list[Found]) -> list[str]:
    body = [
        [
            f"{entry['model']}, {_variant(entry)}",
            f"{entry['images_per_s']:.0f}",
            f"{entry['step_ms']:.2f}",
            f"{entry.get('compute_against_resident', float('nan')):.3f}",
            f"{entry['idle_share']:.2%}",
            f"{entry['host_wait_ms']:.2f}",
            entry["device_mb"],
        ]
        for entry in found
        if "model" in entry
    ]
    head = [
        "network, fed by",
        "images/s",
        "step ms",
        "compute against resident",
        "idle for data",
        "host in next() ms",
        "device MB",
    ]
    return rows(head, body) if body else []


def _diagnose(found: list[Found]) -> list[str]:
    body = [
        [entry["what"], *(f"{entry[name]:.3f}" for name in ("undelayed_ms", "step_ms", "true_ms", "told_ms", "error_ms"))]
        for entry in found
        if entry["question"] == "accuracy"
    ]
    lines = rows(["diagnosed", "step without ms", "step ms", "waits ms", "is said to ms", "error ms"], body) if body else []
    lines += [
        f"  a step of {entry['alone_us']:.0f} us takes {entry['diagnosed_us']:.0f} us diagnosed: {entry['cost_us']:.0f} us"
        for entry in found
        if entry["question"] == "overhead"
    ]
    return lines


def _further(found: list[Found]) -> list[str]:
    lines = [
        f"  {entry['what']}: {entry['num'] - entry['num_failed']} of {entry['num']} captured and right"
        + (f"; the loader: {entry['loader_error']}" if entry["loader_error"] else "")
        for entry in found
        if entry.get("phase") == "capture"
    ]
    return lines + _sweep([entry for entry in found if entry.get("phase") == "cores"]) + _train(found)


def _tables(found: list[Found]) -> list[str]:
    lines = [
        f"  {entry['what']}: {entry['num_rows']} rows, {entry['num_different']} values differ, floats by "
        f"{entry['worst_relative_difference']:.1e} at worst"
        for entry in found
        if entry["question"] == "parity"
    ]
    rates = [[entry["what"], entry["round"], f"{entry['rows_per_s']:.3g}"] for entry in found if entry["question"] == "rate"]
    lines += rows(["rows", "round", "rows/s"], rates) if rates else []
    body = [
        [entry["what"], entry["round"], f"{entry['rows_per_s']:.3g}", f"{entry['step_ms']:.2f}", f"{entry['idle_share']:.2%}"]
        for entry in found
        if entry["question"] == "train"
    ]
    return lines + (rows(["network, fed by", "round", "rows/s", "step ms", "idle for data"], body) if body else [])


def _tokens(found: list[Found]) -> list[str]:
    lines = []
    for entry in found:
        if entry["question"] == "parity":
            lines.append(f"  {entry['num_compared']} values compared, {entry['num_different']} differ from the host's")
        if entry["question"] == "apart":
            told = f"{entry['packed']:.2g} by cu_seqlens, {entry['leaky']:.2g} by attention to all before"
            lines.append(f"  losses of tokens, {entry['num_documents']} documents in a row against each alone: {told}")
        if entry["question"] == "rate":
            lines.append(f"  {entry['what']}: {entry['tokens_per_s'] / 1e6:.4g} million tokens/s")
    body = [
        [entry["what"], entry["round"], f"{entry['tokens_per_s']:.4g}", f"{entry['step_ms']:.2f}", f"{entry['idle_share']:.2%}"]
        for entry in found
        if entry["question"] == "train"
    ]
    return lines + (rows(["network, fed by", "round", "tokens/s", "step ms", "idle for data"], body) if body else [])


def _clips(found: list[Found]) -> list[str]:
    lines = [
        f"  {entry['set']}: {entry['num_clips']} clips, {entry['num_different']} differ from the CPU's"
        for entry in found
        if entry["question"] == "parity"
    ]
    timed = [entry for entry in found if entry["question"] == "rate"]
    rates = [[entry["what"], entry["round"], f"{entry['clips_per_s']:.4g}", entry["cores"]] for entry in timed]
    lines += rows(["clips", "round", "clips/s", "cores"], rates) if rates else []
    body = [
        [entry["what"], entry["round"], f"{entry['clips_per_s']:.4g}", f"{entry['step_ms']:.2f}", f"{entry['idle_share']:.2%}"]
        for entry in found
        if entry["question"] == "train"
    ]
    return lines + (rows(["network, fed by", "round", "clips/s", "step ms", "idle for data"], body) if body else [])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""


_TELLERS: dict[str, Callable[[list[Found]], list[str]]] = {
    "tests": _tests,
    "correct": _correct,
    "damaged": _verdicts,
    "sweep": _sweep,
    "train": _train,
    "diagnose": _diagnose,
    "survive": _survive,
    "overlap": _overlap,
    "further": _further,
    "tables": _tables,
    "tokens": _tokens,
    "clips": _clips,
}
