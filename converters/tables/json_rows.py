"""Read JSON lines: the members of the object in each line are columns; members of members are called `a.b`.

Arrow reads a block (`json_arrow`). If it stops, or if what it read looks suspicious, the lines are checked one by one
(`json_checks`), so that bad ones are named, and the rest is read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from converters.tables import MAX_COLUMNS, MAX_SHOWN, BadTableRow, Kinds, Member, Misfit, Parsed, Place, RowBlock, SourceFile
from converters.tables.json_arrow import MAX_CELLS, ReadMembers, TooManyColumnsError, looked_through, read, read_slice
from converters.tables.json_checks import (
    BRACKETS,
    MAX_DEPTH,
    KindChecks,
    is_deep,
    may_be_rounded,
    number_misfit,
    parsed,
    value_of,
)
from converters.tables.kinds import OBJECT, are_together, called, floating_types, kinds_in, kinds_of
from converters.tables.text_rows import blocks_of, bom_nbytes, read_block
from converters.tables.types import types_of
from datapipe.errors import FormatError

_NEITHER_BRACKETS_NOR_NEWLINES = bytes(set(range(256)) - set(BRACKETS + b"\n"))
_MANY_BRACKETS = re.compile(rb"[^\n]{%d}" % (MAX_DEPTH + 1))

Line = tuple[int, bytes]  # its number among the lines of a block that are not blank


class JsonSource:
    """JSON lines files; see `RowSource`. A member that an object lacks is null.

    `schema`: type names by column or pattern. Values of floating columns that it names may be rounded.
    """

    is_text = False

    def __init__(self, files: Sequence[SourceFile], schema: Mapping[str, str]) -> None:
        self.files = tuple(files)
        self._schema = schema
        named = types_of(schema, [name for name in schema if not set(name) & set("*?[")])
        self._named: dict[Member, Any] = {tuple(name.split(".")): kind for name, kind in named.items()}
        self._may_round_by_name: dict[str, bool] = {}

    def blocks(self) -> Iterator[RowBlock]:
        for number, file in enumerate(self.files):
            yield from blocks_of(file.name, number, start=bom_nbytes(file.name), line=0, delimiter=None)

    def lines_of(self, block: RowBlock) -> NDArray[np.int64]:
        """See `RowSource`."""
        lines = read_block(self.files[block.file].name, block.start, block.stop).split(b"\n")
        return np.flatnonzero([bool(line.strip()) for line in lines]) + block.line + 1

    def parse(self, block: RowBlock, types: Mapping[Member, pa.DataType], kinds: Kinds) -> Parsed:
        """See `RowSource`. Raises FormatError for too many columns, and for lines that do not go together."""
        name = self.files[block.file].name
        data = read_block(name, block.start, block.stop)
        lines = [line for line in data.split(b"\n") if line.strip()]
        names = {called(member) for member in types}
        types = {member: kind for member, kind in self._named.items() if called(member) not in names} | dict(types)
        bad: list[BadTableRow] = []
        try:
            found = self._read(lines, types, kinds) if _is_plain(data, lines) else None
            if found is None:
                found, bad = self._checked(lines, types, kinds)
        except TooManyColumnsError as exc:
            raise FormatError(
                f"{name}: after line {block.line}, {exc} different members, and each would be a column that is mostly empty "
                f"({MAX_COLUMNS:,} columns at most, and {MAX_CELLS:,} values in them at once); write keys that are values, "
                "such as ids, as values of a member"
            ) from exc
        except pa.ArrowInvalid as exc:
            raise FormatError(f"{name}: from byte {block.start}: {str(exc).splitlines()[0]:.160}; repair the lines") from exc
        columns = {called(member): column for member, column in found.columns.items()}
        return Parsed(columns, len(lines) - len(bad), tuple(bad), self._kinds(found))

    def _read(self, lines: Sequence[bytes], types: Mapping[Member, pa.DataType], kinds: Kinds) -> ReadMembers | None:
        """Return the columns of lines; None where a look at each line is needed."""
        try:
            found = read(lines, types)
        except pa.ArrowInvalid:
            return None
        if found is None or len({called(member) for member in found.columns}) < len(found.columns):
            return None
        if not are_together(kinds, self._kinds(found)):
            return None
        floats, suspicious = looked_through(found.columns)
        for number in suspicious:
            members = parsed(lines[number])
            if isinstance(members, Misfit) or number_misfit(members, floats):
                return None
            if not all(map(self._may_round, may_be_rounded(members, floats))):
                return None
        return found

    def _kinds(self, found: ReadMembers) -> Kinds:
        kinds: dict[Place, str] = dict.fromkeys(found.objects, OBJECT)
        for member, array in found.columns.items():
            kinds |= kinds_in(member, array, self._may_round)
        return kinds

    def _may_round(self, name: str) -> bool:
        """Return whether integers of a column may be rounded. Asked for each value of a line that is checked."""
        if name not in self._may_round_by_name:
            kind = types_of(self._schema, [name]).get(name)
            self._may_round_by_name[name] = kind is not None and bool(pa.types.is_floating(kind))
        return self._may_round_by_name[name]

    def _checked(
        self, lines: Sequence[bytes], types: Mapping[Member, pa.DataType], kinds: Kinds
    ) -> tuple[ReadMembers, list[BadTableRow]]:
        """Return the columns of the lines that are good, and what is wrong with the others."""
        named: dict[Place, str] = {}
        for member, kind in self._named.items():
            named |= kinds_of(member, kind)
        unsigned = [member for member, kind in types.items() if pa.types.is_uint64(kind)]
        checks = KindChecks({**named, **kinds}, unsigned=unsigned, may_round=self._may_round)
        good: list[Line] = []
        bad: list[BadTableRow] = []
        for number, line in enumerate(lines):
            members = parsed(line)
            misfit = members if isinstance(members, Misfit) else checks.misfit(members)
            if misfit is None:
                good.append((number, line))
            else:
                bad.append(_bad(number, line, misfit))
        types = {**floating_types(checks.kinds), **types}
        good = _of_types(good, types, bad)
        texts = [line for _, line in good]
        found = read(texts, types) or ReadMembers({})
        floats, suspicious = looked_through(found.columns)
        for place in suspicious:
            members = parsed(texts[place])
            if not isinstance(members, Misfit) and (misfit := number_misfit(members, floats)):
                bad.append(_bad(*good[place], misfit))
        gone = {one.number for one in bad}
        kept = [line for number, line in good if number not in gone]
        if len(kept) < len(good):
            found = read(kept, types) or ReadMembers({})
        return found, sorted(bad, key=lambda one: one.number or 0)


def _is_plain(data: bytes, lines: Sequence[bytes]) -> bool:
    """Return True if the lines are UTF-8, and brackets in them not so deep that Arrow's parser crashes."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    brackets = data.translate(None, _NEITHER_BRACKETS_NOR_NEWLINES)
    return _MANY_BRACKETS.search(brackets) is None or not any(map(is_deep, lines))


