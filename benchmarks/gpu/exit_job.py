"""A script that ends in the midst of an epoch: the interpreter must come to its end, with threads and DALI still at work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.rates import Variant
from benchmarks.gpu.settings import Check
from benchmarks.task import Task

_left: list[Any] = []  # lives as long as the module


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: data, contender, batch_size, is_closed (the iterator, before the end)."""
    contender = Variant(arguments["contender"]).bound_to(check.device)
    batches: Any = contender.make(Task(contender.name, arguments["data"], arguments["batch_size"], num_threads=4))
    for _ in range(3):
        next(batches)
    if arguments["is_closed"]:
        batches.close()
    else:
        _left.append(batches)
    yield {"num_batches": 3, "is_closed": arguments["is_closed"]}
