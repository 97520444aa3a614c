"""`datapipe convert` for tables: CSV, JSON lines, Parquet or matrices to well-shaped Parquet, or to one row-major file."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from converters import Advance, OnError
from converters.tables import conversion
from converters.tables.conversion import TablePreview, TableReport
from converters.tables.options import GROUP_ROWS, TableConversion
from converters.tables.types import read_schema
from datapipe.containers.forms import FORMS, TABLE
from datapipe.core.printable import counted, say
from datapipe.errors import OptionError
from datapipe.stores.location import is_url, redacted

_MAX_SHOWN = 12  # columns in a report
# Options that mean something for files of samples only.
_FOR_SAMPLES = (
    "root", "field", "class_from", "class_map", "resize", "encode", "split", "part", "engine", "address", "dedupe", "check",
    "video_size", "video_keyframes", "audio_rate", "audio_channels", "audio_format", "audio_silence",
)  # fmt: skip


def has_table_options(args: argparse.Namespace) -> bool:
    """Return True if options were given that mean something for tables alone."""
    return any(getattr(args, name) is not None for name in ("schema", "names", "delimiter", "compression", "group_rows"))


def convert_table(args: argparse.Namespace, show: Callable[[Advance], None]) -> Callable[[], None]:
    """Convert the table, or look at it for --dry-run; return what prints how it ended. Raises as `converters.tables` does."""
    options = _options(args)
    if args.dry_run:
        preview = conversion.preview_table(options, show)
        return lambda: _print_preview(preview, options, as_json=args.json)
    report = conversion.convert_table(options, show)
    return lambda: _print_report(report, as_json=args.json)


def _options(args: argparse.Namespace) -> TableConversion:
    if is_url(args.source):
        raise OptionError(f"{redacted(args.source)}: tables are not converted from stores; copy the files to a disk")
    if args.to not in (FORMS[TABLE].targets or ()):
        raise OptionError(f"--to {args.to}: {args.source} is a table, which is written as parquet or hdf5")
    defaults = args.parser.parse_args(["SRC", "DST", "--to", args.to])
    for name in _FOR_SAMPLES:
        if getattr(args, name) != getattr(defaults, name):
            raise OptionError(f"--{name.replace('_', '-')} is for files of samples, and {args.source} is a table; leave it out")
    if is_url(str(args.destination)):
        raise OptionError(f"{args.destination}: tables are converted into directories; convert locally, then copy")
    return TableConversion(
        source=Path(args.source),
        destination=Path(args.destination),
        to=args.to,
        schema={} if args.schema is None else read_schema(args.schema),
        names=() if args.names is None else tuple(name.strip() for name in args.names.split(",")),
        delimiter=None if args.delimiter is None else args.delimiter.replace("\\t", "\t"),
        compression=args.compression or "snappy",
        group_rows=GROUP_ROWS if args.group_rows is None else args.group_rows,
        shard_nbytes=args.shard_size,
        seed=None if args.no_shuffle else args.seed,
        on_error=OnError(args.on_error),
        max_errors=args.max_errors,
        num_workers=args.workers,
        overwrite=args.overwrite,
    )


def _print_report(report: TableReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(report), indent=1, default=str))
        return
    where, rows = report.destination, counted(report.num_rows, "row")
    if report.was_finished:
        say(f"{where}: already converted: {rows}, with the same options, and from files of the same names and sizes")
        return
    bad = f", {counted(report.num_bad, 'bad row')} left out (see {where / 'errors.jsonl'})" if report.num_bad else ""
    say(f"{where}: {rows} in {counted(report.num_files, 'file')}, {report.nbytes / 1e6:.1f} MB{bad}")
    say(_columns(report.columns))
    resumed = f"{counted(report.num_resumed, 'file')} there already" if report.num_resumed else ""
    say(f"done in {report.elapsed_s:.1f} s, {resumed or f'{report.num_rows / max(report.elapsed_s, 1e-9):,.0f} rows/s'}")


def _print_preview(preview: TablePreview, options: TableConversion, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(preview), indent=1))
        return
    files = counted(preview.num_files, "file")
    say(
        f"{options.destination}: would hold {counted(preview.num_rows, 'row')}, {preview.nbytes / 1e6:.1f} MB in memory,"
        f" in {files}"
    )
    say(_columns(preview.columns))
    if preview.num_bad:
        say(f"{counted(preview.num_bad, 'bad row')} would be left out")


def _columns(columns: Any) -> str:
    shown = ", ".join(f"{name} {kind}" for name, kind in columns[:_MAX_SHOWN])
    return f"columns: {shown}" + (f" and {len(columns) - _MAX_SHOWN} more" if len(columns) > _MAX_SHOWN else "")
