"""Open tables, and say what they are, in facts and in words."""

from __future__ import annotations

import argparse
from typing import Any

from datapipe.containers.form import Form, refuse_choices
from datapipe.containers.forms import FORMS
from datapipe.containers.tables.files import null_counts, open_table
from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.index.tables import ColumnKind, TableIndex

_MAX_SHOWN = 30  # columns
_LARGE_GROUP_NBYTES = 256 << 20  # uncompressed: few of them fit into the windows that rows are shuffled in
_SMALL_GROUP_ROWS = 10_000
_GROUPS_PER_RANK = 4


def open_place(path: str, form: Form) -> TableIndex:
    """Return the table at a path or URL. Writes nothing. Raises as `open_table` does for one that cannot be read in place."""
    refuse_choices(path, form, "a table")
    return open_table(path)


def describe(index: TableIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of a table, JSON-safe. `nulls`: by column, None where footers do not count them."""
    if args.grid is not None:
        raise OptionError(f"--grid: {args.path} is a table, without images")
    about = index.describe()
    least, median, most = about["rows per group"]
    by_file = [null_counts(file) for file in index.files]

    def nulls(name: str) -> int | None:
        counts = [0 if name in file.missing else found.get(name) for file, found in zip(index.files, by_file, strict=True)]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    return {
        "container": (container := index.files[0].container),
        "rows": len(index),
        "files": len(index.files),
        "bytes": None if FORMS[container].entries else sum(file.nbytes for file in index.files),
        "row_groups": index.num_groups,
        "rows_per_group": {"least": least, "median": median, "most": most},
        "columns": [
            {"name": one.name, "type": one.type, "kind": one.kind.value, "nulls": nulls(one.name)} for one in index.columns
        ],
        "widened": list(index.widened),
        "advice": _advice(index, median),
    }


def _advice(index: TableIndex, median: int) -> list[str]:
    """Return advice on how to make shuffling cheaper, with the command."""
    if index.is_row_major:
        return []
    remedy = "convert it: datapipe convert SRC DST --to parquet"
    ranks = index.num_groups // _GROUPS_PER_RANK
    smaller = f"{remedy} --group-rows {max(1_000, len(index) // (8 * _GROUPS_PER_RANK))}"
    if ranks:
        lines = [f"enough row groups for {counted(ranks, 'rank')}, at {_GROUPS_PER_RANK} for each; more need smaller ones"]
    else:
        lines = [f"so few row groups make one window, which each of several ranks would read whole; for those {smaller}"]
    width = sum(8 if one.kind is not ColumnKind.TEXT else 16 for one in index.columns)
    if median * width > _LARGE_GROUP_NBYTES:
        lines.append(f"row groups of {median:,} rows are large: windows hold few of them, so that rows mix badly; {remedy}")
    if median < _SMALL_GROUP_ROWS and index.num_groups > 8:
        lines.append(f"row groups of {median:,} rows are small: each takes a read and a look at every column; {remedy}")
    return lines


def as_text(path: str, facts: dict[str, Any]) -> str:
    """Return the facts as text for people."""
    groups = facts["rows_per_group"]
    size = "" if facts["bytes"] is None else f", {facts['bytes'] / 1e6:,.1f} MB"
    least, most = groups["least"], groups["most"]
    sizes = counted(most, "row") if least == most else f"{least:,} to {most:,} rows (median {groups['median']:,})"
    lines = [
        f"{path}: {facts['container']} table, {counted(facts['rows'], 'row')} of"
        f" {counted(len(facts['columns']), 'column')}{size} in {counted(facts['files'], 'file')}",
        f"  groups   {counted(facts['row_groups'], 'row group')} of {sizes}",
    ]
    for column in facts["columns"][:_MAX_SHOWN]:
        nulls = (
            "nulls not counted" if column["nulls"] is None else f"{column['nulls']:,} nulls" if column["nulls"] else "no nulls"
        )
        lines.append(f"  column   {column['name']}: {column['type']}, {nulls}")
    if len(facts["columns"]) > _MAX_SHOWN:
        lines.append(f"  column   and {len(facts['columns']) - _MAX_SHOWN} more")
    lines += [f"  widened  {line}" for line in facts["widened"]]
    return "\n".join([*lines, *(f"  advice   {line}" for line in facts["advice"])])
