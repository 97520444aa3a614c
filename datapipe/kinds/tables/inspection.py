"""Recognise tables, telling them from shards of samples, and say what they are, in facts and in words."""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path
from typing import Any

from datapipe.containers.formats import container_of
from datapipe.containers.listing import is_image_name
from datapipe.containers.tables.files import SUFFIXES, null_counts, open_table, table_paths
from datapipe.containers.tables.types import holds_bytes
from datapipe.core.printable import counted
from datapipe.errors import DatapipeError, OptionError
from datapipe.index.manifest import MANIFEST_NAME
from datapipe.index.tables import ColumnKind, TableIndex
from datapipe.stores.location import is_url

_OF_SAMPLES = ("tar", "tfrecord")  # containers
_MAX_SHOWN = 30  # columns
_LARGE_GROUP_NBYTES = 256 << 20  # uncompressed: few of them fit into the windows that rows are shuffled in
_SMALL_GROUP_ROWS = 10_000
_GROUPS_PER_RANK = 4


def claim(path: str) -> TableIndex | None:
    """Return the table at a path or URL, None for what is not one. Writes nothing.

    Raises as `open_table` does for a file that can only be a table, by its name, and is none.
    """
    if os.path.lexists(os.path.join(path, MANIFEST_NAME)) or _holds_samples(path):
        return None
    try:
        first, *others = table_paths(path)
        if others and not is_url(path) and _has_bytes(open_table(first)):
            return None  # shards of images, of which there may be thousands
        table = open_table(path)
    except DatapipeError:
        if not is_url(path) and os.path.isfile(path) and _is_only_table(path):
            raise
        return None
    return table if is_url(path) or not _has_bytes(table) else None


def _has_bytes(table: TableIndex) -> bool:
    return any(map(holds_bytes, table.columns))


def _holds_samples(path: str) -> bool:
    """Return whether a directory has images, or shards that no table is, in it or in a directory in it."""
    if is_url(path):
        return False
    names = itertools.chain.from_iterable(names for _, _, names in os.walk(path))
    return any(is_image_name(os.fsencode(name)) or container_of(name) in _OF_SAMPLES for name in names)


def describe(index: TableIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of a table, JSON-safe. `nulls`: by column, None where footers do not count them."""
    if args.tokenizer is not None:
        raise OptionError(f"--tokenizer: {args.path} is a table, without token ids; leave it out")
    if args.grid is not None:
        raise OptionError(f"--grid: {args.path} is a table, without images")
    about = index.describe()
    least, median, most = about["rows per group"]
    by_file = [null_counts(file) for file in index.files]

    def nulls(name: str) -> int | None:
        counts = [0 if name in file.missing else found.get(name) for file, found in zip(index.files, by_file, strict=True)]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    return {
        "container": index.files[0].container,
        "rows": len(index),
        "files": len(index.files),
        "bytes": sum(file.nbytes for file in index.files),
        "row_groups": index.num_groups,
        "rows_per_group": {"least": least, "median": median, "most": most},
        "columns": [
            {"name": one.name, "type": one.type, "kind": one.kind.value, "nulls": nulls(one.name)} for one in index.columns
        ],
        "widened": list(index.widened),
        "advice": _advice(index, median),
    }


def _is_only_table(path: str) -> bool:
    """Return True for a file whose name tables have, and shards of samples have not."""
    return Path(path).suffix.lower() in SUFFIXES and container_of(Path(path).name) is None


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
    size = f"{facts['bytes'] / 1e6:,.1f} MB in {counted(facts['files'], 'file')}"
    least, most = groups["least"], groups["most"]
    sizes = counted(most, "row") if least == most else f"{least:,} to {most:,} rows (median {groups['median']:,})"
    lines = [
        f"{path}: {facts['container']} table, {counted(facts['rows'], 'row')} of"
        f" {counted(len(facts['columns']), 'column')}, {size}",
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
