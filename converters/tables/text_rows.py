"""Read CSV and TSV: text in blocks of whole rows, which are read in parallel and found again by their place.

Values come as text; a full scan finds their types.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from numpy.typing import NDArray

from converters.tables import MAX_SHOWN, BadTableRow, Kinds, Member, Misfit, Parsed, RowBlock, SourceFile, plain
from converters.tables.quoting import last_row_end, line_ends, num_lines, open_quote, quotes_of, row_ends
from datapipe.core.printable import counted
from datapipe.core.regular_files import open_file
from datapipe.errors import FormatError, IntegrityError

BLOCK_NBYTES = 8 << 20
_MAX_BLOCK_NBYTES = 1 << 28  # a row that is longer, or a quote that is open for so long, is damage
_HEAD_NBYTES = 1 << 16  # looked at for a header, which mostly is shorter
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


def blocks_of(
    path: str, number: int, *, start: int, line: int, delimiter: str | None, block_nbytes: int = BLOCK_NBYTES
) -> Iterator[RowBlock]:
    """Yield consecutive blocks of whole rows of a file, from byte `start` on, before which there are `line` lines.

    `number`: of the file. `delimiter`: of CSV, where line breaks within quoted values end no row; None: every newline ends one.
    Raises FormatError for a row of more than 256 MB.
    """
    with open_file(path) as file:
        end = os.fstat(file.fileno()).st_size
        while start < end:
            size = block_nbytes
            while True:
                data = os.pread(file.fileno(), min(size, end - start), start)
                stop = len(data) if start + len(data) >= end else _last_end(data, delimiter)
                if stop:
                    break
                if size >= _MAX_BLOCK_NBYTES:
                    raise FormatError(f"{path}: {_endless(data, start, line, delimiter)} within {size >> 20} MB; repair the file")
                size *= 2
            yield RowBlock(number, start, start + stop, line)
            line += num_lines(data, stop) if delimiter else data.count(b"\n", 0, stop)
            start += stop


def _last_end(data: bytes, delimiter: str | None) -> int:
    return last_row_end(data, delimiter) if delimiter else data.rfind(b"\n") + 1


def _endless(data: bytes, start: int, line: int, delimiter: str | None) -> str:
    opened = None if delimiter is None else open_quote(data, delimiter)
    if opened is None:
        return f"the row that begins at line {line + 1}, byte {start}, does not end"
    return f"the quote at line {line + num_lines(data, opened) + 1}, byte {start + opened}, is not closed"


def read_block(path: str, start: int, stop: int) -> bytes:
    """Return the bytes of a block. Raises IntegrityError if the file has become shorter."""
    with open_file(path) as file:
        data = os.pread(file.fileno(), stop - start, start)
    if len(data) != stop - start:
        raise IntegrityError(f"{path}: became shorter while it was read; restore it")
    return data


def bom_nbytes(path: str) -> int:
    """Return the length of the byte order mark at the beginning of a file, in bytes. Raises FormatError for UTF-16."""
    with open_file(path) as file:
        head = file.read(len(_BOM))
    if head[:2] in _UTF16_BOMS or b"\0" in head[:2]:
        raise FormatError(f"{path}: is UTF-16 text; save it as UTF-8, as `iconv -f UTF-16 -t UTF-8` does")
    return len(_BOM) if head == _BOM else 0


def _first_row(path: str, start: int, delimiter: str) -> bytes:
    """Return the row of CSV that begins at byte `start`, with its end. Raises FormatError if a quote in it is not closed."""
    block = next(blocks_of(path, 0, start=start, line=0, delimiter=delimiter, block_nbytes=_HEAD_NBYTES), None)
    data = b"" if block is None else read_block(path, block.start, block.stop)
    ends = row_ends(np.frombuffer(data, np.uint8), delimiter)
    if not len(ends) and open_quote(data, delimiter) is not None:
        shown = data.decode("utf-8", "replace")
        raise FormatError(f"{path}: its header {shown!r:.60} has a quote that is not closed; close it, or remove it")
    return data[: int(ends[0])] if len(ends) else data


DELIMITERS = {".csv": ",", ".tsv": "\t"}
_OTHER_DELIMITERS = "\t;|,"
_QUOTED = re.compile(rb'"[^"]*"')


def _delimiter_of(path: str, start: int, names: Sequence[str]) -> str:
    """Return the delimiter of a file: that of its suffix, unless the line at byte `start` has none of these, but others."""
    usual = DELIMITERS[Path(path).suffix.lower()]
    with open_file(path) as file:
        line = _QUOTED.sub(b"", os.pread(file.fileno(), _HEAD_NBYTES, start).partition(b"\n")[0].partition(b"\r")[0])
    if usual.encode() in line or len(names) == 1:
        return usual
    return next((mark for mark in _OTHER_DELIMITERS if mark.encode() in line), usual)


class CsvSource:
    """CSV files, read one after the other; see `RowSource`.

    `delimiter`: None: the one that the first line of a file uses. `names`: of the columns, where files have no header row.
    Raises FormatError where headers differ or name a column twice.
    """

    is_text = True

    def __init__(self, files: Sequence[SourceFile], *, delimiter: str | None, names: Sequence[str] = ()) -> None:
        self.files = tuple(files)
        self._headers = [_header(file.name, delimiter, names) for file in files]
        first = self._headers[0].names
        for file, header in zip(files, self._headers, strict=True):
            if sorted(header.names) != sorted(first):
                differing = sorted({*header.names} ^ {*first})
                raise FormatError(f"{file.name}: its header and that of {files[0].name} differ in {', '.join(differing)[:120]}")

    def blocks(self) -> Iterator[RowBlock]:
        for number, (file, header) in enumerate(zip(self.files, self._headers, strict=True)):
            start, line = header.nbytes, header.num_lines
            yield from blocks_of(file.name, number, start=start, line=line, delimiter=header.delimiter)

    def parse(self, block: RowBlock, types: Mapping[Member, pa.DataType], kinds: Kinds) -> Parsed:
        header, file = self._headers[block.file], self.files[block.file]
        data = read_block(file.name, block.start, block.stop)
        is_cut = block.stop >= file.nbytes and open_quote(data, header.delimiter) is not None
        stop = last_row_end(data, header.delimiter) if is_cut else len(data)
        parsed = _parsed(data[:stop], header)
        if is_cut:
            rest = data[stop:]
            what = f"a quote is not closed by the end of the file, {counted(num_lines(rest, len(rest)), 'line')} on"
            row = BadTableRow(parsed.num_seen, what, rest[:MAX_SHOWN].decode("utf-8", "replace"))
            parsed = dataclasses.replace(parsed, bad=(*parsed.bad, row))
        return dataclasses.replace(parsed, columns={name: parsed.columns[name] for name in self._headers[0].names})

    def lines_of(self, block: RowBlock) -> NDArray[np.int64]:
        """See `RowSource`."""
        letters = np.frombuffer(read_block(self.files[block.file].name, block.start, block.stop), np.uint8)
        starts = np.append(0, line_ends(letters))
        starts = starts[starts < len(letters)]
        is_inside = quotes_of(letters, self._headers[block.file].delimiter).are_around(starts - 1)
        is_empty = np.isin(letters[starts], np.frombuffer(b"\r\n", np.uint8))
        return np.flatnonzero(~is_inside & ~is_empty) + block.line + 1


@dataclass(frozen=True, slots=True)
class _Header:
    """The columns of a text file, and the bytes and lines before its rows."""

    delimiter: str
    names: tuple[str, ...]
    nbytes: int
    num_lines: int


def _header(path: str, delimiter: str | None, names: Sequence[str]) -> _Header:
    """Return the header of a file; without a row of it where `names` of columns are given."""
    start = bom_nbytes(path)
    delimiter = delimiter or _delimiter_of(path, start, names)
    return _Header(delimiter, tuple(names), start, 0) if names else _header_at(path, start, delimiter)


def _header_at(path: str, start: int, delimiter: str) -> _Header:
    head = _first_row(path, start, delimiter)
    row = head.rstrip(b"\r\n")
    if not row.strip():
        what = "the file is empty" if not head else "its first line is empty"
        raise FormatError(f"{path}: {what}, where a header with the names of columns belongs; repair it, or leave the file out")
    try:
        (found,) = csv.reader(io.StringIO(row.decode(), newline=""), delimiter=delimiter)
    except UnicodeDecodeError as exc:
        raise FormatError(f"{path}: its header {row!r:.60} is not UTF-8; save the file as UTF-8") from exc
    except (ValueError, csv.Error) as exc:
        raise FormatError(f"{path}: its first row is no header ({exc}); pass --names for a file without one") from exc
    names = [name.strip() for name in found]
    doubled = {name for name in names if names.count(name) > 1 or not name}
    if doubled:
        raise FormatError(
            f"{path}: its header names {sorted(doubled)[0]!r} {'twice' if '' not in doubled else 'a column'}; "
            "repair it, or pass --names for a file without a header"
        )
    return _Header(delimiter, tuple(names), start + len(head), num_lines(head, len(head)))


def _parsed(data: bytes, header: _Header) -> Parsed:
    if not data:
        return Parsed({name: pa.array([], pa.string()) for name in header.names}, 0)
    try:
        return _read(data, header)
    except pa.ArrowInvalid:  # rows that have too few or too many values, or are not UTF-8
        pass
    try:
        data.decode()
    except UnicodeDecodeError:
        return _decoded(_read(data.decode("latin-1").encode(), header, skips=True))
    return _read(data, header, skips=True)


def _read(data: bytes, header: _Header, *, skips: bool = False) -> Parsed:
    """Return the rows of a text. Raises pa.ArrowInvalid if it is not UTF-8, and for a bad row unless it `skips` those."""

    def refuse(row: Any) -> str:
        reason = f"{row.actual_columns} values where the header names {row.expected_columns}"
        if row.actual_columns == 1:
            reason += f"; values are separated by {header.delimiter!r} here, another separator is --delimiter"
        found.append(BadTableRow(row.number - 1, reason, str(row.text)[:MAX_SHOWN]))
        return "skip"

    found: list[BadTableRow] = []
    table = pc.read_csv(
        pa.BufferReader(b"\n" + data if data.startswith(_BOM) else data),  # one within a file is text, and Arrow skips it
        read_options=pc.ReadOptions(use_threads=False, column_names=list(header.names), block_size=len(data) + 2),
        parse_options=pc.ParseOptions(
            delimiter=header.delimiter, newlines_in_values=True, invalid_row_handler=refuse if skips else None
        ),
        convert_options=pc.ConvertOptions(
            column_types=dict.fromkeys(header.names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return Parsed({name: plain(table.column(name)) for name in table.column_names}, table.num_rows, tuple(found))


def _decoded(parsed: Parsed) -> Parsed:
    """Return rows of which each byte was read as a letter, decoded from UTF-8; those that are not UTF-8 are bad."""
    columns: dict[str, pa.Array] = {}
    wrong: dict[int, tuple[Misfit, str]] = {}
    for name, column in parsed.columns.items():
        texts: list[str | None] = []
        for place, letters in enumerate(column.to_pylist()):
            value = b"" if letters is None else letters.encode("latin-1")
            text = value.decode("utf-8", "replace")
            if text.encode() != value:
                wrong.setdefault(place, (Misfit(name, f"{name}: not UTF-8: {value!r:.60}"), ""))
            texts.append(None if letters is None else text)
        columns[name] = pa.array(texts, pa.string())
    bad = (dataclasses.replace(row, text=row.text.encode("latin-1").decode("utf-8", "replace")) for row in parsed.bad)
    return Parsed(columns, parsed.num_rows, tuple(bad)).without(wrong)
