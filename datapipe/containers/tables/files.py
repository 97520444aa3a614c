"""Turn a path to Parquet or Arrow files, or to a row-major HDF5 file, into a `TableIndex`. Only footers are read."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from datapipe.containers.formats import TEXT_SUFFIXES
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.containers.parquet.footer import check_ends, read_footer
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.containers.remote_shards import listed_shards
from datapipe.containers.tables.claims import check_parquet_rows, check_sizes, measured_field
from datapipe.containers.tables.partitions import partition_root, partitions_of
from datapipe.containers.tables.rows import ArrowBatches, schema_of
from datapipe.containers.tables.types import column_of, columns_of, merged
from datapipe.core import arrow_maps
from datapipe.core.checks import path_name
from datapipe.core.directories import files_below, matching
from datapipe.core.printable import counted, listed
from datapipe.core.regular_files import opened_by_name
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, MissingDataError, OptionError, StorageError
from datapipe.index.manifest import refuse_unfinished
from datapipe.index.sidecar import SIDECAR_SUFFIX
from datapipe.index.tables import TableColumn, TableFile, TableIndex
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes, RemoteFile, pin_object

SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".h5": "hdf5"}
_NUM_THREADS = 8  # for reading footers
_TAIL_NBYTES = 1 << 16  # of an Arrow file, hashed at either end


@dataclass(frozen=True, slots=True)
class _Scanned:
    """The contents of a file's footer."""

    file: TableFile
    columns: dict[str, TableColumn]
    group_rows: list[int]
    digest: str


def open_table(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, root: str | None = None) -> TableIndex:
    """Open the table at `source`: a Parquet or Arrow file, a directory of them, a glob pattern, or a list of such paths.

    Folders such as `label=0` below the source, or below `root`, are columns of the files in them that have no such column.

    A row-major file, as `datapipe convert --to hdf5` makes it, is a table of its own.

    The schema is that of the first file; columns whose types differ between files are widened if nothing is lost, which
    `TableIndex.widened` reports. Raises MissingDataError if there are no files, FormatError for files that are not such tables or
    do not agree, StorageError if one cannot be read.
    """
    paths = table_paths(source)
    if len(paths) > 1 and (others := [path for path in paths if SUFFIXES[Path(path).suffix.lower()] == "hdf5"]):
        raise FormatError(
            f"{others[0]}: a row-major file is a table of its own; open it alone, without the {len(paths) - 1} others"
        )
    looked = f"the footers of {counted(len(paths), 'file')} are read"
    with (
        ThreadPoolExecutor(max_workers=min(_NUM_THREADS, len(paths))) as pool,
        reported_wait(f"the index of the table {paths[0]}", looked),
    ):
        scanned = list(pool.map(_scan, paths))
    named = partitions_of(paths, partition_root(source, paths) if root is None else root)
    scanned = [_with_constants(one, values) for one, values in zip(scanned, named, strict=True)]
    columns, widened = merged([(one.file.path, one.columns) for one in scanned])
    names = frozenset(column.name for column in columns)
    files = tuple(dataclasses.replace(one.file, missing=names.difference(one.columns)) for one in scanned)
    places = [
        (number, group, rows) for number, one in enumerate(scanned) for group, rows in enumerate(one.group_rows) if rows > 0
    ]
    table = np.array(places, np.int64).reshape(-1, 3)
    digest = hashlib.sha256()
    for one in scanned:
        digest.update(f"{Path(one.file.path).name}\0{one.file.nbytes}\0{one.digest}\n".encode(errors="surrogateescape"))
        if one.file.constants:
            digest.update(repr([(name, value.as_py()) for name, value in one.file.constants]).encode(errors="surrogateescape"))
    return TableIndex(
        files=files,
        columns=columns,
        starts=np.concatenate([[0], np.cumsum(table[:, 2])]).astype(np.int64),
        file_of_group=table[:, 0].copy(),
        number_of_group=table[:, 1].copy(),
        fingerprint=digest.hexdigest()[:24],
        widened=widened,
    )


