"""Plan the conversion of a table: one pass over the source counts rows, finds types and names bad rows."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from converters.options import OnError
from converters.runs import read_record, to_json
from converters.tables import MAX_COLUMNS, MAX_SHOWN, BadTableRow, Kinds, Misfit, Parsed, Place, RowBlock, RowSource
from converters.tables.casting import as_type
from converters.tables.kinds import OBJECT, are_together, called, columns_of, together
from converters.tables.options import TableConversion
from converters.tables.types import Facts, check_used, facts_of, is_left_out, row_nbytes, types_of
from datapipe.core import atomic
from datapipe.core.ordered import map_in_order
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError
from datapipe.order.draws import key64

ERRORS_NAME = "errors.jsonl"
_SHUFFLE_PURPOSE = 0x726F7773  # makes the write order's key different from those of epochs
_RUN_NBYTES = 64 << 20  # rows that one thread reads and sorts at once


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A plan of the files to write: everything that a resumed run needs to write the same bytes."""

    options: dict[str, Any]
    files: list[tuple[str, int, int]]  # name, bytes, mtime in ns
    schema: str  # Arrow's, base64 of its serialised form
    blocks: list[tuple[int, int, int, int]]  # file, start, stop, good rows
    num_rows: int
    num_bad: int
    row_nbytes: float  # of a row in memory
    rows_per_shard: int
    key: int | None  # row r of the source goes to place RowPermutation(num_rows, key).at([r]); None: to r
    kinds: list[tuple[Place, str]] = dataclasses.field(default_factory=list)  # of all values, where rows are objects

    @property
    def arrow_schema(self) -> Any:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    @property
    def first_rows(self) -> NDArray[np.int64]:
        """Return (blocks + 1,) the row at which each block begins, and the number of rows."""
        return np.cumsum([0, *(block[3] for block in self.blocks)])

    @property
    def shard_starts(self) -> list[int]:
        """Return the places at which shards begin, and the number of rows."""
        return [*range(0, self.num_rows, self.rows_per_shard), self.num_rows]

    def runs(self) -> list[list[int]]:
        """Return the numbers of blocks that are read together."""
        found: list[list[int]] = []
        num_rows = 0
        for number, (_, _, _, rows) in enumerate(self.blocks):
            if not found or num_rows * self.row_nbytes >= _RUN_NBYTES:
                found.append([])
                num_rows = 0
            found[-1].append(number)
            num_rows += rows
        return found


def read_plan(path: Path) -> TablePlan:
    """Read a plan. Raises FormatError for a file that no conversion wrote."""
    return read_record(path, TablePlan, "the plan of a conversion", f"delete {path.parent} and start over")


