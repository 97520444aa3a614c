"""Cells, rows and intervals of the tables that are made of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


def interval(ratio: dict[str, float]) -> str:
    """A ratio with its 95% interval."""
    return f"{ratio['ratio']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def line(title: str, cells: Sequence[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join([title, *cells]) + " |"


def part(found: dict[str, Any], name: str, told: Callable[[dict[str, Any]], str]) -> str:
    """What is `told` of the result of that name, or nothing where it is missing."""
    return told(found[name]) if name in found else ""


def costs(result: dict[str, Any], tasks: Sequence[str], **titles: str) -> Iterator[str]:
    """A row for each contender: CPU-ms of each task, and how many times as fast as the peer. `titles`: of contenders by name."""
    for name in result["cpu_ms"][tasks[0]]:
        cells = []
        for task in tasks:
            ratio = result["speed"].get(f"{task}: {name}")
            cells.append(f"{result['cpu_ms'][task][name]:.1f}" + (f" ({interval(ratio)})" if ratio else ""))
        yield line(titles.get(name, name), cells)
