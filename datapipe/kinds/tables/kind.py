"""Rows of tables as a kind of data: their order, and who makes their batches."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from datapipe.columns.layout import ColumnGroups, MatrixLayout
from datapipe.columns.recipe import Columns
from datapipe.containers.tables.rows import check_unchanged
from datapipe.core.checks import whole_number
from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.index.tables import TableGroup, TableIndex
from datapipe.kernel.cache_settings import Cache
from datapipe.kernel.calibration import arguments_to_measure, power_of_two, rates_of
from datapipe.kernel.cuda_runtime import cuda_runtime
from datapipe.kernel.explanation import TRANSFER, device_line, threads_text
from datapipe.kernel.kind import Identity, Kind, Pass, PassFacts, Resources
from datapipe.kernel.options import LoaderOptions, Shuffle, refuse_not_served
from datapipe.kinds.tables.arrow import RowGather
from datapipe.kinds.tables.batches import MappedRowMaker, WindowMaker
from datapipe.kinds.tables.choice import MEASURED, PACKAGES, TABLE_BACKENDS, TableBackend, TableChoice, choose_table_backend
from datapipe.kinds.tables.device_parts import DeviceTableParts
from datapipe.kinds.tables.host_parts import HostTableParts
from datapipe.kinds.tables.kept_rows import KeptRows, cache_directory, mapped_rows
from datapipe.kinds.tables.parts import TableParts, TableSetup
from datapipe.kinds.tables.windows import ShuffledWindows
from datapipe.order.plan import Plan
from datapipe.order.row_order import PLACE_NBYTES, FirstWindowed, ShuffledRows, StoredRows, WindowedRows
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote

WINDOW_NBYTES = 1 << 30

# Arguments of a loader that tables do not serve, and what to do instead.
_NOT_SERVED = {
    "transform": "pass a dp.Columns to the table: dp.Table(source, transform=...)",
    "sampler": "leave it out: rows are read in whole row groups, and shuffle=True shuffles them",
    "batch_sampler": "leave it out: rows are read in whole row groups, and shuffle=True shuffles them",
    "collate_fn": "leave it out: rows are never single; batch_transform gets each batch",
    "output": "leave it out, and name groups of columns: dp.Table(source, columns={'x': [...]})",
    "workers": "leave it out: other machines decode images, clips, sound and conversations",
}

# How `explain` says what makes batches.
_ARROW = "backend   tables_arrow: row groups decoded by Arrow, packed row-major and gathered on "
_MAPPED = "backend   rows mapped and gathered on "
_CUDF = "backend   tables_cudf: row groups decoded by cuDF, packed row-major and gathered on the GPU, by "


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The settings of a `Table`, which documents each: what a batch is, and how rows are read and kept."""

    columns: ColumnGroups = None
    label: str | Sequence[str] | None = None
    dtypes: Any = None
    transform: Columns | None = None
    lists: Literal["jagged"] | None = None
    cache: Cache | None = None
    window_nbytes: int = WINDOW_NBYTES
    remote: Remote = field(default_factory=Remote)

    def __post_init__(self) -> None:
        if self.transform is not None and not isinstance(self.transform, Columns):
            raise OptionError(f"transform is {self.transform!r:.60}; pass a dp.Columns, such as dp.Columns.load('recipe.json')")
        whole_number(self.window_nbytes, "window_nbytes", least=1)


