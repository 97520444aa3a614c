"""Rows of tables by everything that makes batches of them."""

from __future__ import annotations

from typing import Any

from benchmarks.shown.cells import interval, line
from datapipe.kinds.tables.kind import WINDOW_NBYTES

_ROWS_OF_TABLES = {
    "bare": "pyarrow reads the file to columns, nothing more, two threads",
    "bare, one thread": "the same, one thread",
    "datapipe, 65,536, first epoch": "datapipe, shuffled matrices of 65,536 rows, first epoch",
    "datapipe, 65,536": "later epochs",
    "datapipe, 4,096": "datapipe, of 4,096 rows",
    "row-major, 65,536": "datapipe, row-major HDF5, of 65,536 rows",
    "DuckDB by hand, first pass": "DuckDB, a loop by hand, of 65,536 rows, first pass",
    "DuckDB by hand": "later passes",
    "Arrow take by hand": "Arrow's `take`, a loop by hand, of 65,536 rows",
    "TensorDataset, torch": "torch's DataLoader over a TensorDataset in memory, of 4,096 rows",
    "TensorDataset, from_torch": "the same by `from_torch`",
    "Hugging Face, shuffled": 'Hugging Face datasets, `with_format("torch")`, of 4,096 rows',
    "noise: bare": "values that hardly compress: pyarrow reads the file, two threads",
    "noise: datapipe, 65,536": "values that hardly compress: datapipe, of 65,536 rows, later epochs",
}
_FIRST_PASSES = "datapipe, 65,536, first epoch / DuckDB by hand, first pass"
_OF_NOISE = "noise: datapipe, 65,536 / noise: bare"
_TAKEN_OVER = "TensorDataset, from_torch / TensorDataset, torch"


def rows_of_tables(result: dict[str, Any]) -> str:
    """A table of everything that makes batches of a table's rows."""
    lines = ["| 13 float32, 26 int64 columns, a label; snappy | rows/s | CPU, ns a row |", "|---|--:|--:|"]
    for name, title in _ROWS_OF_TABLES.items():
        if name in result["ns_per_row"]:
            lines.append(line(title, [f"{1e9 / result['ns_per_row'][name]:,.0f}", f"{result['cpu_ns_per_row'][name]:,.0f}"]))
    against = ", ".join(
        f"{interval(result['speed'][f'datapipe, 65,536 / {other}'])} the speed of {title}"
        for other, title in (("bare", "the bare read"), ("DuckDB by hand", "DuckDB"), ("Arrow take by hand", "Arrow's `take`"))
        if f"datapipe, 65,536 / {other}" in result["speed"]
    )
    if first := result["speed"].get(_FIRST_PASSES):
        against += f"; the first epoch at {interval(first)} that of DuckDB's first pass"
    noise = result["speed"][_OF_NOISE]
    against += (
        f"; of values that hardly compress at {interval(noise)} that of the bare read, which by CPU time is "
        f"{noise['cpu']['ratio']:.2f}x: packing columns into rows and gathering the shuffled ones move each byte twice more"
    )
    settings, memory = result["settings"], result["memory_mb"]
    told = (
        f"{settings['num_rows']:,} rows, {settings['num_rounds']} alternated rounds on {settings['num_threads']} cores. Shuffled "
        f"batches from Parquet come at {against}. Python's global lock was found held for {result['lock_held_ms_per_batch']:.1f} "
        f"ms per batch of 65,536 rows. Memory grew by {memory['rows']:,} MB, and by {memory['twice the rows']:,} MB with "
        f"twice the rows; {WINDOW_NBYTES / 1e6:,.0f} MB are those of the windows."
    )
    return "\n".join([*lines, "", told])


def large_table(result: dict[str, Any]) -> str:
    """Training on a table of many rows."""
    memory = result["memory_mb"]
    return (
        f"A table of {result['settings']['num_rows'] / 1e6:.0f} million rows (six columns) trained an embedding model at "
        f"{result['rows_per_s'] / 1e6:.1f} million rows/s; memory at the tenths of the epoch lay between {min(memory)} and "
        f"{max(memory)} MB above that before it."
    )


def in_short(result: dict[str, Any]) -> str:
    """The sentence of README."""
    speed = result["speed"]
    return (
        f"Shuffled batches of 65,536 rows come {speed['datapipe, 65,536 / DuckDB by hand']['ratio']:.1f} times as fast as from a "
        f"loop with DuckDB ({speed[_FIRST_PASSES]['ratio']:.1f} times in the first epoch), and `from_torch` makes a "
        f"`TensorDataset` {speed[_TAKEN_OVER]['ratio']:.0f} times as fast."
    )
