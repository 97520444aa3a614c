"""Read CSV and TSV: text in blocks of whole rows, which are read in parallel and found again by their place.

Values come as text; a full scan finds their types.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from numpy.typing import NDArray

from converters.tables import MAX_SHOWN, BadTableRow, Kinds, Member, Misfit, Parsed, RowBlock, SourceFile, plain
from datapipe.core.regular_files import open_file
from datapipe.errors import FormatError, IntegrityError

BLOCK_NBYTES = 8 << 20
_MAX_BLOCK_NBYTES = 1 << 28  # a row that is longer, or a quote that is open for so long, is damage
_BOM = b"\xef\xbb\xbf"
_QUOTE, _NEWLINE, _RETURN = ord('"'), ord("\n"), ord("\r")


def blocks_of(
    path: str, number: int, *, start: int, line: int, quotes: bool, block_nbytes: int = BLOCK_NBYTES
) -> Iterator[RowBlock]:
    """Yield consecutive blocks of whole rows of a file, from byte `start` on, before which there are `line` lines.

    `number`: of the file. `quotes`: newlines between double quotes end no row. Raises FormatError for a row of more than 256 MB.
    """
    with open_file(path) as file:
        end = os.fstat(file.fileno()).st_size
        while start < end:
            size = block_nbytes
            while True:
                data = os.pread(file.fileno(), min(size, end - start), start)
                stop = len(data) if start + len(data) >= end else _last_row_end(data, quotes=quotes)
                if stop:
                    break
                if size >= _MAX_BLOCK_NBYTES:
                    what = "a quote is not closed" if quotes and b'"' in data else "a row does not end"
                    raise FormatError(f"{path}: {what} within {size >> 20} MB from byte {start}; repair the file")
                size *= 2
            yield RowBlock(number, start, start + stop, line)
            line += data.count(b"\n", 0, stop)
            start += stop


def _last_row_end(data: bytes, *, quotes: bool) -> int:
    """Return where the last whole row of a block ends; 0 if none does. A block begins outside of quotes."""
    if not quotes or b'"' not in data:
        return data.rfind(b"\n") + 1
    letters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(letters == _NEWLINE)
    num_before = np.searchsorted(np.flatnonzero(letters == _QUOTE), ends)
    outside = ends[num_before % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def read_block(path: str, start: int, stop: int) -> bytes:
    """Return the bytes of a block. Raises IntegrityError if the file has become shorter."""
    with open_file(path) as file:
        data = os.pread(file.fileno(), stop - start, start)
    if len(data) != stop - start:
        raise IntegrityError(f"{path}: became shorter while it was read; restore it")
    return data


def first_row(path: str) -> tuple[bytes, int]:
    """Return the first row of a file, without line end and byte order mark, and where the next rows begin."""
    with open_file(path) as file:
        line = file.readline(1 << 24)
    return line.removeprefix(_BOM).rstrip(b"\r\n"), len(line)


def bom_nbytes(path: str) -> int:
    """Return the length of the byte order mark at the beginning of a file, in bytes."""
    with open_file(path) as file:
        return len(_BOM) if file.read(len(_BOM)) == _BOM else 0


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
            yield from blocks_of(file.name, number, start=start, line=int(self._has_header), quotes=True)

    def parse(self, block: RowBlock, types: Mapping[Member, pa.DataType], kinds: Kinds) -> Parsed:
        names = self._names[block.file]
        data = read_block(self.files[block.file].name, block.start, block.stop)
        try:
            parsed = self._read(data, names, pa.string())
        except pa.ArrowInvalid:  # not UTF-8 somewhere
            parsed = _as_text(self._read(data, names, pa.binary()))
        columns = {name: parsed.columns[name] for name in self._names[0]}
        return Parsed(columns, parsed.num_rows, parsed.bad)

    def lines_of(self, block: RowBlock) -> NDArray[np.int64]:
        """See `RowSource`."""
        letters = np.frombuffer(read_block(self.files[block.file].name, block.start, block.stop), np.uint8)
        is_end = letters == _NEWLINE
        returns = np.flatnonzero(letters == _RETURN)
        is_end[returns[~is_end[np.minimum(returns + 1, len(letters) - 1)]]] = True  # one that no newline follows ends a row too
        ends = np.flatnonzero(is_end)
        starts, stops = np.append(0, ends + 1), np.append(ends, len(letters))
        is_inside = np.searchsorted(np.flatnonzero(letters == _QUOTE), starts) % 2 == 1
        is_empty = np.array([not letters[a:b].tobytes().strip(b"\r") for a, b in zip(starts, stops, strict=True)])
        return np.flatnonzero(~is_inside & ~is_empty) + block.line + 1

    def _read(self, data: bytes, names: Sequence[str], kind: pa.DataType) -> Parsed:
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
        return Parsed({name: plain(table.column(name)) for name in table.column_names}, table.num_rows, tuple(bad))


def _header(path: str, delimiter: str) -> tuple[str, ...]:
    line, nbytes = first_row(path)
    if not line.strip():
        what = "the file is empty" if not nbytes else "its first line is empty"
        raise FormatError(f"{path}: {what}, where a header with the names of columns belongs; repair it, or leave the file out")
    if line.count(b'"') % 2 or b"\r" in line:
        raise FormatError(
            f"{path}: its header {line.decode('utf-8', 'replace')!r:.60} has a line break within a name, or a quote that is not "
            "closed; write the names in one line that ends with a newline"
        )
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


def _as_text(parsed: Parsed) -> Parsed:
    """Return the rows whose values are UTF-8, as text; the others are added to the bad ones."""
    wrong: dict[int, tuple[Misfit, str]] = {}
    for name, column in parsed.columns.items():
        for place, value in enumerate(column.to_pylist()):
            if value is not None and not _is_text(value):
                wrong.setdefault(place, (Misfit(name, f"{name}: not UTF-8"), ""))
    kept = parsed.without(wrong)
    return Parsed({name: array.cast(pa.string()) for name, array in kept.columns.items()}, kept.num_rows, kept.bad)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