class TableKind(Kind):
    """The rows of the table `index` under a layout. What its passes share is made when the first one needs it. See `Kind`.

    `requests`: their settings, None for local files. `open_loader`: makes a loader from arguments, to measure backends.
    """

    block_sizes = (4096, sys.maxsize)

    def __init__(
        self,
        index: TableIndex,
        layout: MatrixLayout,
        settings: TableSettings,
        *,
        requests: Remote | None,
        device: Callable[[], torch.device],
        open_loader: Callable[..., Iterable[Any]],
    ) -> None:
        self.index, self.layout, self.settings = index, layout, settings
        self._requests = requests
        self.fingerprint, self.num_samples, self.num_in_epoch = index.fingerprint, len(index), len(index)
        self.identity = Identity("layout", layout.fingerprint, "columns, label, dtypes or transform")
        self.device = device  # says where batches are delivered
        self._open_loader = open_loader
        self._kept: KeptRows | None = None
        self._rows: RowGather | None = None

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions) -> None:
        """Use these arguments for passes that begin from now on. Raises OptionError for those that a table does not serve."""
        given = {**arguments, "output": None} if options.output == "tuple" else arguments
        refuse_not_served(given, _NOT_SERVED, "a table")
        backend = arguments["backend"]
        if not isinstance(backend, str) or backend not in TABLE_BACKENDS:
            raise OptionError(f"backend is {backend!r:.60}; choose one of {', '.join(TABLE_BACKENDS)}")
        if self._kept is None:
            self._kept = _open_kept(self.settings.cache, options, self.index, self.layout)
        self.backend: TableBackend = backend
        self._arguments, self._options = arguments, options
        self._choice: TableChoice | None = None
        self._parts: HostTableParts | DeviceTableParts | None = None

    def order(
        self, seed: int, *, shuffle: Shuffle, global_batch: int
    ) -> StoredRows | ShuffledRows | WindowedRows | FirstWindowed:
        index = self.index
        if not shuffle:
            return StoredRows(index.starts)
        if index.is_row_major:
            return ShuffledRows(len(index), seed)
        windowed = WindowedRows.within(
            index.starts,
            seed=seed,
            global_batch=global_batch,
            row_nbytes=self.layout.row_nbytes + PLACE_NBYTES,
            window_nbytes=self.settings.window_nbytes,
        )
        return windowed if self._kept is None else FirstWindowed(windowed, ShuffledRows(len(index), seed))

    def open_pass(self, settings: Pass) -> WindowMaker | MappedRowMaker:
        if self._requests is not None:
            apply_settings(self._requests)  # as another loader may have applied others
        plan = settings.source
        assert isinstance(plan, Plan)  # a loader of tables takes no sampler
        if problem := _sharing_problem(plan, self.index):
            warnings.warn(problem, RuntimeWarning, stacklevel=6)  # at the `next()` that begins the pass
        parts = self._shared_parts(settings)
        if self.index.is_row_major or (self._kept is not None and settings.start.epoch):
            assert isinstance(parts, HostTableParts)  # cuDF serves neither
            return MappedRowMaker(parts, plan, self._mapped_rows(parts), _resources(parts))
        if self._kept is not None:
            self._kept.open_for_writing()
        runs = _first_of(plan)
        assert not isinstance(runs, ShuffledRows)
        windows = ShuffledWindows(parts, runs, seed=settings.seed)
        return WindowMaker(parts, plan, runs, _resources(parts, shared=windows))

    def explain(self, facts: PassFacts) -> list[str]:
        index, layout, options, plan, choice = self.index, self.layout, facts.settings.options, facts.settings.source, self.choice
        assert isinstance(plan, Plan)
        device = self.device()
        is_copied = device.type != "cpu"
        about = index.describe()
        least, median, most = about["rows per group"]
        lines = [
            f"data      {counted(len(index), 'row')} in {counted(about['files'], 'file')},"
            f" {counted(about['row groups'], 'row group')} of "
            + (counted(most, "row") if least == most else f"{least:,} to {most:,} rows (median {median:,})"),
            *(f"          {line}" for line in index.widened),
            f"order     {_shown_order(plan, index, row_nbytes=layout.row_nbytes + PLACE_NBYTES)}",
            f"seed      {facts.seed}",
            *(f"matrix    {one.name}: {'(b,)' if one.is_vector else f'(b, {one.width})'} {one.dtype}" for one in layout.matrices),
            device_line(device),
            (_MAPPED if index.is_row_major else _CUDF if choice.uses_cudf else _ARROW) + threads_text(options),
        ]
        if is_copied:
            lines.insert(-1, f"choice    {choice.backend}: {choice.reason}")
        if is_copied and not choice.uses_cudf:
            lines.append(TRANSFER)
        ranks = plan.rank.world_size
        lines.append(f"steps     {plan.num_steps} of {plan.batch_size} rows on each of {ranks} ranks, tail={options.tail.value}")
        return lines

    @property
    def choice(self) -> TableChoice:
        """The backend that serves passes, and why. The first access may measure."""
        if self._choice is None:
            self._choice = choose_table_backend(
                self.backend,
                self.device(),
                index=self.index,
                layout=self.layout,
                has_cache=self._kept is not None,
                rates=self._rates,
            )
        return self._choice

    def _rates(self) -> list[float]:
        """Measure the backends on this table, alone on this rank."""
        index, options = self.index, self._options
        arguments = arguments_to_measure(self._arguments, device=self.device(), num_samples=len(index))
        return rates_of(
            MEASURED,
            lambda backend: self._open_loader(**{**arguments, "backend": backend}),
            device=self.device(),
            packages=PACKAGES,
            circumstances={
                "layout": self.layout.fingerprint,
                "num_rows": power_of_two(len(index)),
                "rows_per_group": power_of_two(len(index) // index.num_groups),
                "batch_size": options.batch_size,
                "shuffle": options.shuffle,
                "window_nbytes": self.settings.window_nbytes,
                "num_workers": options.num_workers,
            },
        )

    def _shared_parts(self, settings: Pass) -> HostTableParts | DeviceTableParts:
        """Return what passes of one observer share. Call it in the consumer's thread: for a GPU it creates a stream there."""
        if self._parts is None or self._parts.setup.observer is not settings.observer:
            setup = TableSetup(
                self.index, self.layout, settings.options, self.settings.window_nbytes, settings.bad_samples, settings.observer
            )
            if self.choice.uses_cudf:
                self._parts = DeviceTableParts.of(setup, cuda_runtime(self.device()))
            else:
                self._parts = HostTableParts.of(setup, self.device(), self._kept)
        return self._parts

    def _mapped_rows(self, parts: HostTableParts) -> RowGather:
        """Return the rows of a row-major file, or those that were kept."""
        if self._rows is None and self._kept is not None:
            self._rows = self._kept.complete(parts.keep, num_threads=self._options.num_workers)
        if self._rows is None:
            (file,) = self.index.files
            check_unchanged(file)
            self._rows = mapped_rows(file.path, self.layout, TableGroup(file, 0, len(self.index)))
        return self._rows


def _resources(parts: TableParts, *, shared: ShuffledWindows | None = None) -> Resources:
    return Resources(parts.setup.options, parts.workers, parts.runtime, shared=shared)


def _open_kept(cache: Cache | None, options: LoaderOptions, index: TableIndex, layout: MatrixLayout) -> KeptRows | None:
    if cache is None:
        return None
    if not options.shuffle or options.on_error != "raise":
        raise OptionError("cache keeps rows to shuffle all of them in full; pass shuffle=True and on_error='raise' with it")
    if layout.lists:
        raise OptionError("cache keeps rows of one size, which lists have not; leave it out, or pad them by dp.Columns.PadList")
    if index.is_row_major:
        raise OptionError("cache: the table is row-major, and mapped already; leave it out")
    return KeptRows(cache_directory(cache), index, layout)


def _shown_order(plan: Plan, index: TableIndex, *, row_nbytes: int) -> str:
    order: Any = plan.order
    later = ""
    if isinstance(order, FirstWindowed):
        order, later = order.first, "; later epochs in full, from what the first one keeps"
    if isinstance(order, ShuffledRows):
        return "shuffled in full: any row is as near as any other"
    if not isinstance(order, WindowedRows):
        return "in stored order"
    window = order.max_window * row_nbytes
    text = (
        f"shuffled in windows of {counted(order.groups_per_window, 'row group')} in each of "
        f"{counted(order.num_lanes, 'lane')}: {window / 1e6:.3g} MB a window, two in each lane"
    )
    return text + later + (f"; {problem}" if (problem := _sharing_problem(plan, index)) else "")


def _sharing_problem(plan: Plan, index: TableIndex) -> str | None:
    """Return why ranks read the same row groups, with a remedy; None if each reads its own."""
    order, ranks = _first_of(plan), plan.rank.world_size
    if not isinstance(order, WindowedRows) or ranks <= order.num_lanes:
        return None
    return (
        f"{index.num_groups} row groups make {order.num_lanes} lane(s) for {ranks} ranks, so that up to "
        f"{-(-ranks // order.num_lanes)} ranks read each row group; write the table with more and smaller row groups, at least "
        "four for each rank"
    )


def _first_of(plan: Plan) -> Any:
    """Return the order of a plan's first epoch."""
    return plan.order.first if isinstance(plan.order, FirstWindowed) else plan.order
