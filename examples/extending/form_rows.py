"""A new container of tables, worked out: `.rows` files, a line of JSON and then the values of each column, group by group.

    {"columns": [["x", "<f4"], ["y", "<i8"]], "groups": [1000, 1000, 7]}\\n
    1000 values of x, 1000 of y, 1000 of x, 1000 of y, 7 of x, 7 of y

A container of tables is two functions (`datapipe/containers/tables/container.py`): `scan` says which columns and groups of
rows a file has, and `open_groups` reads a group. Orders, windows, states, ranks, `inspect` and conversions need nothing else.
In datapipe this file lies in `datapipe/containers/tables/`, with an entry in `datapipe/containers/forms.py`:

    FORMS["rows"] = FormFacts(title="files of rows", kind="tables", tables="form_rows", known_by="datapipe.opening.tables",
                              files=re.compile(r".+\\.rows"), targets=("parquet", "hdf5"), made_for=("parquet", "hdf5"))
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.containers.mapped import mapped
from datapipe.containers.tables.container import RowsFound, Wanted
from datapipe.containers.tables.types import columns_of
from datapipe.core.regular_files import open_file
from datapipe.errors import FormatError
from datapipe.index.tables import TableFile

_MAX_HEAD = 1 << 20  # bytes
_DTYPES = ("<i1", "<i2", "<i4", "<i8", "<f4", "<f8")


def _read_head(path: str) -> tuple[dict[str, np.dtype], list[int], int, str]:
    """Return dtypes by column, rows of each group, where values begin, and a digest. Raises FormatError."""
    with mapped(Path(path), "a .rows file") as data:
        end = data.find(b"\n", 0, _MAX_HEAD) + 1
        try:
            head = json.loads(data[:end])
            dtypes = {str(name): np.dtype(_DTYPES[_DTYPES.index(dtype)]) for name, dtype in head["columns"]}
            groups = [int(rows) for rows in head["groups"]]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
            raise FormatError(f"{path}: does not begin with the line of a .rows file ({exc!s:.80}); get the file again") from exc
        needs = end + sum(groups) * sum(dtype.itemsize for dtype in dtypes.values())
        if len(dtypes) < len(head["columns"]) or min(groups, default=0) < 0 or needs != len(data):
            raise FormatError(f"{path}: has {len(data)} bytes, its columns and groups need {needs}; get the file again")
        return dtypes, groups, end, hashlib.sha256(data[:end]).hexdigest()


def scan(path: str) -> RowsFound:
    """Return what a file holds. Raises FormatError for a damaged one."""
    dtypes, groups, _, digest = _read_head(path)
    schema = pa.schema([(name, pa.from_numpy_dtype(dtype)) for name, dtype in dtypes.items()])
    return RowsFound(columns_of(schema, path), groups, digest)


class Open:
    """The groups of an open file."""

    def __init__(self, path: str, wanted: Wanted) -> None:
        self._dtypes, self._groups, self._start, _ = _read_head(path)
        self._path, self._wanted = path, wanted.columns

    def read(self, number: int) -> pa.Table:
        """Return the wanted columns of a group."""
        width = sum(dtype.itemsize for dtype in self._dtypes.values())
        rows, position = self._groups[number], self._start + sum(self._groups[:number]) * width
        found = {}
        with open_file(self._path) as file:
            for name, dtype in self._dtypes.items():
                if name in self._wanted:
                    file.seek(position)
                    found[name] = pa.array(np.frombuffer(file.read(rows * dtype.itemsize), dtype))
                position += rows * dtype.itemsize
        return pa.table(found)


def open_groups(file: TableFile, wanted: Wanted) -> Open:
    """Open some columns of a file. Raises FormatError."""
    return Open(file.path, wanted)


def write_rows(path: Path, columns: dict[str, NDArray], group_rows: int) -> None:
    """Write arrays as such a file; for the test, and for whoever makes such files."""
    num = len(next(iter(columns.values())))
    groups = [min(group_rows, num - first) for first in range(0, num, group_rows)]
    head = {"columns": [[name, one.dtype.str] for name, one in columns.items()], "groups": groups}
    values = (one[first : first + group_rows].tobytes() for first in range(0, num, group_rows) for one in columns.values())
    path.write_bytes(b"".join((json.dumps(head).encode(), b"\n", *values)))
