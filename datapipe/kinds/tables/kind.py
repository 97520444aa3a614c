"""Open the passes of a loader of tables: what all of them share, and the place at which the next one begins."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from datapipe.columns.layout import MatrixLayout
from datapipe.containers.tables.rows import check_unchanged
from datapipe.core.errors import OptionError, StateError
from datapipe.core.observe import Observer, null_observer
from datapipe.index.tables import TableGroup, TableIndex
from datapipe.kernel.accelerators import runtime_of
from datapipe.kernel.bad_samples import BadSampleLog
from datapipe.kernel.calibration import power_of_two, rates_of
from datapipe.kernel.cuda_runtime import cuda_runtime
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.state import LoaderProgress, LoaderState
from datapipe.kernel.tasks import Steps
from datapipe.kinds.tables.arrow import RowGather
from datapipe.kinds.tables.batches import FromMappedRows, FromWindows, TableMaker, TableSetup
from datapipe.kinds.tables.choice import MEASURED, PACKAGES, TableBackend, TableChoice, choose_table_backend
from datapipe.kinds.tables.device_parts import DeviceTableParts
from datapipe.kinds.tables.host_parts import HostTableParts
from datapipe.kinds.tables.kept_rows import KeptRows, cache_directory, mapped_rows
from datapipe.order.plan import Plan
from datapipe.order.row_order import PLACE_NBYTES, FirstWindowed, ShuffledRows, StoredRows, WindowedRows
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote

WINDOW_NBYTES = 1 << 30


class TablePasses:
    """The passes over the table `index`, one after the other. What they share is made when the first one needs it.

    Iterators refer to this, not to the loader. All calls come from the consumer's thread. `arguments`: those of the loader.
    `remote`: the settings of requests, None for local files. `open_loader`: makes a loader from such arguments, for measuring
    backends.
    """

    def __init__(
        self,
        index: TableIndex,
        *,
        layout: MatrixLayout,
        options: LoaderOptions,
        progress: LoaderProgress,
        arguments: Mapping[str, Any],
        remote: Remote | None,
        device: Callable[[], torch.device],
        open_loader: Callable[..., Iterable[Any]],
    ) -> None:
        self.setup = TableSetup(index, layout, options, arguments["window_nbytes"], BadSampleLog(), null_observer)
        self.progress = progress
        self.backend: TableBackend = arguments["backend"]
        self._arguments = arguments
        self._remote = remote
        self._device = device
        self._open_loader = open_loader
        self._kept = _open_kept(arguments["cache"], self.setup)
        self._choice: TableChoice | None = None
        self._parts: HostTableParts | DeviceTableParts | None = None
        self._rows: RowGather | None = None
        self._latest: Plan | None = None

    def observe(self, observer: Observer) -> None:
        """Report every stage of passes that begin from now on to `observer`."""
        self.setup, self._parts = dataclasses.replace(self.setup, observer=observer), None

    def plan(self, seed: int = 0) -> Plan:
        """Return the steps of a pass with that seed; their number depends on no seed."""
        rank, options = self.progress.rank, self.setup.options
        return Plan(self._order(seed, options.batch_size * rank.world_size), options.batch_size, rank, options.tail)

    def num_steps(self) -> int:
        """Return the steps of a whole epoch on this rank."""
        return self.plan().num_steps

    def begin(self) -> tuple[TableMaker, Steps]:
        """Return the maker and the steps of a pass that begins now."""
        if self._remote is not None:
            apply_settings(self._remote)  # as another loader may have applied others
        index = self.setup.index
        seed = self.progress.seed.settle(self.progress.rank, index.fingerprint)
        plan = self._latest = self.plan(seed)
        if problem := sharing_problem(plan, index):
            warnings.warn(problem, RuntimeWarning, stacklevel=5)  # at the `next()` that begins the pass
        parts, upcoming = self._shared_parts(), self.progress.epochs.upcoming
        if index.is_row_major or (self._kept is not None and upcoming.epoch):
            assert isinstance(parts, HostTableParts)  # cuDF serves neither
            return TableMaker(parts, FromMappedRows(plan, self._mapped_rows(parts))), plan.spans
        if self._kept is not None:
            self._kept.open_for_writing()
        runs = _first_of(plan)
        assert not isinstance(runs, ShuffledRows)
        windows = FromWindows(parts, plan, runs, seed=seed, first_step=plan.step_at(upcoming))
        return TableMaker(parts, windows), plan.spans

    def state(self) -> LoaderState:
        """Return the place after the last batch delivered."""
        plan = self._latest or self.plan()
        return self.progress.state(
            global_batch=plan.global_batch,
            order=plan.order.kind,
            num_samples=len(self.setup.index),
            tail=self.setup.options.tail,
        )

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved state with the next pass. Raises StateError for one that would not be continued exactly."""
        cursor = self.state().cursor_from(state)
        if state.get("layout") != self.setup.layout.fingerprint:
            raise StateError("the state was saved with other columns, label, dtypes or transform; pass the same ones as then")
        self.plan().check(cursor)
        self.progress.resume(cursor, state)
        self._latest = None

    def choice(self) -> TableChoice:
        """Return the backend that serves these passes, and why. The first call may measure."""
        if self._choice is None:
            self._choice = choose_table_backend(
                self.backend,
                self._device(),
                index=self.setup.index,
                layout=self.setup.layout,
                has_cache=self._kept is not None,
                rates=self._rates,
            )
        return self._choice

    def _rates(self) -> list[float]:
        """Measure the backends on this table, alone on this rank."""
        setup, index, options = self.setup, self.setup.index, self.setup.options
        changes = {"rank": 0, "world_size": 1, "seed": 0, "generator": None, "device": self._device(), "on_error": "skip"}
        changes |= {"batch_size": min(options.batch_size, len(index)), "batch_transform": None, "worker_init_fn": None}
        return rates_of(
            MEASURED,
            lambda backend: self._open_loader(**{**self._arguments, **changes, "backend": backend}),
            device=self._device(),
            packages=PACKAGES,
            circumstances={
                "layout": setup.layout.fingerprint,
                "num_rows": power_of_two(len(index)),
                "rows_per_group": power_of_two(len(index) // index.num_groups),
                "batch_size": options.batch_size,
                "shuffle": options.shuffle,
                "window_nbytes": setup.window_nbytes,
                "num_workers": options.num_workers,
            },
        )

    def _order(self, seed: int, global_batch: int) -> StoredRows | ShuffledRows | WindowedRows | FirstWindowed:
        index = self.setup.index
        if not self.setup.options.shuffle:
            return StoredRows(index.starts)
        if index.is_row_major:
            return ShuffledRows(len(index), seed)
        windowed = WindowedRows.within(
            index.starts,
            seed=seed,
            global_batch=global_batch,
            row_nbytes=self.setup.layout.row_nbytes + PLACE_NBYTES,
            window_nbytes=self.setup.window_nbytes,
        )
        return windowed if self._kept is None else FirstWindowed(windowed, ShuffledRows(len(index), seed))

    def _shared_parts(self) -> HostTableParts | DeviceTableParts:
        """Return what all passes share. Call it in the consumer's thread: for a GPU it creates a stream there."""
        if self._parts is None:
            device = self._device()
            if self.choice().uses_cudf:
                self._parts = DeviceTableParts.of(self.setup, cuda_runtime(device))
            else:
                runtime = None if device.type == "cpu" else runtime_of(device)
                self._parts = HostTableParts.of(self.setup, runtime, self._kept)
        return self._parts

    def _mapped_rows(self, parts: HostTableParts) -> RowGather:
        """Return the rows of a row-major file, or those that were kept."""
        if self._rows is None and self._kept is not None:
            self._rows = self._kept.complete(parts.keep, num_threads=self.setup.options.num_workers)
        if self._rows is None:
            index = self.setup.index
            (file,) = index.files
            check_unchanged(file)
            self._rows = mapped_rows(file.path, self.setup.layout, TableGroup(file, 0, len(index)))
        return self._rows


def sharing_problem(plan: Plan, index: TableIndex) -> str | None:
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


def _open_kept(cache: str | os.PathLike[str] | None, setup: TableSetup) -> KeptRows | None:
    if cache is None:
        return None
    if not setup.options.shuffle or setup.options.on_error != "raise":
        raise OptionError("cache keeps rows to shuffle all of them in full; pass shuffle=True and on_error='raise' with it")
    if setup.layout.lists:
        raise OptionError("cache keeps rows of one size, which lists have not; leave it out, or pad them by dp.Columns.PadList")
    if setup.index.is_row_major:
        raise OptionError("cache: the table is row-major, and mapped already; leave it out")
    return KeptRows(cache_directory(cache), setup.index, setup.layout)
