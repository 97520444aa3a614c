"""Open the passes of a loader of tables: what all of them share, and the place at which the next one begins."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from datapipe.backends.tables_arrow import RowGather, StoredMatrix
from datapipe.columns.layout import MatrixLayout
from datapipe.containers.tables.rows import check_unchanged
from datapipe.core.errors import OptionError, StateError
from datapipe.core.observe import Observer, null_observer
from datapipe.index.tables import TableGroup, TableIndex
from datapipe.loader.iteration import Epochs
from datapipe.loader.policy import BadSampleLog
from datapipe.loader.ranks import resolve_rank
from datapipe.loader.seeding import Seed
from datapipe.loader.sources import SpanSource
from datapipe.loader.state import LoaderState
from datapipe.loader.tables.assembly import device_parts, host_parts
from datapipe.loader.tables.batches import TableMaker
from datapipe.loader.tables.choice import TableBackend, TableChoice, choose_table_backend
from datapipe.loader.tables.device_parts import DeviceTableParts
from datapipe.loader.tables.host_parts import HostTableParts
from datapipe.loader.tables.kept_rows import KeptRows, cache_directory
from datapipe.loader.tables.options import TableOptions
from datapipe.loader.tables.row_batches import RowMaker
from datapipe.order.plan import Plan, Rank
from datapipe.order.row_order import PLACE_NBYTES, FirstWindowed, ShuffledRows, StoredRows, WindowedRows


class TablePasses:
    """The passes over the table `index`, one after the other. What they share is made when the first one needs it.

    Iterators refer to this, not to the loader. All calls come from the consumer's thread. `ranks` are those given, or None.
    `rates`: measures the backends on this table.
    """

    def __init__(
        self,
        index: TableIndex,
        *,
        layout: MatrixLayout,
        options: TableOptions,
        seed: Seed,
        cache: str | os.PathLike[str] | None,
        device: Callable[[], torch.device],
        backend: TableBackend,
        rates: Callable[[], dict[str, float]],
        ranks: tuple[int | None, int | None],
    ) -> None:
        self.index = index
        self.seed = seed
        self.epochs = Epochs()
        self.bad_samples = BadSampleLog()
        self._layout = layout
        self._options = options
        self._device = device
        self.backend = backend
        self._rates = rates
        self._ranks = ranks
        self._kept = self._open_kept(cache)
        self._observer: Observer = null_observer
        self._rank: Rank | None = None
        self._choice: TableChoice | None = None
        self._parts: HostTableParts | DeviceTableParts | None = None
        self._rows: RowGather | None = None
        self._latest: Plan | None = None

    def observe(self, observer: Observer) -> None:
        """Report every stage of passes that begin from now on to `observer`."""
        self._observer, self._parts = observer, None

    @property
    def rank(self) -> Rank:
        """This process's part of an epoch, as it was when first asked for."""
        if self._rank is None:
            self._rank = self.present_rank()
        return self._rank

    def present_rank(self) -> Rank:
        """Return this process's part of an epoch as it would be resolved now."""
        return resolve_rank(*self._ranks)

    def num_steps(self) -> int:
        """Return the steps of a whole epoch on this rank."""
        return self.plan().num_steps

    def plan(self, seed: int = 0) -> Plan:
        """Return the steps of a pass with that seed; their number depends on no seed."""
        rank, options = self.rank, self._options
        return Plan(self._order(seed, rank), options.batch_size, rank, options.tail)

    def begin(self) -> tuple[TableMaker | RowMaker, SpanSource]:
        """Return the maker and the source of spans of a pass that begins now."""
        rank = self.rank
        seed = self.seed.settle(rank, self.index.fingerprint)
        order = self._order(seed, rank)
        plan = self._latest = Plan(order, self._options.batch_size, rank, self._options.tail)
        if problem := sharing_problem(plan, self.index):
            warnings.warn(problem, RuntimeWarning, stacklevel=5)  # at the `next()` that begins the pass
        parts, upcoming = self._shared_parts(), self.epochs.upcoming
        if self.index.is_row_major or (self._kept is not None and upcoming.epoch):
            assert isinstance(parts, HostTableParts)  # cuDF serves neither
            return RowMaker(parts, plan, self._mapped_rows(parts)), SpanSource(plan)
        if self._kept is not None:
            self._kept.open_for_writing()
        runs = order.first if isinstance(order, FirstWindowed) else order
        assert not isinstance(runs, ShuffledRows)
        return TableMaker(parts, plan, runs, seed, plan.step_at(upcoming)), SpanSource(plan)

    def state(self) -> LoaderState:
        """Return the place after the last batch delivered."""
        plan, last = self._latest or self.plan(), self.epochs.last
        return LoaderState(
            epoch=last.epoch,
            samples_done=last.samples_done,
            global_batch=plan.global_batch,
            num_samples=len(self.index),
            order=plan.order.kind,
            seed=self.seed.value,
            tail=self._options.tail.value,
            dataset=self.index.fingerprint,
        )

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved state with the next pass. Raises StateError for one that would not be continued exactly."""
        cursor = self.state().cursor_from(state)
        if state.get("layout") != self._layout.fingerprint:
            raise StateError("the state was saved with other columns, label, dtypes or transform; pass the same ones as then")
        self.plan().check(cursor)
        self.seed.resume(state["seed"])
        self._latest = None
        self.epochs.resume(cursor)

    def _order(self, seed: int, rank: Rank) -> StoredRows | ShuffledRows | WindowedRows | FirstWindowed:
        index, options = self.index, self._options
        if not options.shuffle:
            return StoredRows(index.starts)
        if index.is_row_major:
            return ShuffledRows(len(index), seed)
        windowed = WindowedRows.within(
            index.starts,
            seed=seed,
            global_batch=options.batch_size * rank.world_size,
            row_nbytes=self._layout.row_nbytes + PLACE_NBYTES,
            window_nbytes=options.window_nbytes,
        )
        return windowed if self._kept is None else FirstWindowed(windowed, ShuffledRows(len(index), seed))

    def _shared_parts(self) -> HostTableParts | DeviceTableParts:
        """Return what all passes share. Call it in the consumer's thread: for a GPU it creates a stream there."""
        if self._parts is None:
            index, layout, options, log = self.index, self._layout, self._options, self.bad_samples
            if self.choice().uses_cudf:
                self._parts = device_parts(
                    self._device(), index=index, layout=layout, options=options, bad_samples=log, observer=self._observer
                )
            else:
                self._parts = host_parts(
                    self._device(),
                    index=index,
                    layout=layout,
                    options=options,
                    bad_samples=log,
                    observer=self._observer,
                    kept=self._kept,
                )
        return self._parts

    def choice(self) -> TableChoice:
        """Return the backend that serves these passes, and why. The first call may measure."""
        if self._choice is None:
            self._choice = choose_table_backend(
                self.backend,
                self._device(),
                index=self.index,
                layout=self._layout,
                has_cache=self._kept is not None,
                rates=self._rates,
            )
        return self._choice

    def _open_kept(self, cache: str | os.PathLike[str] | None) -> KeptRows | None:
        if cache is None:
            return None
        if not self._options.shuffle or self._options.on_error != "raise":
            raise OptionError("cache keeps rows to shuffle all of them in full; pass shuffle=True and on_error='raise' with it")
        if self._layout.lists:
            raise OptionError(
                "cache keeps rows of one size, which lists have not; leave it out, or pad them by dp.Columns.PadList"
            )
        if self.index.is_row_major:
            raise OptionError("cache: the table is row-major, and mapped already; leave it out")
        return KeptRows(cache_directory(cache), self.index, self._layout)

    def _mapped_rows(self, parts: HostTableParts) -> RowGather:
        """Return the rows of a row-major file, or those that were kept."""
        from datapipe.containers.hdf5.row_major import open_rows

        if self._rows is None and self._kept is not None:
            self._rows = self._kept.complete(parts.keep, num_threads=self._options.num_workers)
        if self._rows is None:
            (file,) = self.index.files
            check_unchanged(file)
            opened = open_rows(file.path)
            datasets = tuple(
                StoredMatrix(tuple(column.name for column in matrix.columns), array)
                for matrix, array in zip(opened.matrices, opened.arrays, strict=True)
            )
            self._rows = RowGather(datasets, self._layout, TableGroup(file, 0, len(self.index)))
        return self._rows


def sharing_problem(plan: Plan, index: TableIndex) -> str | None:
    """Return why ranks read the same row groups, with a remedy; None if each reads its own."""
    order, ranks = plan.order, plan.rank.world_size
    order = order.first if isinstance(order, FirstWindowed) else order
    if not isinstance(order, WindowedRows) or ranks <= order.num_lanes:
        return None
    return (
        f"{index.num_groups} row groups make {order.num_lanes} lane(s) for {ranks} ranks, so that up to "
        f"{-(-ranks // order.num_lanes)} ranks read each row group; write the table with more and smaller row groups, at least "
        "four for each rank"
    )
