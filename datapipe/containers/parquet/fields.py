"""Turn columns of a Parquet file into fields: addressed by bytes if each value lies in one piece, by rows otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.columns import free_name
from datapipe.containers.field_names import HEAD_NBYTES, field_name, kind_of_bytes, kind_of_text
from datapipe.containers.mapped import ByteSource
from datapipe.containers.parquet import layout as form
from datapipe.containers.parquet.columns import CODECS, PYARROW_ERRORS, page_nbytes
from datapipe.containers.parquet.footer import Footer, SchemaLeaf
from datapipe.containers.parquet.pages import UnaddressableError, byte_arrays, plain_values
from datapipe.containers.parquet.rows import NoFieldError, first_value
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.core.errors import StorageError
from datapipe.index.sidecar import FieldColumn, SidecarRows

_KEYS = (form.KEY, "__key__")  # the samples' names, which the index has anyway


@dataclass(frozen=True, slots=True)
class ReadableColumn:
    """A column with readable values."""

    column: FieldColumn
    kind: FieldKind
    head: bytes | None  # of the first value; None if it is null


class ParquetFile:
    """A file to be indexed: its path, its footer and its bytes."""

    def __init__(self, path: str, footer: Footer, data: ByteSource) -> None:
        """Raises DamagedError."""
        self.path = path
        self.footer = footer
        self.data = data
        self.starts = np.array(footer.row_starts(), np.int64)

    @property
    def num_rows(self) -> int:
        return self.footer.num_rows

    def find(self, name: str) -> ReadableColumn:
        """Return the column of that name, or path. Raises NoFieldError, with the reason, and the errors of damaged files."""
        leaves = self.footer.leaves(name)
        if len({leaf.name for leaf in leaves}) != 1 or len({leaf.path for leaf in leaves}) < len(leaves):
            raise NoFieldError("several columns have this name")
        if len(leaves) == 1 and leaves[0].physical_type == "BYTE_ARRAY":
            try:
                return self._by_bytes(leaves[0])
            except UnaddressableError:
                pass
        return self._by_rows(name, leaves)

    def _by_bytes(self, leaf: SchemaLeaf) -> ReadableColumn:
        if leaf.is_repeated:
            raise UnaddressableError("a list")
        offset, nbytes = np.empty(self.num_rows, np.int64), np.empty(self.num_rows, np.int64)
        row = -1
        for row, place in enumerate(itertools.islice(self._places(leaf), self.num_rows)):
            offset[row], nbytes[row] = place
        if row + 1 != self.num_rows:
            raise DamagedError(f"column {leaf.path!r} has {row + 1} values for {self.num_rows} rows")
        head = self.data[offset[0] : offset[0] + min(nbytes[0], HEAD_NBYTES)]
        kind = kind_of_text(leaf.name) if leaf.is_text else kind_of_bytes(leaf.name, head)
        return ReadableColumn(FieldColumn(offset, nbytes), kind, head)

    def _places(self, leaf: SchemaLeaf) -> Iterator[tuple[int, int]]:
        for chunk, _ in self.footer.chunks(leaf):
            for values in plain_values(self.data, chunk):
                yield from byte_arrays(self.data, values)

    def _by_rows(self, name: str, leaves: list[SchemaLeaf]) -> ReadableColumn:
        strange = [leaf.physical_type for leaf in leaves if leaf.physical_type in ("INT96", "FIXED_LEN_BYTE_ARRAY")]
        if strange:
            raise NoFieldError(f"of type {strange[0]}, which cannot become a field")
        nbytes = np.zeros(len(self.starts) - 1, np.int64)
        for leaf in leaves:
            for number, (chunk, codec) in enumerate(self.footer.chunks(leaf)):
                if codec not in CODECS:
                    raise NoFieldError(f"compressed ({codec})")
                nbytes[number] += page_nbytes(chunk, self.data, leaf, file_nbytes=len(self.data))
        made, value = first_value(self.path, name, leaves)
        kind = made.kind
        if kind in (FieldKind.BYTES, FieldKind.TEXT):
            kind = kind_of_text(name) if kind is FieldKind.TEXT else kind_of_bytes(name, value or b"")
        sizes = np.diff(self.starts)
        each = np.repeat(nbytes // np.maximum(sizes, 1), sizes)
        head = None if value is None else value[:HEAD_NBYTES]
        return ReadableColumn(FieldColumn(np.arange(self.num_rows, dtype=np.int64), each, column=name), kind, head)


def add_further_columns(rows: SidecarRows, file: ParquetFile, taken: Collection[str]) -> list[FieldSpec]:
    """Add every column but those `taken` as a field; a column that cannot be one is recorded in `rows.unread`.

    Raises DamagedError and PYARROW_ERRORS if the file's own tables are inconsistent.
    """
    specs: list[FieldSpec] = []
    names = dict.fromkeys(column.name for column in file.footer.columns)
    for name in names:
        if name in taken or name in _KEYS:
            continue
        paths = [leaf.path for leaf in file.footer.columns if leaf.name == name]
        try:
            found = file.find(f"{name}.{form.BYTES}" if _is_image(name, paths) else name)
        except StorageError:
            raise
        except (NoFieldError, DamagedError, *PYARROW_ERRORS) as exc:
            rows.unread[name] = str(exc)
            continue
        spec = FieldSpec(free_name(field_name(name), rows.field_names), found.kind)
        rows.add_column(spec.name, found.column)
        specs.append(spec)
    return specs


def _is_image(name: str, paths: list[str]) -> bool:
    """Return True if a column is a struct of bytes and their file name, as `datasets` has it for images."""
    return f"{name}.{form.BYTES}" in paths and {*paths} <= {f"{name}.{form.BYTES}", f"{name}.{form.PATH}"}
