"""Write a table's rows as one row-major file, which loaders map and shuffle in full.

Rows stay in the order of the source: any order is as good to read. Blocks are written where they belong, so that those that an
earlier run wrote are not written again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from converters.tables import RowSource, plain
from converters.tables.options import TableConversion
from converters.tables.plan import TablePlan, rows_of
from converters.tables.writing import WrittenFile
from datapipe.columns.values import values_of
from datapipe.containers.tables.types import leaves_of
from datapipe.core import atomic
from datapipe.core.ordered import map_in_order
from datapipe.errors import OptionError
from datapipe.index.tables import ColumnKind, TableColumn

if TYPE_CHECKING:
    from datapipe.containers.hdf5.row_major import RowMatrix

_WRITTEN_NAME = "written"  # the runs that are in the file


def write_rows(
    building: Path,
    plan: TablePlan,
    options: TableConversion,
    source: RowSource,
    *,
    num_threads: int,
    on_rows: Callable[[int], None],
) -> tuple[list[WrittenFile], int]:
    """Write what is missing of the file into `building`; return it, and 0. Raises OptionError for columns that are no numbers."""
    from datapipe.containers.hdf5 import row_major

    matrices = matrices_of(plan)
    path, noted = building / f"{row_major.NAME}{atomic.TEMPORARY_SUFFIX}", building / _WRITTEN_NAME
    noted.mkdir(exist_ok=True)
    if not (building / row_major.NAME).exists():
        if not (noted / "created").exists():
            row_major.create(path, matrices, num_rows=plan.num_rows, fingerprint=_fingerprint(plan))
            (noted / "created").touch()
        arrays = row_major.open_for_writing(path).arrays
        firsts, runs = plan.first_rows, plan.runs()

        def write(number: int) -> int:
            run, note = runs[number], noted / str(number)
            if not note.exists():
                for block in run:
                    table = rows_of(plan, block, options, source)
                    here = slice(int(firsts[block]), int(firsts[block + 1]))
                    for matrix, array in zip(matrices, arrays, strict=True):
                        _write(table, matrix, array[here])
                row_major.flush(path)
                note.touch()
            return int(firsts[run[-1] + 1] - firsts[run[0]])

        for num in map_in_order(write, range(len(runs)), num_threads=num_threads):
            on_rows(2 * num)
        os.replace(path, building / row_major.NAME)
    with (building / row_major.NAME).open("rb") as file:
        digest, nbytes = hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
    return [WrittenFile(row_major.NAME, plan.num_rows, nbytes, digest)], 0


def matrices_of(plan: TablePlan) -> list[RowMatrix]:
    """Return which columns lie side by side: those of one dtype; integers of at most 32 bits share the widest of them.

    Raises OptionError for columns of which there is no number in every row.
    """
    from datapipe.containers.hdf5.row_major import RowMatrix

    schema = plan.arrow_schema
    columns = list(leaves_of(schema))
    for column, field in zip(columns, schema, strict=True):
        if column.kind is not ColumnKind.NUMBER:
            raise OptionError(
                f"--to hdf5 keeps numbers, and column {column.name!r} is {column.type}; leave it out with --schema "
                f'{{"{column.name}": "none"}}, or convert to Parquet and load that with cache=\'disk\' and a recipe'
            )
        if field.nullable and not column.dtype.startswith("float"):
            raise OptionError(
                f"--to hdf5: column {column.name!r} has nulls, and {column.dtype} has no value for them; make it floating with "
                f'--schema {{"{column.name}": "float32"}}, or convert to Parquet and load that with cache=\'disk\' and a recipe'
            )
    narrow = [column.dtype for column in columns if np.dtype(column.dtype).kind in "iu" and np.dtype(column.dtype).itemsize <= 4]
    shared = np.result_type(*narrow).name if narrow else ""
    grouped: dict[str, list[TableColumn]] = {}
    for column in columns:
        grouped.setdefault(shared if column.dtype in narrow else column.dtype, []).append(column)
    return [RowMatrix(dtype, dtype, tuple(found)) for dtype, found in sorted(grouped.items())]


def _write(table: pa.Table, matrix: RowMatrix, target: Any) -> None:
    for number, column in enumerate(matrix.columns):
        values = values_of(plain(table.column(column.name)), column)
        target[:, number] = values.data
        if values.valid is not None:
            np.copyto(target[:, number], np.nan, where=~values.valid)


def _fingerprint(plan: TablePlan) -> str:
    """Return a hash of the names and sizes of the sources, the types and the options."""
    files = [(os.path.basename(name), nbytes) for name, nbytes, _ in plan.files]
    words = [files, plan.schema, plan.num_rows, {name: plan.options[name] for name in ("schema", "names", "delimiter")}]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:24]
