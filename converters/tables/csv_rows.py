"""Read CSV and TSV files. Values come as text; a full scan finds their types."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from converters.tables.rows import MAX_SHOWN, BadTableRow, Parsed, RowBlock, SourceFile
from converters.tables.text_blocks import blocks_of, bom_nbytes, first_row, read_block
from datapipe.core.errors import FormatError

DELIMITERS = {".csv": ",", ".tsv": "\t"}


class CsvSource:
    """CSV files, read one after the other; see `RowSource`.

    `names`: of the columns, where files have no header row. Raises FormatError where headers differ or name a column twice.
    """

    is_text = True

    def __init__(self, files: Sequence[SourceFile], *, delimiter: str, names: Sequence[str] = ()) -> None:
        self.files = tuple(files)
        self._delimiter = delimiter
        self._has_header = not names
        self._names = [tuple(names) or _header(file.name, delimiter) for file in files]
        for file, mine in zip(files, self._names, strict=True):
            if sorted(mine) != sorted(self._names[0]):
                differing = sorted({*mine} ^ {*self._names[0]})
                raise FormatError(f"{file.name}: its header and that of {files[0].name} differ in {', '.join(differing)[:120]}")

    def blocks(self) -> Iterator[RowBlock]:
        for number, file in enumerate(self.files):
            start = first_row(file.name)[1] if self._has_header else bom_nbytes(file.name)
            for begin, end in blocks_of(file.name, start=start, quotes=True):
                yield RowBlock(number, begin, end)

    def parse(self, block: RowBlock, types: Mapping[str, pa.DataType]) -> Parsed:
        names = self._names[block.file]
        data = read_block(self.files[block.file].name, block.start, block.stop)
        try:
            table, bad = self._read(data, names, pa.string())
        except pa.ArrowInvalid:  # not UTF-8 somewhere
            table, bad = self._read(data, names, pa.binary())
            table, bad = _without_bad_letters(table, bad)
        columns = {name: table.column(name).combine_chunks() for name in self._names[0]}
        columns = {name: _one(array) for name, array in columns.items()}
        return Parsed(columns, table.num_rows, tuple(bad))

    def _read(self, data: bytes, names: Sequence[str], kind: pa.DataType) -> tuple[pa.Table, list[BadTableRow]]:
        bad: list[BadTableRow] = []

        def refuse(row: Any) -> str:
            reason = f"{row.actual_columns} values where the header names {row.expected_columns}"
            bad.append(BadTableRow(row.number - 1, reason, str(row.text)[:MAX_SHOWN]))
            return "skip"

        table = pc.read_csv(
            pa.BufferReader(data),
            read_options=pc.ReadOptions(use_threads=False, column_names=list(names), block_size=len(data) + 1),
            parse_options=pc.ParseOptions(delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=refuse),
            convert_options=pc.ConvertOptions(
                column_types=dict.fromkeys(names, kind),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return table, bad


def _header(path: str, delimiter: str) -> tuple[str, ...]:
    line, _ = first_row(path)
    try:
        (names,) = csv.reader(io.StringIO(line.decode()), delimiter=delimiter)
    except (ValueError, csv.Error) as exc:
        raise FormatError(f"{path}: its first row is no header ({exc}); pass --names for a file without one") from exc
    names = [name.strip() for name in names]
    doubled = {name for name in names if names.count(name) > 1 or not name}
    if doubled:
        raise FormatError(
            f"{path}: its header names {sorted(doubled)[0]!r} {'twice' if '' not in doubled else 'a column'}; "
            "repair it, or pass --names for a file without a header"
        )
    return tuple(names)


def _one(array: Any) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    return array.chunk(0) if array.num_chunks else pa.array([], array.type)


def _without_bad_letters(table: pa.Table, bad: list[BadTableRow]) -> tuple[pa.Table, list[BadTableRow]]:
    """Return the rows whose values are UTF-8, as text; the others are added to the bad ones."""
    gone = {one.number for one in bad}
    kept_numbers = [number for number in range(table.num_rows + len(gone)) if number not in gone]
    wrong: dict[int, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        for place, value in enumerate(column.to_pylist()):
            if value is not None and place not in wrong and not _is_text(value):
                wrong[place] = f"{name}: not UTF-8"
    bad = bad + [BadTableRow(kept_numbers[place], reason) for place, reason in wrong.items()]
    kept = table.filter(pa.array([place not in wrong for place in range(table.num_rows)]))
    texts = pa.table({name: column.cast(pa.string()) for name, column in zip(kept.column_names, kept.columns, strict=True)})
    return texts, sorted(bad, key=lambda one: one.number or 0)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
