"""Read row groups of tables: some columns of one of them, as Arrow arrays.

A `GroupReader` keeps the latest files open and belongs to one thread. Arrow's own threads are not used: the loader's
threads read several row groups at once.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from datapipe.containers.tables.container import OpenGroups, Wanted, table_container
from datapipe.core import arrow_maps
from datapipe.errors import DecodeError, IntegrityError, MissingDataError, StorageError
from datapipe.index.tables import TableFile, TableGroup
from datapipe.stores.location import is_url

_MAX_OPEN = 8  # files of one reader


class GroupReader:
    """Reads some columns of row groups. Do not share it between threads.

    `columns`: names of the schema, fields of structs dotted. `dictionaries`: those of them to be read as dictionaries if
    they are stored so.
    """

    def __init__(self, columns: Sequence[str], *, dictionaries: Sequence[str] = ()) -> None:
        self._columns = list(columns)
        self._dictionaries = list(dictionaries)
        self._open: OrderedDict[str, OpenGroups] = OrderedDict()

    def read(self, group: TableGroup) -> dict[str, pa.Array]:
        """Return the columns of a row group, by name, each as one array of its rows.

        Raises IntegrityError if the file has changed since it was indexed or a page's checksum differs, DecodeError if its values
        do not decode, MissingDataError or StorageError if it cannot be read.
        """
        file = group.file
        try:
            table = self._opened(file).read(group.number)
        except FileNotFoundError as exc:
            raise MissingDataError(f"{file.path}: no such file any more") from exc
        except (IntegrityError, DecodeError, StorageError):
            raise
        except OSError as exc:
            self._open.pop(file.path, None)
            if exc.errno is not None:
                raise StorageError(exc.errno, exc.strerror, file.path) from exc
            raise _damaged(group, exc) from exc
        except arrow_maps.DAMAGE as exc:
            self._open.pop(file.path, None)
            raise _damaged(group, exc) from exc
        if table.num_rows != group.num_rows:
            raise IntegrityError(
                f"{group}: {table.num_rows} rows are in it, and its file claims {group.num_rows}: damaged; get the file again"
            )
        places = {name: number for number, name in enumerate(table.schema.names)}
        constants = dict(file.constants)
        return {
            name: pa.repeat(constants[name], group.num_rows) if name in constants else _one_array(_column(table, name, places))
            for name in self._columns
        }

    def _opened(self, file: TableFile) -> OpenGroups:
        opened = self._open.get(file.path)
        if opened is None:
            check_unchanged(file)
            opened = self._open[file.path] = self._open_now(file)
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(file.path)
        return opened

    def _open_now(self, file: TableFile) -> OpenGroups:
        constants = dict(file.constants)
        columns = [name for name in self._columns if name not in constants]
        wanted = Wanted(columns, [name for name in self._dictionaries if name not in constants])
        return table_container(file.container).open_groups(file, wanted)


def check_unchanged(file: TableFile) -> None:
    """Raise IntegrityError if the file is not the one that was indexed."""
    if is_url(file.path):  # its etag is asked for in each request
        return
    status = os.stat(file.path)
    if (status.st_size, status.st_mtime_ns) != (file.nbytes, file.mtime_ns):
        raise IntegrityError(f"{file.path}: was changed since the table was opened; make the loader again")


def _damaged(group: TableGroup, reason: Exception) -> DecodeError | IntegrityError:
    lines = str(reason).strip().splitlines() or [type(reason).__name__]
    if "crc checksum" in lines[0].lower():
        return IntegrityError(f"{group}: a page differs from its checksum; get the file again ({lines[0]:.120})")
    return DecodeError(f"{group}: does not decode ({lines[0]:.160}); get the file again, or pass on_error='skip' or 'replace'")


def _column(table: Any, name: str, places: dict[str, int]) -> Any:
    """Return a column of a table or batch; a field of a struct by its dotted name, null if the struct is.

    `places`: of the columns, by name, as looking one up takes pyarrow long.
    """
    if name in places:
        return table.column(places[name])
    for top, place in places.items():
        if name.startswith(f"{top}."):
            return _field(table.column(place), name[len(top) + 1 :])
    raise IntegrityError(f"column {name!r} is gone; open the table again")


def _field(values: Any, name: str) -> Any:
    arrays = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    parts = []
    for array in arrays:
        kind = array.type
        for number in range(kind.num_fields):
            label = kind.field(number).name
            if label == name or name.startswith(f"{label}."):
                inner = array.flatten()[number]
                parts.append(inner if label == name else _field(inner, name[len(label) + 1 :]))
                break
        else:
            raise IntegrityError(f"field {name!r} is gone; open the table again")
    return pa.chunked_array(parts) if isinstance(values, pa.ChunkedArray) else parts[0]


def _one_array(values: Any) -> pa.Array:
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    if pa.types.is_dictionary(values.type):
        values = values.unify_dictionaries()
    combined = values.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
