"""Turn a path to files of rows, such as Parquet, Arrow or row-major HDF5, into a `TableIndex`. Only footers are read."""

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

from datapipe.containers.formats import TEXT_SUFFIXES, table_entry_of
from datapipe.containers.mapped import byte_source
from datapipe.containers.parquet.footer import read_footer
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.containers.remote_shards import listed_shards
from datapipe.containers.tables.container import rows_container, table_container
from datapipe.containers.tables.partitions import partition_root, partitions_of
from datapipe.containers.tables.types import column_of, merged
from datapipe.core import arrow_maps
from datapipe.core.checks import path_name
from datapipe.core.directories import files_below, matching
from datapipe.core.printable import counted
from datapipe.core.remembering import remembered
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, MissingDataError, OptionError, StorageError
from datapipe.index.manifest import refuse_unfinished
from datapipe.index.sidecar import SIDECAR_SUFFIX
from datapipe.index.tables import TableColumn, TableFile, TableIndex
from datapipe.stores.location import is_url
from datapipe.stores.random_access import pin_object

_NUM_THREADS = 8  # for reading footers
_CALLED = {"parquet": "a Parquet", "arrow": "an Arrow", "hdf5": "an HDF5"}


@dataclass(frozen=True, slots=True)
class _Scanned:
    """The contents of a file's footer."""

    file: TableFile
    columns: dict[str, TableColumn]
    group_rows: Sequence[int]
    digest: str


@remembered()
def open_table(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, root: str | None = None) -> TableIndex:
    """Open the table at `source`: a Parquet or Arrow file, a directory of them, a glob pattern, or a list of such paths.

    Folders such as `label=0` below the source, or below `root`, are columns of the files in them that have no such column.

    A row-major file, as `datapipe convert --to hdf5` makes it, is a table of its own.

    The schema is that of the first file; columns whose types differ between files are widened if nothing is lost, which
    `TableIndex.widened` reports. Raises MissingDataError if there are no files, FormatError for files that are not such tables or
    do not agree, StorageError if one cannot be read.
    """
    paths = table_paths(source)
    if len(paths) > 1 and (others := [path for path in paths if rows_container(path) == "hdf5"]):
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
        entry = table_entry_of(here)
        if entry is not None:
            return [str(entry)]
        below = [Path(path) for path in files_below(here)]
        found = [str(path) for path in below if rows_container(path.name) and _is_shown(path, here)]
        if not found:
            texts = [str(path) for path in below if path.suffix.lower() in TEXT_SUFFIXES]
            raise _no_table(texts[0]) if texts else MissingDataError(f"{text}: no Parquet, Arrow or .h5 files in this directory")
        return found
    if here.exists():
        if rows_container(here.name) is None:
            raise _no_table(text)
        return [text]
    if glob.has_magic(text):
        matches = [match for match in matching(text) if not os.path.isdir(match)]
        if not matches:
            raise MissingDataError(f"{text}: no file matches")
        for match in matches:
            if rows_container(match) is None:
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
    container = rows_container(path) or ""
    try:
        status = None if is_url(path) else os.stat(path)  # first: a file that is changed meanwhile is then noticed
        found = table_container(container).scan(path)
        size, time = (found.nbytes or 0, 0) if status is None else (status.st_size, status.st_mtime_ns)
        file = TableFile(path, container, size, time, sum(found.group_rows), etag=found.etag)
        return _Scanned(file, found.columns, found.group_rows, found.digest)
    except (FormatError, MissingDataError, StorageError):
        raise
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file") from exc
    except OSError as exc:
        if exc.errno is not None:
            raise StorageError(exc.errno, exc.strerror, path) from exc
        raise _damaged(path, container, exc) from exc
    except arrow_maps.DAMAGE as exc:
        raise _damaged(path, container, exc) from exc


def _damaged(path: str, container: str, reason: Exception) -> FormatError:
    what = str(reason).strip().splitlines()[0] if str(reason).strip() else type(reason).__name__
    form = _CALLED.get(container, f"a {container}")
    return FormatError(f"{path}: not {form} file, or truncated or damaged ({what:.200}); get the file again")
