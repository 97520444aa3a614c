"""Read JSON lines: the members of the object in each line are columns; members of members are called `a.b`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from converters.tables.rows import MAX_SHOWN, BadTableRow, Parsed, RowBlock, SourceFile, plain
from converters.tables.text_blocks import blocks_of, bom_nbytes, read_block
from datapipe.core.errors import FormatError


class JsonSource:
    """JSON lines files; see `RowSource`. A member that an object lacks is null."""

    is_text = False

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.files = tuple(files)

    def blocks(self) -> Iterator[RowBlock]:
        for number, file in enumerate(self.files):
            for begin, end in blocks_of(file.name, start=bom_nbytes(file.name), quotes=False):
                yield RowBlock(number, begin, end)

    def parse(self, block: RowBlock, types: Mapping[str, pa.DataType]) -> Parsed:
        """See `RowSource`. Raises FormatError for members that are numbers here and texts there, without a type for them."""
        name = self.files[block.file].name
        lines = [line for line in read_block(name, block.start, block.stop).split(b"\n") if line.strip()]
        bad: list[BadTableRow] = []
        try:
            table = _read(lines, types)
        except pa.ArrowInvalid:  # a line that is no JSON, or another type than in other lines
            good = [(number, line) for number, line in enumerate(lines) if _checked(number, line, types, bad)]
            lines = [line for _, line in good]
            try:
                table = _read(lines, types)
            except pa.ArrowInvalid as exc:
                reason = str(exc).splitlines()[0]
                raise FormatError(
                    f"{name}: from byte {block.start}: {reason:.160}; name the type of that column in --schema"
                ) from exc
        columns = {name: plain(column) for name, column in _flat(table).items()}
        return Parsed(columns, len(lines), tuple(bad))


def _read(lines: Sequence[bytes], types: Mapping[str, pa.DataType]) -> pa.Table:
    if not lines:
        return pa.table({})
    data = b"\n".join(lines) + b"\n"
    return pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=_nested(types), newlines_in_values=False),
    )


def _nested(types: Mapping[str, pa.DataType]) -> pa.Schema | None:
    """Return the schema whose flattened columns have these types. Numbers are parsed first and cast afterwards."""
    tree: dict[str, Any] = {}
    for name, kind in types.items():
        *above, last = name.split(".")
        here = tree
        for part in above:
            here = here.setdefault(part, {})
        here[last] = kind
    return pa.schema(_fields(tree)) if tree else None


def _fields(tree: Mapping[str, Any]) -> list[Any]:
    return [pa.field(name, pa.struct(_fields(kind)) if isinstance(kind, dict) else kind) for name, kind in tree.items()]


def _flat(table: pa.Table) -> dict[str, Any]:
    while any(pa.types.is_struct(column.type) for column in table.columns):
        table = table.flatten()
    return dict(zip(table.column_names, table.columns, strict=True))


def _checked(number: int, line: bytes, types: Mapping[str, pa.DataType], bad: list[BadTableRow]) -> bool:
    """Return True if a line is an object whose members have the requested types; otherwise add it to `bad`."""
    try:
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError(f"{type(value).__name__}, not an object")
        if types:
            _read([line], types)
        return True
    except (ValueError, RecursionError, pa.ArrowInvalid) as exc:
        reason = str(exc).splitlines()[0].removesuffix(" in row 0")
        bad.append(BadTableRow(number, reason[:MAX_SHOWN], line.decode("utf-8", "backslashreplace")[:MAX_SHOWN]))
        return False
