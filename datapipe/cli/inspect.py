"""`datapipe inspect`: describe a dataset or a table, in words, and a dataset as a contact sheet."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from typing import Any

import numpy as np

from datapipe.cli.contact_sheet import draw_sheet, spread_ids
from datapipe.cli.recognition import samples_or_table
from datapipe.codecs.probe import checked_header
from datapipe.containers.tables.files import null_counts
from datapipe.core.atomic import refuse_to_replace
from datapipe.core.checks import whole_number
from datapipe.core.errors import DecodeError, IntegrityError, OptionError
from datapipe.core.printable import counted, say_text
from datapipe.fetch.files import open_files
from datapipe.index.sample_index import SampleIndex
from datapipe.index.tables import ColumnKind, TableIndex

_LOOKED_AT = 200  # samples opened to describe encodings and sizes
_MAX_SHOWN = 30  # columns
_LARGE_GROUP_NBYTES = 256 << 20  # uncompressed: few of them fit into the windows that rows are shuffled in
_SMALL_GROUP_ROWS = 10_000
_GROUPS_PER_RANK = 4


def run(args: argparse.Namespace) -> int:
    """Print the description. Returns 0. Raises OptionError for wrong options, and what `open_index` raises."""
    whole_number(args.num, "--num", least=1)
    if args.grid is not None:
        refuse_to_replace(args.grid)
    index = samples_or_table(args.path)
    if isinstance(index, TableIndex):
        if args.grid is not None:
            raise OptionError(f"--grid: {args.path} is a table, without images")
        told = describe_table(index)
        say_text(json.dumps(told, indent=1) if args.json else table_text(args.path, told))
        return 0
    facts = describe(index)
    if args.grid is not None and not index.has_images:
        raise OptionError(f"--grid: {args.path} holds no images; leave it out")
    if args.grid is not None:
        facts["grid"] = str(args.grid)
        draw_sheet(index, args.grid, num_images=args.num)
    say_text(json.dumps(facts, indent=1) if args.json else as_text(args.path, facts))
    return 0


def describe(index: SampleIndex) -> dict[str, Any]:
    """Return the facts of a dataset, JSON-safe."""
    files, num = open_files(index), len(index)
    ids = spread_ids(index, _LOOKED_AT if index.has_images else 0)
    encodings: Counter[str] = Counter()
    sizes: list[tuple[int, int]] = []
    nbytes: list[int] = []
    bad: list[str] = []
    entries = index.look_up(ids, "image") if len(ids) else None
    on_their_way = None if entries is None else files.will_need(entries.extents)
    for row in range(len(ids)):
        assert entries is not None
        try:
            data = files.read(entries.extents, row)
            header = checked_header(data)
        except (DecodeError, IntegrityError) as exc:
            bad.append(f"{index.describe(int(ids[row]))}: {exc}")
            continue
        encodings[header.encoding] += 1
        sizes.append((header.height, header.width))
        nbytes.append(len(data))
    del on_their_way
    manifest = index.manifest
    return {
        "container": manifest.container,
        "samples": num,
        "fields": {field.name: field.kind.value for field in manifest.fields},
        "classes": None if manifest.classes is None else len(manifest.classes),
        "shards": len(manifest.shards),
        "bytes": sum(shard.nbytes for shard in manifest.shards),
        "options": manifest.options,
        "looked_at": {
            "samples": len(ids),
            "encodings": dict(encodings.most_common()),
            "median_size": [int(value) for value in np.median(np.array(sizes), axis=0)] if sizes else None,
            "median_bytes": int(np.median(nbytes)) if nbytes else None,
            "bad": bad,
        },
        "first": str(index.describe(int(index.ids(np.zeros(1, np.int64))[0]))) if num else None,
    }


def as_text(path: str | os.PathLike[str], facts: dict[str, Any]) -> str:
    """Return the facts as text for people."""
    seen = facts["looked_at"]
    encodings = ", ".join(f"{count} {name}" for name, count in seen["encodings"].items())
    fields = ", ".join(f"{name} ({kind})" for name, kind in facts["fields"].items())
    parts = counted(facts["shards"], "index part" if facts["container"] == "folder" else "shard")
    lines = [
        f"{os.fspath(path)}: {facts['container']}, {counted(facts['samples'], 'sample')},"
        f" {facts['bytes'] / 1e6:,.1f} MB in {parts}",
        f"  fields   {fields}",
        f"  classes  {facts['classes'] if facts['classes'] is not None else 'not named'}",
    ]
    if "image" in facts["fields"]:
        lines.append(f"  images   {encodings or 'none readable'} among {seen['samples']} looked at")
    if seen["median_size"]:
        height, width = seen["median_size"]
        lines.append(f"  median   {height} x {width} pixels (height x width), {seen['median_bytes'] / 1e3:,.1f} kB")
    lines.append(f"  first    {facts['first']}")
    lines += [f"  bad      {text}" for text in seen["bad"]]
    if "grid" in facts:
        lines.append(f"  sheet    {facts['grid']}")
    return "\n".join(lines)


# -- tables ------------------------------------------------------------------------------------------


def describe_table(index: TableIndex) -> dict[str, Any]:
    """The facts of a table, JSON-safe. `nulls`: by column, None where footers do not count them."""
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


def table_text(path: str, facts: dict[str, Any]) -> str:
    """The facts for people."""
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