def make_plan(
    path: Path, options: TableConversion, source: RowSource, *, num_threads: int, on_rows: Callable[[int, int], None]
) -> TablePlan:
    """Scan the source, write the plan to `path`, and bad rows to `errors.jsonl` beside it.

    `on_rows`: told of rows and bad rows. Raises DecodeError for a bad row under "fail", and for more than `max_errors`,
    MissingDataError for a source without rows, FormatError and OptionError for types that do not go together.
    """
    known = _KnownColumns(is_text=source.is_text)
    blocks: list[tuple[int, int, int, int]] = []
    num_rows = num_seen = num_bad = file_seen = 0

    def survey(block: RowBlock, kinds: Kinds) -> tuple[RowBlock, Parsed, dict[str, Facts]]:
        parsed = typed_rows(source.parse(block, {}, kinds), options.schema)
        declared = types_of(options.schema, parsed.columns)
        found = {name: facts_of(array, is_text=source.is_text and name not in declared) for name, array in parsed.columns.items()}
        return block, parsed, found

    with atomic.atomic_writer(path.with_name(ERRORS_NAME)) as errors:
        for block, parsed, found in map_in_order(lambda block: survey(block, {}), source.blocks(), num_threads=num_threads):
            if blocks and block.file != blocks[-1][0]:
                file_seen = 0
            if known.kinds and not known.goes_with(parsed):
                _, parsed, found = survey(block, known.kinds)
            lines = source.lines_of(block) if parsed.bad else None
            for bad in parsed.bad:
                line = None if lines is None or bad.number is None else int(lines[bad.number])
                _refuse(options, source, block, bad, file_seen, line)
                errors.write(_line_of(source, block, bad, file_seen, line))
            known.add(parsed, found, where=f"{source.files[block.file].name}: after line {block.line}")
            blocks.append((block.file, block.start, block.stop, parsed.num_rows))
            num_rows += parsed.num_rows
            num_seen += parsed.num_seen
            file_seen += parsed.num_seen
            num_bad += len(parsed.bad)
            on_rows(parsed.num_seen, len(parsed.bad))
            parsed.columns.clear()
    if not num_rows:
        raise MissingDataError(f"{options.source}: no rows{' that are good' if num_bad else ''}; check the path of the source")
    facts = known.facts
    if not facts:
        raise MissingDataError(f"{options.source}: its rows have no columns: every line is an empty object; check the source")
    check_used(options.schema, facts)
    if options.max_errors is not None and num_bad > options.max_errors.accepted_of(num_seen):
        raise DecodeError(f"{options.source}: {num_bad} bad rows exceed --max-errors {options.max_errors} of {num_seen}")
    schema = known.schema(options.schema)
    nbytes = sum(row_nbytes(field.type, facts[field.name]) for field in schema)
    per_shard = max(1, round(options.shard_nbytes / nbytes / options.group_rows)) * options.group_rows
    plan = TablePlan(
        options=options.as_typed(),
        files=[(file.name, file.nbytes, file.mtime_ns) for file in source.files],
        schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        blocks=blocks,
        num_rows=num_rows,
        num_bad=num_bad,
        row_nbytes=nbytes,
        rows_per_shard=per_shard,
        key=None if options.seed is None else int(key64(options.seed, _SHUFFLE_PURPOSE)),
        kinds=list(known.kinds.items()),
    )
    atomic.write_json(path, to_json(plan))
    return plan


class _KnownColumns:
    """The columns of the blocks so far. `kinds`: of their values, where rows are objects. Not thread-safe."""

    def __init__(self, *, is_text: bool) -> None:
        self.facts: dict[str, Facts] = {}
        self.kinds: dict[Place, str] = {}
        self._is_text = is_text
        self._num_rows = 0

    def goes_with(self, parsed: Parsed) -> bool:
        """Return True if the rows of a block that were read on their own are those that are good after the blocks so far."""
        return not any(bad.is_relative for bad in parsed.bad) and are_together(self.kinds, parsed.kinds)

    def add(self, parsed: Parsed, found: Mapping[str, Facts], *, where: str) -> None:
        """Add the columns of a block. Raises FormatError where values do not go together, and for too many columns of JSON."""
        for name in {**self.facts, **found}:
            before = self.facts.get(name) or Facts(pa.null(), self._num_rows, self._num_rows)
            added = found.get(name) or Facts(pa.null(), parsed.num_rows, parsed.num_rows)
            try:
                self.facts[name] = before.joined(added, name, is_text=self._is_text)
            except FormatError as exc:
                raise FormatError(f"{where}: {exc}") from exc
        for place, kind in parsed.kinds.items():
            self.kinds[place] = together(self.kinds.get(place, kind), kind) or kind
        self._num_rows += parsed.num_rows
        if self.kinds and len(self.facts) > MAX_COLUMNS:
            raise FormatError(
                f"{where}: there are {len(self.facts):,} different members by now, and each would be a column, {MAX_COLUMNS:,} "
                "at most, mostly empty; write keys that are values, such as ids, as values of a member"
            )

    def schema(self, schema: Mapping[str, str]) -> Any:
        """Return Arrow's schema of the table. `schema`: type names by column or pattern. Raises OptionError if none is left."""
        declared = types_of(schema, self.facts)
        objects = {called(place) for place, kind in self.kinds.items() if kind == OBJECT and None not in place}
        fields = [
            pa.field(name, declared.get(name) or one.target(), nullable=one.num_nulls > 0)
            for name, one in self.facts.items()
            if not (pa.types.is_null(one.kind) and name in objects)  # an object that was null in places
            and not is_left_out(schema, name)
        ]
        if not fields:
            raise OptionError("--schema leaves out every column")
        return pa.schema(fields)


