"""Train on a table of very many rows, and watch the memory: `python -m benchmarks.large_table`.

    python -m benchmarks.large_table                      # 100 million rows, 2 GB of Parquet
    python -m benchmarks.large_table --rows 10000000

A generated narrow table: four float32 columns, an int32 id of a hundred thousand and a label, in row groups of 131,072 rows. A
model with an embedding takes an epoch of shuffled batches of 65,536. Memory is that of the whole process beyond what it was
before the first batch, at each tenth of the epoch. It is flat if the last tenth holds no more than the second one, within 5% of
the windows' budget: a loader that kept rows, places or permutations of all rows would grow with each tenth.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import datapipe as dp
from benchmarks import harness

FLOATS = ["a", "b", "c", "d"]
_GROUP_ROWS = 1 << 17
_FILE_ROWS = 64 * _GROUP_ROWS
_NUM_IDS = 100_000
_WINDOW_NBYTES = 256 << 20
_TENTHS = 10


def main() -> None:
    arguments = _parse()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        started = time.monotonic()
        write(Path(scratch), arguments.rows)
        print(f"{arguments.rows} rows written in {time.monotonic() - started:.0f} s", flush=True)
        found = train(Path(scratch), arguments.batch_size)
    result = {
        "settings": {"num_rows": arguments.rows, "batch_size": arguments.batch_size, "window_nbytes": _WINDOW_NBYTES},
        **found,
    }
    print(as_line(result))
    if not arguments.dry_run:
        harness.save("large-table", "benchmarks.large_table", result, results=arguments.results)


def write(folder: Path, num_rows: int) -> None:
    """Parquet files of 8.4 million rows each."""
    rng = np.random.default_rng(0)
    for number, first in enumerate(range(0, num_rows, _FILE_ROWS)):
        end, writer = min(first + _FILE_ROWS, num_rows), None
        for start in range(first, end, _GROUP_ROWS):
            num = min(_GROUP_ROWS, end - start)
            columns: dict[str, Any] = {name: rng.random(num, dtype=np.float32) for name in FLOATS}
            columns["id"] = rng.integers(0, _NUM_IDS, num, dtype=np.int32)
            columns["label"] = rng.integers(0, 2, num).astype(np.float32)
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(folder / f"part-{number:03d}.parquet", table.schema)
            writer.write_table(table, row_group_size=_GROUP_ROWS)
        if writer is not None:
            writer.close()


def train(folder: Path, batch_size: int) -> dict[str, Any]:
    """One epoch; rows/s, and the memory at each tenth of it."""
    torch.manual_seed(0)
    embedding, head = torch.nn.Embedding(_NUM_IDS, 8), torch.nn.Linear(len(FLOATS) + 8, 1)
    optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=0.01)
    columns = {"dense": FLOATS, "id": ["id"]}
    loader = dp.TableLoader(
        folder, batch_size, True, label="label", columns=columns, seed=0, device="cpu", window_nbytes=_WINDOW_NBYTES
    )
    before, num_rows, started = _resident_mb(), 0, time.perf_counter()
    grown: list[float] = [0.0] * _TENTHS
    for step, (x, label) in enumerate(loader):
        logits = head(torch.cat([x["dense"], embedding(x["id"][:, 0])], 1))[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, label)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        num_rows += len(label)
        tenth = step * _TENTHS // len(loader)
        grown[tenth] = max(grown[tenth], _resident_mb() - before)
    wall_s = time.perf_counter() - started
    assert num_rows == len(loader.dataset), "each row once"
    return {
        "rows_per_s": round(num_rows / wall_s),
        "wall_s": round(wall_s, 1),
        "memory_mb": [round(value) for value in grown],
        "is_flat": grown[-1] <= grown[1] + 0.05 * _WINDOW_NBYTES / 1e6,
    }


def as_line(result: dict[str, Any]) -> str:
    """The figures in words."""
    tenths = ", ".join(str(value) for value in result["memory_mb"])
    verdict = "flat" if result["is_flat"] else "NOT FLAT"
    rows, rate = result["settings"]["num_rows"], result["rows_per_s"]
    return f"{rows} rows at {rate} rows/s; MB at each tenth of the epoch: {tenths}: {verdict}"


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_table", description="Memory over a very long table.")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--batch-size", type=int, default=65536)
    parser.add_argument("--scratch", type=Path, help="directory for the table (2 GB); default: the system's")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="nothing is saved")
    return parser.parse_args()


if __name__ == "__main__":
    main()
