"""What `inspect` and `bench` say of tables."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

from datapipe.core.printable import counted

if TYPE_CHECKING:
    from datapipe.index.sample_index import SampleIndex
    from datapipe.index.tables import TableIndex

_MAX_SHOWN = 30  # columns
_LARGE_GROUP_NBYTES = 256 << 20  # uncompressed: few of them fit into the windows that rows are shuffled in
_SMALL_GROUP_ROWS = 10_000
_GROUPS_PER_RANK = 4
_BYTES = ("binary", "large_binary", "binary_view")


def samples_or_table(path: str) -> SampleIndex | TableIndex:
    """Return the index of the table at `path`, else of the samples there. Raises as `open_index` does if there is neither.

    A table is looked for first, as that writes nothing: shards of samples that others wrote get an index next to them.
    """
    from datapipe.containers import open_index
    from datapipe.containers.tables.files import TEXT_SUFFIXES, open_table
    from datapipe.core.errors import DatapipeError, FormatError
    from datapipe.index.manifest import MANIFEST_NAME
    from datapipe.stores.location import is_url

    if os.path.lexists(os.path.join(path, MANIFEST_NAME)):
        return open_index(path)
    if is_url(path):  # indexes of what lies in stores are kept elsewhere
        try:
            return open_index(path)
        except FormatError as exc:
            try:
                return open_table(path)
            except DatapipeError:
                raise exc from None
    try:
        index = open_table(path)
    except DatapipeError:
        if path.lower().endswith(TEXT_SUFFIXES) and os.path.isfile(path):
            raise
        return open_index(path)
    if any(column.type in _BYTES for column in index.columns):  # encoded images
        return open_index(path)
    return index


def describe_table(index: TableIndex) -> dict[str, Any]:
    """The facts of a table, JSON-safe. `nulls`: by column, None where footers do not count them."""
    about = index.describe()
    least, median, most = about["rows per group"]

    def nulls(name: str) -> int | None:
        counts = [0 if name in file.missing else file.nulls.get(name) for file in index.files]
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


def _advice(index: TableIndex, median: int) -> list[str]:
    """What would help shuffling, with the command."""
    from datapipe.index.tables import ColumnKind

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


def table_text(path: str, facts: dict[str, Any]) -> str:
    """The facts for people."""
    groups = facts["rows_per_group"]
    size = f"{facts['bytes'] / 1e6:,.1f} MB in {facts['files']:,} file{'s' * (facts['files'] != 1)}"
    sizes = f"{groups['least']:,} to {groups['most']:,} rows (median {groups['median']:,})"
    lines = [
        f"{path}: {facts['container']} table, {facts['rows']:,} rows of {len(facts['columns'])} columns, {size}",
        f"  groups   {facts['row_groups']:,} row group{'s' * (facts['row_groups'] != 1)} of {sizes}",
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


def measure_table(index: TableIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Rows per second of shuffled batches of all numbers, by round, beside a bare read of the same columns.

    Raises OptionError for a table without columns of numbers.
    """
    import datapipe as dp
    from datapipe.containers.tables.rows import GroupReader
    from datapipe.index.tables import ColumnKind

    names = [column.name for column in index.columns if column.kind is ColumnKind.NUMBER]
    if not names:
        raise dp.OptionError("bench: the table has no column of numbers; fit a recipe first (datapipe fit) and time that by hand")
    paths = [file.path for file in index.files]
    loader = dp.TableLoader(
        paths,
        args.table_batch_size,
        True,
        columns=names,
        dtypes="float64",
        seed=0,
        num_workers=args.num_workers,
        device=args.device,
    )
    rates: dict[str, list[float]] = {"datapipe": [], "bare read": []}
    for number in range(args.rounds + 1):
        started = time.perf_counter()
        num = sum(len(batch) for batch in loader)
        shuffled_s = time.perf_counter() - started
        started = time.perf_counter()
        reader = GroupReader(names)
        for group in range(index.num_groups):
            reader.read(index.group(group))
        bare_s = time.perf_counter() - started
        if number:  # the first round is a warm-up
            rates["datapipe"].append(num / shuffled_s)
            rates["bare read"].append(num / bare_s)
    return {
        "rows": len(index),
        "columns": len(names),
        "batch_size": args.table_batch_size,
        "num_workers": loader.num_workers,
        "device": str(loader.device),
        "rows_per_s": {name: round(statistics.median(values)) for name, values in rates.items()},
        "rounds": {name: [round(value) for value in values] for name, values in rates.items()},
    }


def measured_text(result: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [
        f"{result['rows']:,} rows of {result['columns']} columns, shuffled batches of {result['batch_size']:,} on "
        f"{result['device']}, {result['num_workers']} threads; a bare read is one thread's, and shuffles nothing"
    ]
    for name, rate in result["rows_per_s"].items():
        rounds = result["rounds"][name]
        lines.append(f"  {name:<10}{rate:>12,.0f} rows/s   (rounds {min(rounds):,.0f} to {max(rounds):,.0f})")
    return "\n".join(lines)