def rows_of(plan: TablePlan, number: int, options: TableConversion, source: RowSource) -> Any:
    """Return the good rows of a block as a table of the plan's schema: the same rows that the scan found."""
    block, schema = RowBlock(*plan.blocks[number][:3]), plan.arrow_schema
    kinds = dict(plan.kinds)
    types = {member: schema.field(name).type for name, member in columns_of(kinds).items() if name in schema.names}
    parsed = typed_rows(source.parse(block, types, kinds), options.schema)
    arrays = []
    for field in schema:
        array = parsed.columns.get(field.name)
        array = pa.nulls(parsed.num_rows, field.type) if array is None else array
        typed, bad = as_type(array, field.type)
        if bad is not None or (typed.null_count and not field.nullable):
            raise FormatError(
                f"{source.files[block.file].name}: column {field.name!r} is not what the scan found; was it changed?"
            )
        arrays.append(typed)
    return pa.Table.from_arrays(arrays, schema=schema)


def typed_rows(parsed: Parsed, schema: Mapping[str, str]) -> Parsed:
    """Cast columns to the types that the user named; rows whose values do not fit are bad."""
    types = types_of(schema, parsed.columns)
    columns, wrong = dict(parsed.columns), dict[int, Misfit]()
    for name, kind in types.items():
        columns[name], bad = as_type(columns[name], kind)
        if bad is not None:
            for place in np.flatnonzero(bad).tolist():
                value = parsed.columns[name][place].as_py()
                wrong.setdefault(place, Misfit(name, f"{name}: {value!r:.60} is no {kind}"))
    texts = {
        place: json.dumps({name: array[place].as_py() for name, array in parsed.columns.items()}, default=str)[:MAX_SHOWN]
        for place in wrong
    }
    typed = Parsed(columns, parsed.num_rows, parsed.bad, parsed.kinds)
    return typed.without({place: (why, texts[place]) for place, why in wrong.items()})


def _refuse(
    options: TableConversion, source: RowSource, block: RowBlock, bad: BadTableRow, before: int, line: int | None
) -> None:
    if options.on_error is OnError.FAIL:
        row = "" if bad.number is None else f": row {before + bad.number + 1}" + ("" if line is None else f" (line {line})")
        raise DecodeError(
            f"{source.files[block.file].name}{row}: bad row: {bad.reason}; repair it, or leave bad rows out with --on-error skip"
        )


def _line_of(source: RowSource, block: RowBlock, bad: BadTableRow, before: int, line: int | None) -> bytes:
    value = {
        "source": os.fspath(source.files[block.file].name),
        "row": None if bad.number is None else before + bad.number + 1,
        "line": line,
        "column": bad.column or None,
        "reason": bad.reason,
        "text": bad.text,
    }
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def first_change(plan: TablePlan, files: Sequence[tuple[str, int, int]]) -> str | None:
    """Return how the files differ from those of the plan; None if they do not."""
    for (name, nbytes, mtime), (now, now_nbytes, now_mtime) in zip(plan.files, files, strict=False):
        if name != now:
            return f"{now} is new or {name} is gone"
        if (nbytes, mtime) != (now_nbytes, now_mtime):
            return f"{name} was written again"
    return None if len(plan.files) == len(files) else f"{len(plan.files)} files then, {len(files)} now"
