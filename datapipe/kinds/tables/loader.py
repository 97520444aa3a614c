"""`TableLoader`: shuffled batches of rows from Parquet and Arrow files, as row-major tensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from datapipe.columns.layout import ColumnGroups, MatrixLayout, layout_of
from datapipe.columns.recipe import Columns
from datapipe.containers.tables.files import open_table
from datapipe.core.checks import whole_number
from datapipe.core.errors import OptionError
from datapipe.core.printable import counted, listed, printable
from datapipe.index.tables import TableIndex
from datapipe.kernel.loader import Loader
from datapipe.kernel.options import LoaderOptions, OnError, parse_options
from datapipe.kernel.ranks import resolve_device
from datapipe.kernel.seeding import Seed, seed_source
from datapipe.kinds.tables.choice import TABLE_BACKENDS, TableBackend, TableChoice
from datapipe.kinds.tables.kind import WINDOW_NBYTES, TableKind
from datapipe.order.plan import Plan
from datapipe.stores.location import is_url
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote, remote_settings

_MIN_BLOCK = 4096  # rows gathered at once, if a batch has so many


class TableDataset:
    """The `dataset` of a loader: the rows of a table, counted, with their schema."""

    def __init__(self, index: TableIndex) -> None:
        self.index = index

    def __repr__(self) -> str:
        return printable(f"<datapipe.TableDataset: {self.shown}>")

    @property
    def shown(self) -> str:
        """The rows and where they lie, in words."""
        container, paths = self.index.files[0].container, [file.path for file in self.index.files]
        columns = counted(len(self.index.columns), "column")
        return f"{counted(len(self), 'row')} of {columns} in {container} at {listed(paths, most=1)}"

    def __len__(self) -> int:
        """Return the rows, over all ranks."""
        return len(self.index)


class TableLoader(Loader):
    """Give batches of rows of a table as tensors: groups of columns side by side in row-major matrices, and a label.

    >>> loader = datapipe.TableLoader("train/*.parquet", batch_size=65536, shuffle=True, label="label")
    >>> for x, label in loader:                # (65536, columns) float32, and (65536,)
    ...     train(x, label)

    `source`: a Parquet, Arrow or Feather file, a directory of them, a glob pattern, a list of paths, or the row-major file that
    `datapipe convert --to hdf5` makes; of Parquet also URLs in an object store. What a batch is:

    columns: names and shell patterns, `["I*", "age"]`, for one matrix; a mapping of names to them, `{"dense": ["I*"], "ids":
      ["C*"]}`, for several; None: all columns but the label, in one. A matrix is (b, columns), contiguous, in one dtype: the
      smallest that holds all its columns exactly.
    label: a column, delivered as (b,); or a list of them, as (b, columns).
    dtypes: the dtype of the matrix, or of each by name, such as {"dense": torch.float32}.

    transform: a `dp.Columns`: operations on columns that are carried out first; it must be fitted.

    lists: "jagged": a group of columns of lists is a `dp.Jagged`, their elements one after the other. Otherwise lists are
      refused, unless the transform pads them.

    A batch is `x`, or `(x, label)` with a label; x is the matrix of the only group, or a dict of them by name. With tail="mask" a
    bool tensor comes last that is False for rows that are repeats. Nulls are NaN in floating matrices and an error in others.

    batch_size: rows of a batch, per rank.
    shuffle: another order every epoch, within windows of whole row groups that take at most `window_nbytes` of memory; of a
      row-major file in full.
    num_workers: threads; by default the cores this process may use. 0: the caller's thread.
    tail: "pad" (the last batch is short, ranks get equally many rows, at most one of them a repeat), "drop" or "mask".
    cache: "disk", or a directory: keep finished rows as the first epoch reads them. It is shuffled in windows, every later epoch
      in full, by mapping what was kept. Needs shuffle=True and on_error="raise".
    on_error: "raise" if a row group does not decode, "skip" its rows (shorter batches, as many steps), or "replace" them by
      rows that are shuffled with them; see `bad_samples`.
    device: where batches are delivered; "auto" is this rank's GPU, or the CPU if torch finds none.
    backend: "tables_arrow" reads on CPU threads; "tables_cudf" decodes, packs and gathers on the GPU; "auto" measures both for a
      GPU, once per machine and table, and takes Arrow for the CPU and for what cuDF cannot serve (`choice()` says why).
    remote: a `datapipe.Remote(...)`: how files are read if the source is URLs in an object store. Its `cache_dir` keeps shards of
      images; `cache` keeps rows.
    seed, generator, rank, world_size, prefetch_factor, pin_memory, timeout, worker_init_fn, drop_last: as for `DataLoader`.

    Lengths, epochs, ranks, states and iterators are those of `DataLoader`. A batch belongs to whoever holds it. Raises
    OptionError for arguments that cannot be honoured, and what `open_table` raises.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        batch_size: int,
        shuffle: bool = False,
        *,
        columns: ColumnGroups = None,
        label: str | Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | Any = None,
        transform: Columns | None = None,
        lists: Literal["jagged"] | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        drop_last: bool = False,
        tail: str | None = None,
        device: str | torch.device = "auto",
        backend: TableBackend = "auto",
        seed: int | None = None,
        generator: torch.Generator | None = None,
        on_error: OnError = "raise",
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        window_nbytes: int = WINDOW_NBYTES,
        cache: str | os.PathLike[str] | None = None,
        batch_transform: Callable[..., Any] | None = None,
        remote: Remote | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if backend not in TABLE_BACKENDS:
            raise OptionError(f"backend is {backend!r:.60}; choose one of {', '.join(TABLE_BACKENDS)}")
        whole_number(window_nbytes, "window_nbytes", least=1)
        options = parse_table_options(arguments)  # before anything is opened
        seeding = Seed(seed_source(seed, generator))
        resolved = resolve_device(device)
        settings = _settings_of(source, remote)
        if settings is not None:
            apply_settings(settings)  # for the opening too
        self.dataset = TableDataset(open_table(source))
        if transform is not None and not isinstance(transform, Columns):
            raise OptionError(f"transform is {transform!r:.60}; pass a dp.Columns, such as dp.Columns.load('recipe.json')")
        self.layout: MatrixLayout = layout_of(
            self.dataset.index,
            columns=columns,
            label=label,
            dtypes=dtypes,
            chains_of=(lambda column: ()) if transform is None else transform.chains_of,
            lists=lists,
        )
        rows = self._rows = TableKind(
            self.dataset.index,
            self.layout,
            shown=self.dataset.shown,
            remote=settings,
            device=resolved,
            open_loader=TableLoader,
        )
        super().__init__(rows, arguments, options, remake=TableLoader, parse=parse_table_options, seed=seeding, device=resolved)

    def choice(self) -> TableChoice:
        """Return the backend that serves this loader, and why. The first call may measure."""
        return self._rows.choice()

    def plan(self) -> Plan:
        """Return the steps of an epoch; their number depends on no seed."""
        plan = self._passes.source()
        assert isinstance(plan, Plan)  # a loader of tables takes no sampler
        return plan


def parse_table_options(arguments: Mapping[str, Any]) -> LoaderOptions:
    """Return the options of `TableLoader`'s arguments. Raises OptionError for arguments that make no sense, alone or together."""
    return parse_options(arguments, min_block=_MIN_BLOCK, max_block=sys.maxsize)


def _settings_of(source: object, remote: Remote | None) -> Remote | None:
    """Return the settings of requests for a source, None for local files. Raises OptionError for a cache of shards."""
    settings = remote_settings(remote)
    sources = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    if not any(isinstance(one, str) and is_url(one) for one in sources):
        return None
    if settings.cache_dir is not None:
        raise OptionError(
            f"remote has cache_dir={str(settings.cache_dir)!r:.60}, which keeps shards of images, and this is a table; "
            "leave it out, and pass cache='disk' or cache=DIRECTORY to keep its rows"
        )
    return settings
