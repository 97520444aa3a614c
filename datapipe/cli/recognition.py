"""Tell a table from samples: one answer for `inspect`, for `bench`, and for `datapipe` without a command."""

from __future__ import annotations

import os
from pathlib import Path

from datapipe.containers import open_index
from datapipe.containers.formats import TEXT_SUFFIXES, container_of
from datapipe.containers.tables.files import SUFFIXES, open_table
from datapipe.core.errors import DatapipeError, FormatError
from datapipe.index.manifest import MANIFEST_NAME
from datapipe.index.sample_index import SampleIndex
from datapipe.index.tables import TableIndex
from datapipe.stores.location import is_url

_BYTES = ("binary", "large_binary", "binary_view")


def samples_or_table(path: str) -> SampleIndex | TableIndex:
    """Return the index of the table at `path`, else of the samples there. Raises as `open_index` does if there is neither.

    A table is looked for first, as that writes nothing: shards of samples that others wrote get an index next to them.
    """
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
        table = table_at(path)
    except DatapipeError:
        if os.path.isfile(path) and (path.lower().endswith(TEXT_SUFFIXES) or _is_only_table(path)):
            raise
        return open_index(path)
    return open_index(path) if table is None else table


def table_at(path: str) -> TableIndex | None:
    """Return the table at a local path, None for files of encoded images. Writes nothing. Raises as `open_table` does."""
    table = open_table(path)
    return None if any(column.type in _BYTES for column in table.columns) else table


def _is_only_table(path: str) -> bool:
    """Return True for a file whose name tables have, and shards of samples have not."""
    return Path(path).suffix.lower() in SUFFIXES and container_of(Path(path).name) is None
