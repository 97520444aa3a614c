"""Ways to get shuffled batches of a table onto the GPU: by cuDF, by Arrow, by hand, and one batch that stays there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

import datapipe as dp
from datapipe.kernel.cuda_runtime import cuda_runtime
from datapipe.kinds.tables.cudf.library import library, stream_ordered_memory
from datapipe.kinds.tables.cudf.reader import DTYPES, CudaStream
from datapipe.kinds.tables.trial_data import DENSE, IDS

CUDF, ARROW, BY_HAND, RESIDENT = "ours, cuDF", "ours, Arrow", "cuDF by hand", "resident"
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # (b, 13) float32, (b, 26) int64, (b,) float32, on the device
_GROUPS_BY_HAND = 8  # row groups that are shuffled with each other: 1,048,576 rows


def open_ours(backend: str, folder: Path, batch_size: int, device: str, **options: Any) -> dp.TableLoader:
    """A loader of the generated table, shuffled."""
    arguments: dict[str, Any] = {"columns": {"dense": DENSE, "ids": IDS}, "label": "label", "seed": 0, "device": device}
    name = {CUDF: "tables_cudf", ARROW: "tables_arrow"}[backend]
    return dp.TableLoader(folder, batch_size, True, backend=name, tail="drop", **{**arguments, **options})


def ours(backend: str) -> Callable[[Path, int, str], Iterator[Batch]]:
    def batches(folder: Path, batch_size: int, device: str) -> Iterator[Batch]:
        loader = open_ours(backend, folder, batch_size, device)
        for x, y in itertools.chain.from_iterable(itertools.repeat(loader)):
            yield x["dense"], x["ids"], y

    return batches


def by_hand(folder: Path, batch_size: int, device: str) -> Iterator[Batch]:
    """What one writes: some row groups by cuDF's Parquet reader, columns stacked, a permutation on the GPU, slices of it.

    `pylibcudf` is what `cudf.read_parquet` calls. Nulls are not looked at, there is one stream, and nothing is read ahead.
    """
    cudf, runtime = library(), cuda_runtime(torch.device(device))
    stream = cudf.stream(CudaStream(runtime.current_stream()))
    memory = stream_ordered_memory(cudf, runtime.device)
    files = sorted(folder.glob("*.parquet"))
    groups = [(str(path), number) for path in files for number in range(pq.ParquetFile(path).num_row_groups)]
    names = [*DENSE, *IDS, "label"]
    while True:
        random.shuffle(groups)
        for start in range(0, len(groups), _GROUPS_BY_HAND):
            paths: dict[str, list[int]] = {}
            for path, number in groups[start : start + _GROUPS_BY_HAND]:
                paths.setdefault(path, []).append(number)
            options = cudf.reader_options.builder(cudf.source_info(list(paths))).build()
            options.set_column_names(names)
            options.set_row_groups(list(paths.values()))
            table = cudf.read_parquet(options, stream, memory).tbl
            num = table.num_rows()
            columns = []
            for column in table.columns():
                dtype, _ = DTYPES[column.type().id().name]
                columns.append(runtime.adopt(column.data())[: num * dtype.itemsize].view(dtype))
            dense, ids = torch.stack(columns[: len(DENSE)], 1), torch.stack(columns[len(DENSE) : -1], 1)
            order = torch.randperm(num, device=dense.device)
            for first in range(0, num - batch_size + 1, batch_size):
                rows = order[first : first + batch_size]
                yield dense[rows], ids[rows], columns[-1][rows]


def resident(folder: Path, batch_size: int, device: str) -> Iterator[Batch]:
    """One batch, for ever."""
    batch = next(ours(ARROW)(folder, batch_size, device))
    return itertools.repeat(batch)


FEEDS: dict[str, Callable[[Path, int, str], Iterator[Batch]]] = {
    CUDF: ours(CUDF),
    ARROW: ours(ARROW),
    BY_HAND: by_hand,
    RESIDENT: resident,
}
