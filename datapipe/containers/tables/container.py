"""The contract of containers of tables, and which container a file has by its name.

A container is a module that `FORMS` names as `tables`: `scan` says what a file holds, and `open_groups` reads its row groups.
What lies above, from the index of a table to its loader and conversions, knows no container.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from datapipe.containers.forms import FORMS
from datapipe.index.tables import TableColumn, TableFile


@dataclass(frozen=True, slots=True)
class RowsFound:
    """The contents of a file of rows, by what it says of itself."""

    columns: dict[str, TableColumn]  # by name
    group_rows: Sequence[int]  # of each row group, in order; a group is what is read at once
    digest: str  # of what the file says of itself: files of another digest hold other rows
    etag: str | None = None  # of an object in a store
    nbytes: int | None = None  # of it; None: what the file system says


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read of a file. `dictionaries`: those that may come as dictionaries, if they are stored so."""

    columns: Sequence[str]  # names of the schema, fields of structs dotted
    dictionaries: Sequence[str] = field(default=())


class OpenGroups(Protocol):
    """The row groups of an open file. Used by one thread."""

    def read(self, number: int) -> Any:
        """Return a row group, as a pa.Table or record batch that has the wanted columns, or the structs that hold them.

        Raises pa.ArrowException, ValueError or OSError for values that do not decode; StorageError.
        """


class TableContainer(Protocol):
    """A module for files of rows."""

    def scan(self, path: str) -> RowsFound:
        """Return what a file holds. Nothing in it is trusted: it must be long enough for the rows that it claims.

        Raises FormatError, naming the file, for one that is damaged or of another format; OSError if it cannot be read.
        """

    def open_groups(self, file: TableFile, wanted: Wanted) -> OpenGroups:
        """Open a file that was scanned. Raises as `scan` does."""


def rows_container(name: str) -> str | None:
    """Return the form of a file of rows of that name, in any case; None for a file that is none."""
    lowered = os.path.basename(name).lower()
    for form, facts in FORMS.items():
        names = facts.row_files or facts.files
        if facts.tables and names is not None and names.fullmatch(lowered):
            return form
    return None


def table_container(form: str) -> TableContainer:
    """Return the module of a form of tables; imported now, as some need large libraries."""
    return cast(TableContainer, importlib.import_module(FORMS[form].tables))
