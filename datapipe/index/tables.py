"""Index a table: files, row groups, and one frozen schema. Rows are not indexed one by one."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.core.printable import listed
from datapipe.errors import FormatError, OptionError

Ints = NDArray[np.int64]

TABLE_NAME = "table.json"  # of a converted table


class ColumnKind(enum.Enum):
    """The kind of a column's values, which decides what tensors they can become."""

    NUMBER = "number"  # also booleans, dates, times
    TEXT = "text"  # strings and binary values
    LIST = "list"  # of numbers
    DECIMAL = "decimal"
    UNREAD = "unread"  # maps, lists of lists and other types that no tensor can hold


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of the frozen schema; a field of a struct has a dotted name."""

    name: str
    kind: ColumnKind
    type: str  # as Arrow writes it, for people
    dtype: str = ""  # numpy's name for the values of numbers and lists, such as "float32"
    unit: str = ""  # of times since 1970 in UTC, and of durations: "s", "ms", "us", "ns"; "d" for dates

    def __post_init__(self) -> None:
        has_dtype = self.kind in (ColumnKind.NUMBER, ColumnKind.LIST)
        if has_dtype != bool(self.dtype):
            raise FormatError(f"column {self.name!r}: a {self.kind.value} column with dtype {self.dtype!r}")


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table."""

    path: str
    container: str  # "parquet", "arrow" or "hdf5"
    nbytes: int
    mtime_ns: int
    num_rows: int
    missing: frozenset[str] = frozenset()  # columns of the schema that this file lacks
    etag: str | None = None  # of an object in a store, whose path is its URL
    constants: tuple[tuple[str, Any], ...] = ()  # columns that its folders name, each with its value, a pa.Scalar


@dataclass(frozen=True, slots=True)
class TableGroup:
    """One row group, which is read at once."""

    file: TableFile
    number: int  # in the file
    num_rows: int

    def __str__(self) -> str:
        return f"{self.file.path}: row group {self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class TableIndex:
    """The rows of a table, in files and row groups. Row numbers count through the files in order."""

    files: tuple[TableFile, ...]
    columns: tuple[TableColumn, ...]
    starts: Ints  # (g + 1,) rows at which the row groups begin, and the number of rows; no row group is empty
    file_of_group: Ints  # (g,) file of each row group
    number_of_group: Ints  # (g,) number in its file
    fingerprint: str
    widened: tuple[str, ...] = ()  # lines that say which columns differ in type between files, and what they become

    def __post_init__(self) -> None:
        if not len(self):
            raise FormatError(
                f"{self.files[0].path if self.files else 'the table'}: no rows; remove it, or write the table again"
            )

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def is_row_major(self) -> bool:
        """Whether any row is as near as any other: it needs no order that keeps to row groups."""
        return self.files[0].container == "hdf5"

    @property
    def num_groups(self) -> int:
        return len(self.starts) - 1

    def group(self, number: int) -> TableGroup:
        """Return a row group by its number in the table."""
        rows = int(self.starts[number + 1] - self.starts[number])
        return TableGroup(self.files[int(self.file_of_group[number])], int(self.number_of_group[number]), rows)

    def column(self, name: str) -> TableColumn:
        """Return a column. Raises OptionError, listing the columns, for a name that is not in the schema."""
        for column in self.columns:
            if column.name == name:
                return column
        path = self.files[0].path
        hint = f"; folders name it: open the one above {name}=..." if f"{name}=" in path else ""
        raise OptionError(f"no column {name!r} in {path}; it has {_listed(self.columns)}{hint}")

    def matching(self, patterns: Sequence[str], *, without: Iterable[str] = ()) -> list[TableColumn]:
        """Return the columns that shell patterns such as "I*" match, in the order of the patterns, then of the schema.

        `without`: names that patterns never match. Raises OptionError for a pattern that matches nothing.
        """
        left_out, found = frozenset(without), dict[str, TableColumn]()
        for pattern in patterns:
            here = [
                column for column in self.columns if fnmatch.fnmatchcase(column.name, pattern) and column.name not in left_out
            ]
            if not here and any(fnmatch.fnmatchcase(name, pattern) for name in left_out):
                raise OptionError(
                    f"columns: {pattern!r} matches nothing but the label, which is not among the columns that are left; leave "
                    f"{pattern!r} out of columns=, or out of label="
                )
            if not here:
                raise OptionError(f"columns: no column matches {pattern!r}; {self.files[0].path} has {_listed(self.columns)}")
            found.update((column.name, column) for column in here)
        return list(found.values())

    def check_present(self, names: Iterable[str]) -> None:
        """Raise FormatError, naming the file, if a file lacks one of these columns."""
        wanted = frozenset(names)
        for file in self.files:
            if lacking := sorted(wanted & file.missing):
                raise FormatError(
                    f"{file.path}: lacks the column{'s' * (len(lacking) > 1)} {', '.join(lacking)} that other files of the table "
                    "have; write the file again with them, or leave them out of columns="
                )

    def describe(self) -> dict[str, Any]:
        """Return figures for people: files, row groups, rows, and rows per row group."""
        sizes = np.diff(self.starts)
        return {
            "files": len(self.files),
            "row groups": self.num_groups,
            "rows": len(self),
            "rows per group": (int(sizes.min()), int(np.median(sizes)), int(sizes.max())),
        }


def _listed(columns: Sequence[TableColumn]) -> str:
    return listed([f"{column.name} ({column.type})" for column in columns])
