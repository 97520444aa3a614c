"""Measure shuffled batches of a table's numbers for `datapipe bench`, beside a bare read of the same columns."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from datapipe.containers.tables.rows import GroupReader
from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.index.tables import ColumnKind, TableIndex
from datapipe.kernel.calibration import in_turns
from datapipe.kinds.loader import DataLoader
from datapipe.kinds.tables.data import Table


def loader(index: TableIndex, args: argparse.Namespace) -> DataLoader:
    """Return a loader of shuffled batches of all numbers. Raises OptionError for a table without columns of numbers."""
    return DataLoader(
        Table([file.path for file in index.files], columns=_numbers(index), dtypes="float64"),
        args.table_batch_size,
        True,
        seed=0,
        num_workers=args.num_workers,
        device=args.device,
    )


def _numbers(index: TableIndex) -> list[str]:
    names = [column.name for column in index.columns if column.kind is ColumnKind.NUMBER]
    if not names:
        raise OptionError("bench: the table has no column of numbers; fit a recipe first (datapipe fit) and time that by hand")
    return names


def measure(index: TableIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return rows per second of shuffled batches of all numbers, by round, beside a bare read of the same columns.

    Raises OptionError for a table without columns of numbers, and for a comparison with another loader.
    """
    if args.against is not None:
        raise OptionError("--against is for images; a table is measured beside a bare read of its columns")
    names, ours = _numbers(index), loader(index, args)

    def shuffled() -> float:
        started = time.perf_counter()
        return sum(len(batch) for batch in ours) / (time.perf_counter() - started)

    def bare() -> float:
        started = time.perf_counter()
        reader = GroupReader(names)
        for group in range(index.num_groups):
            reader.read(index.group(group))
        return len(index) / (time.perf_counter() - started)

    rates = in_turns({"datapipe": shuffled, "bare read": bare}, rounds=args.rounds)
    return {
        "rows": len(index),
        "columns": len(names),
        "batch_size": args.table_batch_size,
        "num_workers": ours.num_workers,
        "device": str(ours.device),
        "rows_per_s": {name: round(statistics.median(values)) for name, values in rates.items()},
        "rounds": {name: [round(value) for value in values] for name, values in rates.items()},
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text for people."""
    lines = [
        f"{counted(result['rows'], 'row')} of {counted(result['columns'], 'column')}, shuffled batches of"
        f" {result['batch_size']:,} on {result['device']}, {counted(result['num_workers'], 'thread')};"
        " a bare read is one thread's, and shuffles nothing"
    ]
    for name, rate in result["rows_per_s"].items():
        rounds = result["rounds"][name]
        lines.append(f"  {name:<10}{rate:>12,.0f} rows/s   (rounds {min(rounds):,.0f} to {max(rounds):,.0f})")
    return "\n".join(lines)
