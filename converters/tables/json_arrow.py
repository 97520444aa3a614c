"""Read lines of JSON by Arrow: as the columns of their members, with time and memory that are linear in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from converters.tables import MAX_COLUMNS, Member, Place, plain
from converters.tables.kinds import EXACT, called

_SLICE_LINES = 2048  # read at once: Arrow takes time for each line and each column that any of them has
MAX_CELLS = 1 << 27  # lines of a block times its columns


class TooManyColumnsError(Exception):
    """How many lines have how many columns, as text."""


@dataclass(frozen=True, slots=True)
class ReadMembers:
    """The members of lines. `objects`: those that are objects somewhere, whose own members are columns."""

    columns: dict[Member, Any]
    objects: frozenset[Member] = frozenset()


def read(lines: Sequence[bytes], types: Mapping[Member, pa.DataType]) -> ReadMembers | None:
    """Read lines; None if Arrow sees other rows than lines.

    Raises ArrowInvalid for lines that are bad or do not go together, and TooManyColumnsError.
    """
    parts: list[tuple[int, ReadMembers]] = []
    members: dict[Member, None] = {}
    for start in range(0, len(lines), _SLICE_LINES):
        some = lines[start : start + _SLICE_LINES]
        table = read_slice(some, types)
        if table.num_rows != len(some):
            return None
        if (num_leaves := sum(_num_leaves(field.type) for field in table.schema)) > MAX_COLUMNS:
            raise TooManyColumnsError(f"{len(some):,} lines have {num_leaves:,}")
        parts.append((len(some), _flat(table)))
        members |= dict.fromkeys(parts[-1][1].columns)
        if len(members) > MAX_COLUMNS or len(members) * len(lines) > MAX_CELLS:
            raise TooManyColumnsError(f"{len(lines):,} lines have {len(members):,} or more")
    if len(parts) == 1:
        return parts[0][1]
    objects = frozenset().union(*(part.objects for _, part in parts))
    try:
        return ReadMembers(_without_doubles({member: _joined(member, parts) for member in members}), objects)
    except _OtherTypesError:  # such as whole numbers in one part and others in the next
        return _flat(read_slice(lines, types))


class _OtherTypesError(Exception):
    """Parts of a column have different types."""


def _joined(member: Member, parts: Sequence[tuple[int, ReadMembers]]) -> Any:
    """Return the values of a member in all parts; null in those that lack it. Raises _OtherTypesError."""
    arrays = [(num_rows, part.columns.get(member)) for num_rows, part in parts]
    kinds = {array.type for _, array in arrays if array is not None} - {pa.null()}
    if len(kinds) > 1:
        raise _OtherTypesError
    kind = next(iter(kinds), pa.null())
    return pa.concat_arrays(
        [array if array is not None and array.type == kind else pa.nulls(num_rows, kind) for num_rows, array in arrays]
    )


def read_slice(lines: Sequence[bytes], types: Mapping[Member, pa.DataType]) -> pa.Table:
    """Read lines at once. Raises ArrowInvalid for lines that are bad or do not go together."""
    data = b"\n".join(lines) + b"\n"
    return pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=_nested(types), newlines_in_values=False),
    )


def _nested(types: Mapping[Member, pa.DataType]) -> pa.Schema | None:
    """Return the schema of objects whose members have these types. Numbers are parsed first and cast afterwards."""
    tree: dict[str, Any] = {}
    for (*above, last), kind in types.items():
        here = tree
        for part in above:
            here = here.setdefault(part, {})
        here[last] = kind
    return pa.schema(_fields(tree)) if tree else None


def _fields(tree: Mapping[str, Any]) -> list[Any]:
    return [pa.field(name, pa.struct(_fields(kind)) if isinstance(kind, dict) else kind) for name, kind in tree.items()]


def _flat(table: pa.Table) -> ReadMembers:
    found: dict[Member, Any] = {}
    objects: set[Member] = set()
    for name, column in zip(table.column_names, table.columns, strict=True):
        _flatten((name,), plain(column), found, objects)
    return ReadMembers(_without_doubles(found), frozenset(objects))


def _flatten(member: Member, array: Any, found: dict[Member, Any], objects: set[Member]) -> None:
    if not pa.types.is_struct(array.type):
        found[member] = array
        return
    if array.null_count < len(array):
        objects.add(member)
    for field, inner in zip(array.type, array.flatten(), strict=True):
        _flatten((*member, field.name), inner, found, objects)


def _num_leaves(kind: Any) -> int:
    if pa.types.is_struct(kind):
        return sum(_num_leaves(field.type) for field in kind)
    return _num_leaves(kind.value_type) if pa.types.is_list(kind) else 1


def _without_doubles(columns: dict[Member, Any]) -> dict[Member, Any]:
    """Leave out members without values if another one has their name: --schema may name members that are not there."""
    names = [called(member) for member in columns]
    if len({*names}) == len(names):
        return columns
    return {
        member: array
        for (member, array), name in zip(columns.items(), names, strict=True)
        if names.count(name) == 1 or array.null_count < len(array)
    }


def looked_through(columns: Mapping[Member, Any]) -> tuple[dict[Place, Any], list[int]]:
    """Return the types of floating numbers by place, and the rows in which some may not be what the text says."""
    floats: dict[Place, Any] = {}
    rows: set[int] = set()
    for member, array in columns.items():
        for place, values, row_of in _float_leaves(member, array, None):
            floats[place] = values.type
            numbers = np.abs(values.to_numpy(zero_copy_only=False))
            found = np.flatnonzero(numbers >= EXACT if values.type == pa.float64() else np.isinf(numbers))
            rows.update((found if row_of is None else row_of[found]).tolist())
    return floats, sorted(rows)


def _float_leaves(place: Place, array: Any, row_of: NDArray[Any] | None) -> Iterator[tuple[Place, Any, NDArray[Any] | None]]:
    """Yield place, values and their rows (None: one each) of the floating numbers within an array."""
    if pa.types.is_floating(array.type):
        yield place, array, row_of
    elif pa.types.is_list(array.type):
        parents = pc.list_parent_indices(array).to_numpy(zero_copy_only=False)
        yield from _float_leaves((*place, None), array.flatten(), parents if row_of is None else row_of[parents])
    elif pa.types.is_struct(array.type):
        for field, inner in zip(array.type, array.flatten(), strict=True):
            yield from _float_leaves((*place, field.name), inner, row_of)
