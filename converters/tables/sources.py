"""Open the source of a conversion: CSV, JSON lines, Parquet and Arrow files, Lance datasets, `.npy` matrices."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from converters.tables import BadTableRow, Kinds, Member, Parsed, RowBlock, RowSource, SourceFile, plain
from converters.tables.json_rows import JsonSource
from converters.tables.text_rows import DELIMITERS, CsvSource
from datapipe.codecs.npy import read_npy_header
from datapipe.containers.formats import table_entry_of
from datapipe.containers.tables.container import rows_container
from datapipe.containers.tables.files import open_table
from datapipe.containers.tables.partitions import partition_root, partitions_of
from datapipe.containers.tables.rows import GroupReader
from datapipe.core.directories import files_below, matching
from datapipe.core.regular_files import open_file, refuse_irregular
from datapipe.errors import DecodeError, FormatError, IntegrityError, MissingDataError, OptionError
from datapipe.index.tables import TableIndex

JSON_SUFFIXES = (".jsonl", ".ndjson")
_FORMS = {
    **dict.fromkeys(DELIMITERS, "csv"),
    **dict.fromkeys(JSON_SUFFIXES, "jsonl"),
    **dict.fromkeys((".parquet", ".pq", ".arrow", ".feather", ".ipc"), "parquet"),
    ".npy": "npy",
}
_MATRIX_ROWS = 1 << 17  # of a block
_NPY_HEAD = 1 << 16  # bytes that hold the header of a .npy file
_NO_TYPES: Mapping[str, str] = MappingProxyType({})
_PART = re.compile(r"^(.*?)[-_.]\d+$")


def open_rows(
    source: str | os.PathLike[str],
    *,
    delimiter: str | None = None,
    names: Sequence[str] = (),
    schema: Mapping[str, str] = _NO_TYPES,
) -> RowSource:
    """Open the table at `source`: a file, a directory or a glob pattern of files of one form.

    `names`: of the columns of CSV without a header. `schema`: type names by column or pattern. Raises
    MissingDataError where nothing is there, FormatError for files of several forms or of none, and what the form raises.
    """
    files = _files(os.fspath(source))
    forms = sorted({_form_of(file.name) or "" for file in files})
    if len(forms) > 1:
        raise FormatError(f"{source}: holds files of several forms ({', '.join(forms)}); convert one of them, by a pattern")
    if forms != ["csv"] and (names or delimiter):
        raise OptionError(f"--names and --delimiter are for CSV; {files[0].name} is {forms[0]}")
    paths = [file.name for file in files]
    root = partition_root(source, paths)
    if forms == ["parquet"]:
        return GroupSource(open_table(paths, root=root), files)
    named = partitions_of(paths, root)
    if forms == ["npy"]:
        if name := next((name for one in named for name in one), None):
            raise FormatError(f"{source}: .npy files in folders such as {name}=..., which name a column; convert each folder")
        return MatrixSource(files)
    if forms == ["csv"]:
        rows: RowSource = CsvSource(files, delimiter=delimiter, names=names)
    else:
        of_folders = {name for one in named for name in one}
        rows = JsonSource(files, {name: kind for name, kind in schema.items() if name not in of_folders})
    return PartitionedSource(rows, named) if any(named) else rows


def _form_of(name: str) -> str | None:
    """Return how the rows of a file of that name are read; None for a file that is no table. In row groups: "parquet"."""
    container = rows_container(name)
    return "parquet" if container not in (None, "hdf5") else _FORMS.get(Path(name).suffix.lower())


def _files(source: str) -> list[SourceFile]:
    entry = table_entry_of(Path(source)) if os.path.isdir(source) else None
    if entry is not None:
        found, nothing = [str(entry)], ""
    elif os.path.isdir(source):
        paths = (Path(path) for path in files_below(source))
        found = [str(path) for path in paths if _form_of(path.name) and _is_shown(path, source)]
        nothing = f"{source}: holds no .csv, .tsv, .jsonl, .parquet, .arrow or .npy files"
    elif os.path.exists(source):
        found, nothing = [source], ""
    else:
        found, nothing = matching(source), f"{source}: no such file or directory"
    if not found:
        raise MissingDataError(nothing)
    for name in found:
        refuse_irregular(name)
        if _form_of(name) is None:
            packed = Path(name).suffix.lower() in (".gz", ".bz2", ".zst", ".xz", ".zip")
            raise FormatError(
                f"{name}: {'compressed; unpack it first' if packed else 'no table by its name: ' + ', '.join(_FORMS)}"
            )
    return [SourceFile(name, status.st_size, status.st_mtime_ns) for name in found for status in [os.stat(name)]]


def _is_shown(path: Path, root: str) -> bool:
    return path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


class GroupSource:
    """Parquet and Arrow files, row group by row group; see `RowSource`."""

    is_text = False

    def __init__(self, index: TableIndex, files: Sequence[SourceFile]) -> None:
        self.files = tuple(files)
        self._index = index
        index.check_present(column.name for column in index.columns)
        self._local = threading.local()

    def blocks(self) -> Iterator[RowBlock]:
        for number in range(self._index.num_groups):
            yield RowBlock(int(self._index.file_of_group[number]), number, number + 1)

    def parse(self, block: RowBlock, types: Mapping[Member, Any], kinds: Kinds) -> Parsed:
        if not hasattr(self._local, "reader"):
            self._local.reader = GroupReader([column.name for column in self._index.columns])
        group = self._index.group(block.start)
        try:
            arrays = self._local.reader.read(group)
        except (DecodeError, IntegrityError) as exc:
            return Parsed({}, 0, (BadTableRow(None, f"{group.num_rows} rows: {exc}"),))
        return Parsed({name: plain(array) for name, array in arrays.items()}, group.num_rows)

    def lines_of(self, block: RowBlock) -> None:
        """Return None: the source is no text."""


class PartitionedSource:
    """The rows of another source, with the columns that the folders of their files name; see `RowSource`.

    `values`: of each file, by column, as pa.Scalar. A column that a file itself has stays. Raises FormatError where a file is in
    no folder that names a column.
    """

    def __init__(self, rows: RowSource, values: Sequence[Mapping[str, Any]]) -> None:
        self.files, self.is_text = rows.files, rows.is_text
        self._rows, self._values = rows, values
        names = {name for one in values for name in one}
        for file, one in zip(self.files, values, strict=True):
            if lacking := sorted(names - one.keys()):
                what = f"is in no folder {lacking[0]}=..., which the other files are in and which names a column"
                raise FormatError(f"{file.name}: {what}; move it, or leave it out")

    def blocks(self) -> Iterator[RowBlock]:
        return self._rows.blocks()

    def parse(self, block: RowBlock, types: Mapping[Member, Any], kinds: Kinds) -> Parsed:
        parsed = self._rows.parse(block, types, kinds)
        values = self._values[block.file]
        added = {name: pa.repeat(value, parsed.num_rows) for name, value in values.items() if name not in parsed.columns}
        return dataclasses.replace(parsed, columns=parsed.columns | added)

    def lines_of(self, block: RowBlock) -> NDArray[np.int64] | None:
        return self._rows.lines_of(block)


class MatrixSource:
    """`.npy` files side by side; see `RowSource`.

    `x.npy` of (n, 3) gives the columns x0, x1 and x2, one of (n,) the column x. Files whose names differ in a number after a
    separator (`x-0.npy`, `x-1.npy`) are parts of one matrix. Raises FormatError for arrays of other kinds, and where the
    numbers of rows differ.
    """

    is_text = False

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.files = tuple(files)
        grouped: dict[str, list[str]] = {}
        for file in files:
            stem = Path(file.name).stem
            match = _PART.match(stem)
            grouped.setdefault(match[1] if match else stem, []).append(file.name)
        self._parts = {name: [_mapped(path) for path in _by_number(paths)] for name, paths in grouped.items()}
        lengths = {name: sum(map(len, parts)) for name, parts in self._parts.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise FormatError(f"{files[0].name}: the arrays have different numbers of rows: {shown}; convert them apart")
        for name, parts in self._parts.items():
            if len({part.shape[1:] for part in parts}) > 1 or len({part.dtype for part in parts}) > 1:
                raise FormatError(f"{grouped[name][0]}: the parts of {name!r} differ in width or dtype; convert them apart")
        self._num_rows = next(iter(lengths.values()))

    def blocks(self) -> Iterator[RowBlock]:
        for start in range(0, self._num_rows, _MATRIX_ROWS):
            yield RowBlock(0, start, min(start + _MATRIX_ROWS, self._num_rows))

    def parse(self, block: RowBlock, types: Mapping[Member, Any], kinds: Kinds) -> Parsed:
        columns: dict[str, pa.Array] = {}
        for name, parts in self._parts.items():
            rows = _rows_of(parts, block.start, block.stop)
            if rows.ndim == 1:
                columns[name] = pa.array(rows)
                continue
            for number in range(rows.shape[1]):
                columns[f"{name}{number}"] = pa.array(np.ascontiguousarray(rows[:, number]))
        return Parsed(columns, block.stop - block.start)

    def lines_of(self, block: RowBlock) -> None:
        """Return None: the source is no text."""


def _by_number(paths: Sequence[str]) -> list[str]:
    return sorted(paths, key=lambda path: (int(found[-1]) if (found := re.findall(r"\d+", Path(path).stem)) else 0, path))


def _mapped(path: str) -> NDArray[Any]:
    with open_file(path) as opened:
        head, nbytes = opened.read(_NPY_HEAD), os.fstat(opened.fileno()).st_size
    try:
        header = read_npy_header(head)
        if header.start + header.nbytes > nbytes:
            raise DecodeError(f"{header.dtype} {header.shape} take {header.nbytes} bytes")
        order: Literal["F", "C"] = "F" if header.is_fortran else "C"
        array = np.memmap(path, header.dtype, "r", header.start, header.shape, order)
    except (ValueError, OSError, DecodeError) as exc:
        raise FormatError(f"{path}: not a .npy file, or truncated ({exc!s:.100}); get it again") from exc
    if array.ndim not in (1, 2) or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise FormatError(f"{path}: {array.dtype} of shape {array.shape}; tables are made of (n,) and (n, k) arrays of numbers")
    return array


def _rows_of(parts: Sequence[NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
    found = []
    for part in parts:
        if start < len(part) and stop > 0:
            found.append(part[max(0, start) : min(stop, len(part))])
        start, stop = start - len(part), stop - len(part)
    whole = np.concatenate(found) if len(found) > 1 else np.asarray(found[0])
    return whole.astype(whole.dtype.newbyteorder("="), copy=False)