def _with_constants(scanned: _Scanned, values: Mapping[str, Any]) -> _Scanned:
    """Return the contents with the columns that the file's folders name; those that are in the file itself stay."""
    added = {name: value for name, value in values.items() if name not in scanned.columns}
    if not added:
        return scanned
    file = dataclasses.replace(scanned.file, constants=tuple(added.items()))
    columns = {name: column_of(name, value.type) for name, value in added.items()}
    return dataclasses.replace(scanned, file=file, columns=scanned.columns | columns)


def table_paths(source: object) -> list[str]:
    """Return the files of the table at `source`. Raises as `open_table` does where there are none."""
    if isinstance(source, (str, os.PathLike)):
        return _of_path(path_name(source, "the path to the table"))
    if not isinstance(source, Sequence) or not source:
        raise OptionError(f"the table is {source!r:.60}; pass a path, a pattern such as 'train/*.parquet', or a list of paths")
    found = [path for one in source for path in _of_path(path_name(one, "a path of the table"))]
    if len(set(found)) < len(found):
        raise OptionError("the list of paths names a file twice, so its rows would come twice; remove one")
    return found


def _of_path(text: str) -> list[str]:
    if not text:
        raise OptionError("the path to the table is empty")
    if is_url(text):
        return _urls_of(text)
    here = Path(text)
    if here.is_dir():
        refuse_unfinished(here)
        below = [Path(path) for path in files_below(here)]
        found = [str(path) for path in below if path.suffix.lower() in SUFFIXES and _is_shown(path, here)]
        if not found:
            texts = [str(path) for path in below if path.suffix.lower() in TEXT_SUFFIXES]
            raise _no_table(texts[0]) if texts else MissingDataError(f"{text}: no Parquet, Arrow or .h5 files in this directory")
        return found
    if here.exists():
        if here.suffix.lower() not in SUFFIXES:
            raise _no_table(text)
        return [text]
    if glob.has_magic(text):
        matches = [match for match in matching(text) if not os.path.isdir(match)]
        if not matches:
            raise MissingDataError(f"{text}: no file matches")
        for match in matches:
            if Path(match).suffix.lower() not in SUFFIXES:
                raise _no_table(match)
        return matches
    raise MissingDataError(f"{text}: no such file or directory")


def _urls_of(text: str) -> list[str]:
    """Return the URLs of the Parquet files that a URL, a pattern, braces or a prefix names, and pin what is there now.

    Raises MissingDataError and StorageError, and FormatError for files of other formats.
    """
    listing = listed_shards(text)
    if listing.container != "parquet":
        raise FormatError(f"{text}: of the tables in stores Parquet is read, not {listing.container}; copy or convert the files")
    urls = []
    for one in listing.objects:
        urls.append(str(listing.location / one.name))
        pin_object(urls[-1], etag=one.etag, nbytes=one.nbytes)
    return urls


def null_counts(file: TableFile) -> dict[str, int]:
    """Return how many nulls the columns of a file have, by name, for those of which the footer of a Parquet file says so.

    Raises FormatError if the footer is damaged, MissingDataError or StorageError if it cannot be read.
    """
    constants = {name: 0 if value.is_valid else file.num_rows for name, value in file.constants}
    if file.container != "parquet":
        return constants
    with byte_source(file.path, "Parquet") as data:
        try:
            return read_footer(data).null_counts() | constants
        except DamagedError as exc:
            raise FormatError(f"{file.path}: damaged: {exc}; get the file again") from exc


def _is_shown(path: Path, root: Path) -> bool:
    """Return True for a data file: no sidecar, and no part of its name below the root is hidden or begins with `_`."""
    return (
        path.is_file()
        and not path.name.endswith(SIDECAR_SUFFIX)
        and not any(part.startswith((".", "_")) for part in path.relative_to(root).parts)
    )


def _no_table(path: str) -> FormatError:
    suffix = Path(path).suffix.lower()
    command = f"convert it first: datapipe convert {path} DST --to parquet"
    if suffix == ".npy":
        return FormatError(f"{path}: a matrix; {command}")
    if suffix in TEXT_SUFFIXES:
        texts = ", or --to tokens if it holds texts" if suffix in (".jsonl", ".ndjson") else ""
        named = "if a column names files of samples, say which (--field COLUMN=image)"
        return FormatError(f"{path}: text, whose rows have no places; {named}, else {command}{texts}")
    return FormatError(f"{path}: not a .parquet, .arrow, .feather or .h5 file, the formats of tables")


