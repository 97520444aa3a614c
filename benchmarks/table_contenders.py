"""Ways to get shuffled batches of a table's rows: datapipe's, and what people write by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datapipe.kinds.tables.trial_data import DENSE, GROUP_ROWS, IDS, write_groups

Spent = tuple[float, float]  # ns per row, by the clock and of CPU time
Measure = Callable[[Path], Spent]  # of a file


def write_noise(path: Path, num_rows: int) -> None:
    """Write the same columns with values that hardly compress: random floats, and ids that are uniform in their logarithm."""
    rng = np.random.default_rng(0)

    def columns(num: int) -> dict[str, NDArray[Any]]:
        dense: dict[str, NDArray[Any]] = {name: rng.random(num, dtype=np.float32) for name in DENSE}
        logs = {name: rng.uniform(0, np.log(10.0 ** (2 + number % 6)), num) for number, name in enumerate(IDS)}
        ids = {name: np.exp(log).astype(np.int64) for name, log in logs.items()}
        return dense | ids | {"label": rng.integers(0, 2, num).astype(np.float32)}

    write_groups(path, num_rows, columns)


def timed(batches: Iterator[int]) -> Spent:
    """What an iterator of numbers of rows takes."""
    started, used = time.perf_counter(), time.process_time()
    num_rows = sum(batches)
    return (time.perf_counter() - started) / num_rows * 1e9, (time.process_time() - used) / num_rows * 1e9


def bare(num_threads: int) -> Measure:
    """pyarrow alone: row groups to columns; nothing is shuffled, no tensor is made."""

    def measure(path: Path) -> Spent:
        pa.set_cpu_count(num_threads)
        file = pq.ParquetFile(path)
        return timed(file.read_row_group(number).num_rows for number in range(file.num_row_groups))

    return measure


def datapipe_of(batch_size: int, *, epoch: int = 1) -> Measure:
    """`TableLoader`, shuffled; the first epoch, 0, or a later one."""

    def measure(path: Path) -> Spent:
        import datapipe as dp

        loader = dp.TableLoader(path, batch_size, True, label="label", columns={"dense": DENSE, "ids": IDS}, seed=0, device="cpu")
        for _ in range(epoch):
            timed(len(y) for _, y in loader)
        return timed(len(y) for _, y in loader)

    return measure


def row_major(path: Path) -> Spent:
    """`TableLoader` over the row-major file of the same rows, shuffled in full; the second epoch."""
    import datapipe as dp
    from converters.tables.conversion import convert_table
    from converters.tables.options import TableConversion

    rows = path.with_suffix(".rows")
    convert_table(TableConversion(path, rows, to="hdf5"))  # once: later runs find it finished
    loader = dp.TableLoader(rows, 65536, True, label="label", columns={"dense": DENSE, "ids": IDS}, seed=0, device="cpu")
    timed(len(y) for _, y in loader)
    return timed(len(y) for _, y in loader)


def duckdb_loop(epoch: int) -> Measure:
    """DuckDB's record batches of a large chunk, stacked, shuffled and cut by hand. The first pass, 0, or a later one."""

    def measure(path: Path) -> Spent:
        import duckdb
        import torch  # noqa: F401  not timed

        connection = duckdb.connect()
        connection.execute("SET threads=2; SET preserve_insertion_order=false")
        for _ in range(epoch):
            timed(_duckdb_rows(connection, path))
        return timed(_duckdb_rows(connection, path))

    return measure


def _duckdb_rows(connection: Any, path: Path) -> Iterator[int]:
    import torch

    columns = ", ".join([*DENSE, *IDS, "label"])
    for chunk in connection.sql(f"SELECT {columns} FROM '{path}'").to_arrow_reader(4 * GROUP_ROWS):
        order = torch.randperm(chunk.num_rows)
        dense = torch.from_numpy(np.stack([chunk.column(name).to_numpy() for name in DENSE], 1))[order]
        ids = torch.from_numpy(np.stack([chunk.column(name).to_numpy() for name in IDS], 1))[order]
        label = torch.from_numpy(chunk.column("label").to_numpy().copy())[order]
        for start in range(0, chunk.num_rows, 65536):
            part = slice(start, start + 65536)
            yield len(label[part]) + 0 * (len(dense[part]) + len(ids[part]))