def _bad(number: int, line: bytes, misfit: Misfit) -> BadTableRow:
    text = line.decode("utf-8", "backslashreplace")[:MAX_SHOWN]
    return BadTableRow(number, misfit.reason[:MAX_SHOWN], text, misfit.column, misfit.is_relative)


def _of_types(lines: list[Line], types: Mapping[Member, pa.DataType], bad: list[BadTableRow]) -> list[Line]:
    """Return the lines whose values have the requested types; the others, found by halves, are added to `bad`."""
    try:
        read([line for _, line in lines], types)
    except pa.ArrowInvalid as exc:
        if len(lines) == 1:
            number, line = lines[0]
            bad.append(_bad(number, line, _type_misfit(line, types) or Misfit("", str(exc).splitlines()[0])))
            return []
        middle = len(lines) // 2
        return _of_types(lines[:middle], types, bad) + _of_types(lines[middle:], types, bad)
    return lines


def _type_misfit(line: bytes, types: Mapping[Member, pa.DataType]) -> Misfit | None:
    """Return which member of a line does not have its type."""
    members = parsed(line)
    if isinstance(members, Misfit):
        return None
    for member, kind in types.items():
        try:
            read_slice([line], {member: kind})
        except pa.ArrowInvalid:
            return Misfit(called(member), f"{called(member)}: {value_of(members, member)!r:.60} is no {kind}")
    return None
