"""Convert a whole table: make or resume the plan, write what is missing, put the result in its place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.options import changed_options
from converters.publishing import placing
from converters.report import Advance, OnProgress, Phase, ignore_progress
from converters.runs import hold, read_record, to_json, translated
from converters.tables import RowSource
from converters.tables.options import TableConversion
from converters.tables.plan import ERRORS_NAME, TablePlan, first_change, make_plan, read_plan
from converters.tables.row_major import matrices_of, write_rows
from converters.tables.sources import open_rows
from converters.tables.writing import WrittenFile, write_parquet
from datapipe.core import atomic, regular_files
from datapipe.core.environment import num_usable_cores
from datapipe.errors import IntegrityError, OptionError, StorageError
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME
from datapipe.index.tables import TABLE_NAME

_PLAN_NAME = "plan.json"


@dataclass(frozen=True, slots=True)
class TableReport:
    """The outcome of a conversion."""

    destination: Path
    num_rows: int
    num_bad: int
    columns: tuple[tuple[str, str], ...]  # name and type
    num_files: int
    num_resumed: int  # files that an earlier run had written
    nbytes: int
    elapsed_s: float
    was_finished: bool = False  # nothing was to do


@dataclass(frozen=True, slots=True)
class TablePreview:
    """The result of a dry run."""

    num_rows: int
    num_bad: int
    columns: tuple[tuple[str, str], ...]
    num_files: int
    nbytes: int  # of the rows in memory


@dataclass(frozen=True, slots=True)
class TableDocument:
    """The contents of `table.json`: the sources, types and options of a converted table."""

    version: int
    options: dict[str, Any]
    files: list[WrittenFile]
    columns: list[tuple[str, str]]
    num_rows: int
    num_bad: int
    source_digest: str  # of the names and sizes of the files it was made from
    permutation_key: int | None  # row r of the source is row RowPermutation(num_rows, key).at([r]) here; None: row r


def convert_table(options: TableConversion, on_progress: OnProgress = ignore_progress) -> TableReport:
    """Convert a table, or resume an interrupted conversion.

    The written bytes depend only on the source and the options, not on threads or interruptions. Raises OptionError,
    MissingDataError, FormatError, StorageError, DecodeError (a bad row under "fail", or too many), IntegrityError (the source
    changed); whatever it raises, the same call resumes. `on_progress` is called in the caller's thread.
    """
    started = time.monotonic()
    destination = options.destination.absolute()
    source = open_rows(options.source, delimiter=options.delimiter, names=options.names, schema=options.schema)
    building = destination / BUILDING_NAME
    placing.sweep(destination)
    found = _found(destination)
    if (building / placing.FINAL_NAME).exists():
        pass  # whatever else is there: it only remains to put things in their places
    elif found is not None and not options.overwrite:
        _compare(found, options, source, destination)
        return _report(destination, found, started, was_finished=True)
    else:
        _refuse_strange(destination, found)
    with translated(destination):
        building.mkdir(parents=True, exist_ok=True)
        with hold(building / "table.lock", wait=False) as is_mine:
            if not is_mine:
                raise StorageError(f"{destination}: another process is converting into it; wait for it, or stop it first")
            document, num_resumed = _converted(building, options, source, found, on_progress)
            placing.place(destination)
    return _report(destination, document, started, num_resumed=num_resumed)


def preview_table(options: TableConversion, on_progress: OnProgress = ignore_progress) -> TablePreview:
    """Return what `convert_table` would do; writes nothing to the destination."""
    source = open_rows(options.source, delimiter=options.delimiter, names=options.names, schema=options.schema)
    with tempfile.TemporaryDirectory(prefix="datapipe-") as scratch:
        plan = _plan(Path(scratch) / BUILDING_NAME, options, source, options.num_workers or num_usable_cores(), on_progress)
    num_files = 1 if options.to == "hdf5" else len(plan.shard_starts) - 1
    return TablePreview(plan.num_rows, plan.num_bad, _columns_of(plan), num_files, round(plan.num_rows * plan.row_nbytes))


def _columns_of(plan: TablePlan) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, str(field.type) + ("" if field.nullable else " not null")) for field in plan.arrow_schema)


def read_document(directory: Path) -> TableDocument:
    """Read `table.json`. Raises FormatError for a file that no conversion wrote, and FileNotFoundError."""
    path = directory / TABLE_NAME
    found = read_record(path, TableDocument, "the record of a converted table", "convert again")
    for file in found.files:
        regular_files.path_inside(str(directory), file.name, named_in=path, follows=True)
    return found


def _found(destination: Path) -> TableDocument | None:
    if destination.exists() and not destination.is_dir():
        raise OptionError(f"{destination}: is not a directory; choose another destination")
    try:
        return read_document(destination)
    except FileNotFoundError:
        return None


def _compare(found: TableDocument, options: TableConversion, source: RowSource, destination: Path) -> None:
    """Raise OptionError or IntegrityError where a finished table is not what this conversion would make."""
    changed = "; ".join(changed_options(found.options, options.as_typed()))
    if changed:
        raise OptionError(f"{destination}: holds a table made with other options: {changed}; pass --overwrite to replace it")
    for file in found.files:
        path = destination / file.name
        if not path.exists() or path.stat().st_size != file.nbytes:
            raise IntegrityError(f"{path}: missing or truncated; pass --overwrite to convert again")
    if found.source_digest != _digest(source):
        raise IntegrityError(
            f"{destination}: holds a table made of other files than {options.source} has now; pass --overwrite to convert again"
        )


def _refuse_strange(destination: Path, found: TableDocument | None) -> None:
    known = {BUILDING_NAME} | ({TABLE_NAME, ERRORS_NAME, *(file.name for file in found.files)} if found else set())
    strange = sorted(name for name in (os.listdir(destination) if destination.exists() else []) if name not in known)
    if strange:
        what = (
            "holds a dataset of samples" if MANIFEST_NAME in strange else f"holds files that no conversion wrote ({strange[0]})"
        )
        raise OptionError(f"{destination}: {what}; choose an empty or new directory")
    outer = [parent for parent in destination.parents if (parent / MANIFEST_NAME).is_file() or (parent / TABLE_NAME).is_file()]
    if outer:
        raise OptionError(f"{destination}: lies within the dataset {outer[0]}; choose a place outside it")
    building = destination / BUILDING_NAME
    if building.is_dir() and any(building.iterdir()) and not (building / "table.lock").exists():
        raise OptionError(f"{destination}: a conversion of samples is unfinished there; finish it, or delete {building}")


def _digest(source: RowSource) -> str:
    """Return a hash that differs for sources whose files have other names, without directories, or sizes."""
    words = [(os.path.basename(file.name), file.nbytes) for file in source.files]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _converted(
    building: Path, options: TableConversion, source: RowSource, found: TableDocument | None, on_progress: OnProgress
) -> tuple[TableDocument, int]:
    """Write everything into the building directory, and record the last steps."""
    destination = building.parent
    if (building / placing.FINAL_NAME).exists():
        document = read_document(building if (building / TABLE_NAME).exists() else destination)
        return document, len(document.files)
    num_threads = options.num_workers or num_usable_cores()
    plan = _plan(building, options, source, num_threads, on_progress)
    total = 2 * plan.num_rows
    needed, free = plan.num_rows * plan.row_nbytes * 2, shutil.disk_usage(building).free
    if needed > free and not (building / "runs").exists():
        raise StorageError(f"{destination}: needs up to {needed / 1e9:.2f} GB and has {free / 1e9:.2f} GB free; free space")
    write = write_rows if options.to == "hdf5" else write_parquet
    files, num_resumed = write(
        building,
        plan,
        options,
        source,
        num_threads=num_threads,
        on_rows=lambda num: on_progress(Advance(Phase.WRITE, num, 0, total)),
    )
    document = TableDocument(
        version=1,
        options=options.as_typed(),
        files=files,
        columns=list(_columns_of(plan)),
        num_rows=plan.num_rows,
        num_bad=plan.num_bad,
        source_digest=_digest(source),
        permutation_key=plan.key if options.to == "parquet" else None,
    )
    atomic.write_json(building / TABLE_NAME, to_json(document))
    names = [*([ERRORS_NAME] if document.num_bad else []), *(file.name for file in files)]
    old = [] if found is None else [TABLE_NAME, ERRORS_NAME, *(file.name for file in found.files)]
    placing.record(destination, remove=old, moves=[(name, name) for name in names], last=[(TABLE_NAME, TABLE_NAME)])
    return document, num_resumed


def _plan(building: Path, options: TableConversion, source: RowSource, num_threads: int, on_progress: OnProgress) -> TablePlan:
    path = building / _PLAN_NAME
    building.mkdir(exist_ok=True)
    if not path.exists():
        try:
            plan = make_plan(
                path,
                options,
                source,
                num_threads=num_threads,
                on_rows=lambda num, bad: on_progress(Advance(Phase.SCAN, num, bad)),
            )
            if options.to == "hdf5":
                matrices_of(plan)  # refuses columns of which it keeps none
            return plan
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            with contextlib.suppress(OSError):  # it stays if it held something before
                building.parent.rmdir()
            raise
    plan = read_plan(path)
    if changed := "; ".join(changed_options(plan.options, options.as_typed())):
        raise OptionError(
            f"{building.parent}: a conversion with other options is unfinished there: {changed}; pass the same options to "
            f"resume, or delete {building} to start over"
        )
    if difference := first_change(plan, [(file.name, file.nbytes, file.mtime_ns) for file in source.files]):
        raise IntegrityError(
            f"{options.source}: changed since the conversion began: {difference}; restore it, or delete {building} to start over"
        )
    return plan


def _report(
    destination: Path, document: TableDocument, started: float, *, num_resumed: int = 0, was_finished: bool = False
) -> TableReport:
    return TableReport(
        destination=destination,
        num_rows=document.num_rows,
        num_bad=document.num_bad,
        columns=tuple((name, kind) for name, kind in document.columns),
        num_files=len(document.files),
        num_resumed=num_resumed,
        nbytes=sum(file.nbytes for file in document.files),
        elapsed_s=time.monotonic() - started,
        was_finished=was_finished,
    )
