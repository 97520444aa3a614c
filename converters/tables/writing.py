"""Write a table's rows as Parquet, in shuffled order, holding at most one shard of them in memory.

Two steps, each repeatable from where it stopped. Runs of the source are read, and the rows of each are sorted by the shard that
they go to, into one Arrow file per run. Then each shard takes its part of every run, and its rows are put in their places.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from converters.runs import read_record, to_json
from converters.tables import RowSource
from converters.tables.options import TableConversion
from converters.tables.plan import TablePlan, rows_of
from datapipe.core import arrow_maps, atomic
from datapipe.core.ordered import map_in_order
from datapipe.errors import FormatError
from datapipe.order.row_permutation import RowPermutation

RUNS_NAME, DONE_NAME = "runs", "done"
_PLACE = "\0place"  # no column is called so


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file of the result."""

    name: str
    num_rows: int
    nbytes: int
    sha256: str


def write_parquet(
    building: Path,
    plan: TablePlan,
    options: TableConversion,
    source: RowSource,
    *,
    num_threads: int,
    on_rows: Callable[[int], None],
) -> tuple[list[WrittenFile], int]:
    """Write what is missing of all shards into `building`; return them, and how many an earlier run had written."""
    for name in (RUNS_NAME, DONE_NAME):
        (building / name).mkdir(exist_ok=True)
    for leftover in [*building.glob(f"*{atomic.TEMPORARY_SUFFIX}"), *building.glob(f"*/.*{atomic.TEMPORARY_SUFFIX}")]:
        leftover.unlink(missing_ok=True)
    runs, num_shards = plan.runs(), len(plan.shard_starts) - 1
    found = [_note_of(building, number) for number in range(num_shards)]
    missing = [number for number in range(num_shards) if found[number] is None]
    if missing:
        paths = [building / RUNS_NAME / f"{number:06d}.arrow" for number in range(len(runs))]

        def scatter(number: int) -> int:
            if not paths[number].exists():
                _scatter(paths[number], runs[number], plan, options, source)
            return sum(plan.blocks[block][3] for block in runs[number])

        for num in map_in_order(scatter, range(len(runs)), num_threads=num_threads):
            on_rows(num)
        for number in map_in_order(
            lambda number: _gather(building, number, paths, plan), missing, num_threads=min(2, num_threads)
        ):
            found[number] = _note_of(building, number)
            on_rows(plan.shard_starts[number + 1] - plan.shard_starts[number])
    written = [one for one in found if one is not None]
    return written, num_shards - len(missing)


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"part-{number:06d}.parquet"


def _scatter(path: Path, run: list[int], plan: TablePlan, options: TableConversion, source: RowSource) -> None:
    """Read a run of blocks and write its rows by shard: a record batch for each."""
    table = pa.concat_tables([rows_of(plan, number, options, source) for number in run])
    first = int(plan.first_rows[run[0]])
    if table.num_rows != int(plan.first_rows[run[-1] + 1]) - first:
        raise FormatError(f"{options.source}: other rows than the scan found; was it changed?")
    places = np.arange(first, first + table.num_rows)
    if plan.key is not None:
        places = RowPermutation(plan.num_rows, plan.key).at(places)
        order = np.argsort(places, kind="stable")
        places = places[order]
        table = table.combine_chunks().take(pa.array(order))
    table = table.append_column(_PLACE, pa.array(places)).combine_chunks()
    edges = np.searchsorted(places, plan.shard_starts)
    with atomic.atomic_writer(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            part = table.slice(begin, end - begin).to_batches()
            writer.write_batch(part[0] if part else pa.RecordBatch.from_pylist([], schema=table.schema))


def _gather(building: Path, number: int, paths: list[Path], plan: TablePlan) -> int:
    """Put together the rows of a shard, and write it."""
    schema, group_rows = plan.arrow_schema, int(plan.options["group_rows"])
    batches = [pa.ipc.open_file(arrow_maps.map_file(path)).get_batch(number) for path in paths]
    table = pa.Table.from_batches(batches).combine_chunks()
    order = np.argsort(table.column(_PLACE).to_numpy(), kind="stable")
    table = table.drop_columns([_PLACE]).cast(schema)
    temporary = building / f"{shard_name(number)}{atomic.TEMPORARY_SUFFIX}"
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    with pq.ParquetWriter(
        temporary,
        schema,
        compression=plan.options["compression"],
        use_dictionary=texts,
        write_page_checksum=True,
        write_statistics=True,
    ) as writer:
        for start in range(0, table.num_rows, group_rows):
            rows = table.take(pa.array(order[start : start + group_rows]))
            writer.write_table(rows, row_group_size=group_rows)
    with temporary.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    os.replace(temporary, building / shard_name(number))
    written = WrittenFile(shard_name(number), table.num_rows, os.path.getsize(building / shard_name(number)), digest)
    atomic.write_json(building / DONE_NAME / f"{number:06d}.json", to_json(written))
    return number


def _note_of(building: Path, number: int) -> WrittenFile | None:
    """Return the note of a finished shard; None if there is none or the shard is missing."""
    path = building / DONE_NAME / f"{number:06d}.json"
    with contextlib.suppress(FileNotFoundError):
        written = read_record(path, WrittenFile, "the note of a shard", "delete it, and the shard is written again")
        if (building / shard_name(number)).exists() and written.name == shard_name(number):
            return written
    return None