def _scan(path: str) -> _Scanned:
    container = SUFFIXES[Path(path).suffix.lower()]
    try:
        if is_url(path):
            return _scan_remote(path)
        return {"parquet": _scan_parquet, "arrow": _scan_arrow, "hdf5": _scan_hdf5}[container](path)
    except (FormatError, MissingDataError, StorageError):
        raise
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file") from exc
    except OSError as exc:
        if exc.errno is not None:
            raise StorageError(exc.errno, exc.strerror, path) from exc
        raise _damaged(path, container, exc) from exc
    except (DamagedError, *arrow_maps.DAMAGE) as exc:
        raise _damaged(path, container, exc) from exc


def _damaged(path: str, container: str, reason: Exception) -> FormatError:
    what = str(reason).strip().splitlines()[0] if str(reason).strip() else type(reason).__name__
    form = "a Parquet" if container == "parquet" else "an Arrow"
    return FormatError(f"{path}: not {form} file, or truncated or damaged ({what:.200}); get the file again")


def _scan_parquet(path: str) -> _Scanned:
    with byte_source(path, "Parquet") as data, opened_by_name(path) as name:
        status = os.stat(name)
        check_ends(data)
        with pq.ParquetFile(name, pre_buffer=False) as opened:
            return _described(TableFile(path, "parquet", status.st_size, status.st_mtime_ns, 0), opened, data)


def _scan_remote(url: str) -> _Scanned:
    data = RemoteBytes(url)
    check_ends(data)
    with pq.ParquetFile(RemoteFile(data), pre_buffer=False) as opened:
        return _described(TableFile(url, "parquet", len(data), 0, 0, etag=data.object.etag), opened, data)


def _described(file: TableFile, opened: pq.ParquetFile, data: ByteSource) -> _Scanned:
    """Return what the footer of a Parquet file says. Raises DamagedError if it cannot have that many rows."""
    columns, metadata = columns_of(opened.schema_arrow, file.path), opened.metadata
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    check_parquet_rows(rows, total=metadata.num_rows, data=data)
    file = dataclasses.replace(file, num_rows=sum(rows))
    return _Scanned(file, columns, rows, hashlib.sha256(_footer_of(data)).hexdigest())


def _footer_of(data: ByteSource) -> bytes:
    """Return the footer of a Parquet file; fewer bytes where it is none."""
    length = int.from_bytes(data[len(data) - 8 : len(data) - 4], "little")
    return data[max(0, len(data) - 8 - length) : max(0, len(data) - 8)]


def _scan_arrow(path: str) -> _Scanned:
    status = os.stat(path)
    data = arrow_maps.map_file(path)
    check_sizes(data)
    schema = schema_of(data)
    columns, measured = columns_of(schema, path), measured_field(schema)
    if measured is None:
        has = listed(schema.names) or "none"
        raise FormatError(f"{path}: no column whose values take bytes (has: {has}); write the table with one")
    batches = ArrowBatches(data, fields=[measured])  # one column tells how many rows a batch has
    digest = hashlib.sha256(data.slice(0, min(_TAIL_NBYTES, data.size)).to_pybytes())
    digest.update(data.slice(max(0, data.size - _TAIL_NBYTES)).to_pybytes())
    rows = []
    for number in range(len(batches)):
        batch = batches[number]
        batch.validate()  # has the buffers for its rows
        rows.append(batch.num_rows)
    file = TableFile(path, "arrow", status.st_size, status.st_mtime_ns, sum(rows))
    return _Scanned(file, columns, rows, digest.hexdigest())


def _scan_hdf5(path: str) -> _Scanned:
    from datapipe.containers.hdf5.row_major import GROUP_ROWS, open_rows

    status, rows = os.stat(path), open_rows(path)
    columns = {column.name: column for matrix in rows.matrices for column in matrix.columns}
    groups = [min(GROUP_ROWS, rows.num_rows - first) for first in range(0, rows.num_rows, GROUP_ROWS)]
    file = TableFile(path, "hdf5", status.st_size, status.st_mtime_ns, rows.num_rows)
    return _Scanned(file, columns, groups, rows.fingerprint)