def arrow_take(path: Path) -> Spent:
    """pyarrow: four row groups at a time, `take` of a permutation, columns stacked into matrices."""
    import torch

    file = pq.ParquetFile(path)

    def rows() -> Iterator[int]:
        for start in range(0, file.num_row_groups, 4):
            chunk = file.read_row_groups(list(range(start, min(start + 4, file.num_row_groups)))).combine_chunks()
            order = np.random.default_rng(start).permutation(chunk.num_rows)
            for first in range(0, chunk.num_rows, 65536):
                part = chunk.take(pa.array(order[first : first + 65536]))
                torch.from_numpy(np.stack([part[name].to_numpy() for name in DENSE], 1))
                torch.from_numpy(np.stack([part[name].to_numpy() for name in IDS], 1))
                yield part.num_rows

    return timed(rows())


def in_memory(kind: str) -> Measure:
    """torch's `TensorDataset` and `DataLoader` in batches of 4,096: as they are, or taken over."""

    def measure(path: Path) -> Spent:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        import datapipe as dp

        table = pq.ParquetFile(path).read_row_groups([0, 1, 2, 3])
        dense, ids = (torch.from_numpy(np.stack([table[name].to_numpy() for name in names], 1)) for names in (DENSE, IDS))
        loader: Any = DataLoader(TensorDataset(dense, ids), batch_size=4096, shuffle=True)
        limit = 20 if kind == "torch" else None
        loader = loader if kind == "torch" else dp.from_torch(loader, device="cpu", seed=0)
        return timed(len(batch[0]) for number, batch in zip(range(limit or len(loader)), loader, strict=False))

    return measure


def hugging_face(path: Path) -> Spent:
    """Hugging Face's `with_format("torch")`, shuffled, in batches of 4,096; of some rows, as it takes long."""
    import datasets

    part = path.with_suffix(".part.parquet")
    pq.write_table(pq.ParquetFile(path).read_row_groups([0]), part)
    data = datasets.Dataset.from_parquet(str(part), cache_dir=str(path.parent / "hf")).with_format("torch").shuffle(seed=0)
    return timed(len(batch["label"]) for _, batch in zip(range(3), data.iter(4096), strict=False))


def order(path: Path) -> Spent:
    """The arithmetic of the order alone: windows, runs and permutations of an epoch."""
    from datapipe.containers.tables.files import open_table
    from datapipe.order.row_order import WindowedRows

    index = open_table(path)
    rows = WindowedRows.within(index.starts, seed=0, global_batch=65536, row_nbytes=268, window_nbytes=1 << 30)

    def walked() -> Iterator[int]:
        done = set()
        for start in range(0, len(rows), 65536):
            for run in rows.runs(1, start, min(start + 65536, len(rows))):
                if run.window not in done:
                    done.add(run.window)
                    rows.parts(run.window)
                    rows.shuffled(run.window)
                yield len(run)

    return timed(walked())


CONTENDERS: dict[str, Measure] = {
    "bare": bare(2),
    "bare again": bare(2),
    "bare, one thread": bare(1),
    "datapipe, 65,536, first epoch": datapipe_of(65536, epoch=0),
    "datapipe, 65,536": datapipe_of(65536),
    "datapipe, 4,096": datapipe_of(4096),
    "row-major, 65,536": row_major,
    "DuckDB by hand, first pass": duckdb_loop(0),
    "DuckDB by hand": duckdb_loop(1),
    "Arrow take by hand": arrow_take,
    "TensorDataset, torch": in_memory("torch"),
    "TensorDataset, from_torch": in_memory("from_torch"),
    "Hugging Face, shuffled": hugging_face,
    "order alone": order,
    "noise: bare": bare(2),
    "noise: datapipe, 65,536": datapipe_of(65536),
}
NOISE = "noise: "  # begins the names of contenders that read the table of `write_noise`
