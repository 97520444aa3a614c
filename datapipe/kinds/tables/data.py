"""`Table`: rows of Parquet and Arrow files, as the matrices that batches have; `TableLoader`: a loader of one, in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from datapipe.columns.layout import ColumnGroups, MatrixLayout, layout_of
from datapipe.columns.recipe import Columns
from datapipe.containers.tables.files import open_table
from datapipe.core.pinning import opened_at
from datapipe.core.printable import counted, listed
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.tables import TableIndex
from datapipe.kernel.cache_settings import Cache
from datapipe.kernel.reopening import ReopenedData
from datapipe.kinds.loader import DataLoader
from datapipe.kinds.tables.kind import WINDOW_NBYTES, TableKind, TableSettings
from datapipe.stores.location import is_url
from datapipe.stores.places import opened_at_version
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote, remote_settings

# Of a loader's arguments.
_OF_TABLES = ("columns", "label", "dtypes", "transform", "lists", "cache", "window_nbytes", "remote", "version")

TableSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Table(ReopenedData):
    """The rows of a table: what a loader reads, and the matrices that it makes of them.

    >>> data = datapipe.Table("train/*.parquet", columns={"dense": ["I*"], "ids": ["C*"]}, label="label")
    >>> for x, label in datapipe.DataLoader(data, batch_size=65536, shuffle=True):
    ...     train(x["dense"], x["ids"], label)     # (65536, columns) each, and (65536,)

    source: a Parquet, Arrow or Feather file, a directory of them, a glob pattern, a list of paths, or the row-major file that
      `datapipe convert --to hdf5` makes; of Parquet also URLs in an object store.
    columns: names and shell patterns, `["I*", "age"]`, for one matrix; a mapping of names to them, `{"dense": ["I*"], "ids":
      ["C*"]}`, for several; None: all columns but the label, in one. A matrix is (b, columns), contiguous, in one dtype: the
      smallest that holds all its columns exactly.
    label: a column, delivered as (b,); or a list of them, as (b, columns).
    dtypes: the dtype of the matrix, or of each by name, such as {"dense": torch.float32}.
    transform: a `dp.Columns`: operations on columns that are carried out first; it must be fitted.
    lists: "jagged": a group of columns of lists is a `dp.Jagged`, their elements one after the other. Otherwise lists are
      refused, unless the transform pads them.
    cache: "disk", or a directory: keep finished rows as the first epoch reads them. It is shuffled in windows, every later epoch
      in full, by mapping what was kept. Needs shuffle=True and on_error="raise".
    window_nbytes: how much memory a window takes, within which rows are shuffled.
    remote: a `datapipe.Remote(...)`: how files are read if the source is URLs in an object store. Its `cache_dir` keeps shards of
      images; `cache` keeps rows.
    version: of a Lance dataset, or of one on the Hub: a number, a tag or a branch; None: the latest. Saved states have it.

    A batch is `x`, or `(x, label)` with a label; x is the matrix of the only group, or a dict of them by name. With tail="mask" a
    bool tensor comes last that is False for rows that are repeats. Nulls are NaN in floating matrices and an error in others.

    `shuffle=True` of a loader shuffles within windows of whole row groups, another order every epoch; a row-major file in full.
    `on_error="replace"` takes rows that are shuffled with the bad ones. `backend="tables_arrow"` reads on CPU threads;
    "tables_cudf" decodes, packs and gathers on the GPU; "auto" measures both for a GPU, once per machine and table, and takes
    Arrow for the CPU and for what cuDF cannot serve.

    Raises OptionError for settings that do not fit the table, and what `open_table` raises.
    """

    def __init__(
        self,
        source: TableSource,
        *,
        columns: ColumnGroups = None,
        label: str | Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | Any = None,
        transform: Columns | None = None,
        lists: Literal["jagged"] | None = None,
        cache: Cache | str | os.PathLike[str] | None = None,
        window_nbytes: int = WINDOW_NBYTES,
        remote: Remote | None = None,
        version: int | str | None = None,
    ) -> None:
        if isinstance(cache, str) and cache not in ("ram", "gpu", "disk"):
            cache = Path(cache)  # a new directory needs no ./
        settings = TableSettings(
            columns, label, dtypes, transform, lists, Cache.of(cache), window_nbytes, remote_settings(remote)
        )
        with opened_at_version(source, version):
            self._set(source, settings, None)

    def _set(self, source: TableSource, settings: TableSettings, index: TableIndex | None) -> None:
        """`index`: that of the source, if it was opened already."""
        self._source, self.settings = source, settings
        requests = _requests_for(source, settings.remote)
        if requests is not None:
            apply_settings(requests)  # for the opening too
        with opened_at({}) as self._versions:
            self.index = open_table(source) if index is None else index
        self._requests = requests
        self.layout: MatrixLayout = layout_of(
            self.index,
            columns=settings.columns,
            label=settings.label,
            dtypes=settings.dtypes,
            chains_of=(lambda column: ()) if settings.transform is None else settings.transform.chains_of,
            lists=settings.lists,
        )

    @classmethod
    def _of(cls, source: TableSource, settings: TableSettings, index: TableIndex | None = None) -> Table:
        table = cls.__new__(cls)
        table._set(source, settings, index)
        return table

    def _making(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Table._of, (self._source, self.settings)

    @property
    def shown(self) -> str:
        """The rows and where they lie, in words."""
        container, paths = self.index.files[0].container, [file.path for file in self.index.files]
        columns = counted(len(self.index.columns), "column")
        return f"{counted(len(self), 'row')} of {columns} in {container} at {listed(paths, most=1)}"

    def __len__(self) -> int:
        """Return the rows, over all ranks."""
        return len(self.index)

    def open_kind(
        self, arguments: Mapping[str, Any], *, device: Callable[[], torch.device], open_loader: Callable[..., Iterable[Any]]
    ) -> TableKind:
        return TableKind(self.index, self.layout, self.settings, requests=self._requests, device=device, open_loader=open_loader)


class TableLoader(DataLoader):
    """Give batches of rows of a table as tensors: groups of columns side by side in row-major matrices, and a label.

    >>> loader = datapipe.TableLoader("train/*.parquet", batch_size=65536, shuffle=True, label="label")
    >>> for x, label in loader:                # (65536, columns) float32, and (65536,)
    ...     train(x, label)

    Shorthand for `DataLoader(Table(source, ...), batch_size, shuffle, ...)`: `columns`, `label`, `dtypes`, `transform`, `lists`,
    `cache`, `window_nbytes`, `remote` and `version` are those of `Table`, all other arguments those of `DataLoader`.
    """

    def __init__(self, source: TableSource, batch_size: int, shuffle: bool = False, **options: Any) -> None:
        table = {name: options.pop(name) for name in _OF_TABLES if name in options}
        super().__init__(Table(source, **table), batch_size, shuffle, **options)


def make_data(source: Any, index: TableIndex | None) -> Table | None:
    """Return the table of a source: a path, whose index was claimed, or a list of paths. None for other objects."""
    if index is not None:
        return Table._of(source, TableSettings(), index)
    if not isinstance(source, (list, tuple)) or not source or not all(isinstance(one, (str, os.PathLike)) for one in source):
        return None
    try:
        return Table(source)
    except (FormatError, MissingDataError) as exc:
        raise type(exc)(f"{exc}; a list of paths is one table: for images of several sets pass datapipe.mix([...])") from exc


def _requests_for(source: object, remote: Remote) -> Remote | None:
    """Return the settings of requests for a source, None for local files. Raises OptionError for a cache of shards."""
    sources = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    if not any(isinstance(one, str) and is_url(one) for one in sources):
        return None
    if remote.cache_dir is not None:
        raise OptionError(
            f"remote has cache_dir={str(remote.cache_dir)!r:.60}, which keeps shards of images, and this is a table; "
            "leave it out, and pass cache='disk' or cache=DIRECTORY to keep its rows"
        )
    return remote
