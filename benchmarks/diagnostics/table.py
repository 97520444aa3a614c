"""The tables of docs/diagnose.md: how right the diagnosis is, from the committed results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_RESULTS = ("diagnostics-virtual", "diagnostics-real")
_ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("waiting measured to 0.5 ms or 5 %", lambda found: _of(found, "num_measured_right", "num_cells", unsettled=True)),
    ("verdicts right", lambda found: _of(found, "num_judged_right", "num_cells")),
    ("false blame without a stall", lambda found: _of(found, "num_false_without_stall", "num_without_stall")),
    ("stage at fault right, of starved runs", lambda found: _of(found, "num_stage_right", "num_staged")),
    ("predicted step, median error", lambda found: _percent(found["of_starved"]["median_error"])),
    ("90th percentile", lambda found: _percent(found["of_starved"]["p90_error"])),
    ("worst", lambda found: _percent(found["of_starved"]["worst_error"])),
    (
        "truth within the predicted interval",
        lambda found: _percent(found["of_starved"]["num_within_interval"] / found["of_starved"]["num"]),
    ),
    ("best remedy right", lambda found: _of(found, "num_top_right", "num_ranked")),
)
_OF_SCRIPTS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("verdicts right", lambda found: _of(found, "num_kind_right", "num_scripts")),
    ("stage at fault right", lambda found: _of(found, "num_fault_right", "num_scripts")),
    ("what must be said is said", lambda found: _of(found, "num_said", "num_scripts")),
    ("recommended remedies that made a step longer by more than 3 %", lambda found: _of(found, "num_harmful", "num_recommended")),
    ("best recommended within 10 % of the best of all", lambda found: _of(found, "num_best_near", "num_with_remedies")),
    ("truth within the predicted interval", lambda found: _of(found, "num_within_interval", "num_carried_out")),
)
_OF_RANKS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("late rank right", lambda found: _of(found, "num_rank_right", "num_late")),
    ("and its part and stage", lambda found: _of(found, "num_stage_right", "num_late")),
    ("a rank blamed though none is late", lambda found: _of(found, "num_false", "num_even")),
)
_OF_PEERS: tuple[tuple[str, Callable[[dict[str, Any], str], str]], ...] = (
    (
        "says rightly whether data starves the loop",
        lambda found, tool: _of_peer(found, tool, "num_verdicts_right", "num_scripts"),
    ),
    ("names the stage at fault", lambda found, tool: _of_peer(found, tool, "num_stages_right", "num_scripts")),
    ("error of the share of waiting, median", lambda found, tool: _percent(found["totals"][tool]["median_error_of_waiting"])),
    ("worst", lambda found, tool: _percent(found["totals"][tool]["worst_error_of_waiting"])),
    ("late rank of three right, or that none is", lambda found, tool: _of_peer(found, tool, "num_late_ranks_right", "num_ranks")),
    ("and its part", lambda found, tool: _of_peer(found, tool, "num_parts_right", "num_ranks")),
    ("CPU time of the process, more per step, in the first 400 of 20 ms", lambda found, tool: _cost_of_peer(found, tool)),
    ("lines to add to a loop of one's own", lambda found, tool: "0" if tool == "datapipe" else "2"),
)


def as_markdown(found: dict[str, Any]) -> str:
    """`found`: results by name. Errors of predictions are those of starved runs."""
    results = [found[name] for name in _RESULTS]
    lines = ["| | virtual clock | torch's loader in real time, 2 cores |", "|---|--:|--:|"]
    lines += [f"| {title} | {' | '.join(cell(result) for result in results)} |" for title, cell in _ROWS]
    lines += ["", "| | whole scripts, every remedy carried out as printed |", "|---|--:|"]
    lines += [f"| {title} | {cell(found['diagnostics-scripts'])} |" for title, cell in _OF_SCRIPTS]
    lines += ["", f"| | 1 to 4 ranks, one late by {found['diagnostics-ranks']['fault_ms']:.0f} ms a step |", "|---|--:|"]
    lines += [f"| {title} | {cell(found['diagnostics-ranks'])} |" for title, cell in _OF_RANKS]
    peers = found["diagnostics-peers"]
    lines += ["", f"| on the same scripts | `datapipe diagnose` | TraceML {peers['traceml']} |", "|---|--:|--:|"]
    lines += [f"| {title} | {cell(peers, 'datapipe')} | {cell(peers, 'traceml')} |" for title, cell in _OF_PEERS]
    return "\n".join(lines)


def _of(found: dict[str, Any], part: str, whole: str, *, unsettled: bool = False) -> str:
    left = found["num_unsettled"] if unsettled else 0
    return f"{found[part]} of {found[whole] - left}" + (f" ({left} did not settle)" if left else "")


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.995 else "100 %"


def _of_peer(found: dict[str, Any], tool: str, part: str, whole: str) -> str:
    num = found["totals"][tool].get(part)
    return "not looked for" if num is None else f"{num} of {found['totals'][whole]}"


def _cost_of_peer(found: dict[str, Any], tool: str) -> str:
    cost = found["cost"]
    if tool == "traceml":
        return f"{cost['traceml']['more_cpu_us']:.0f} us"
    return f"{cost['datapipe diagnose']['more_cpu_us']:.0f} us (a `Monitor`: {cost['datapipe.Monitor']['more_cpu_us']:.0f} us)"
