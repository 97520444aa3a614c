"""`TableLoader`: shuffled batches of rows from Parquet and Arrow files, as row-major tensors."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from datapipe.backends.row_gather import Dataset, RowGather
from datapipe.columns.layout import Columns, MatrixLayout, layout_of
from datapipe.columns.recipe import Columns as Recipe
from datapipe.containers.tables.files import open_table
from datapipe.containers.tables.rows import check_unchanged
from datapipe.core.checks import callable_or_none, real_number, whole_number
from datapipe.core.errors import OptionError, StateError
from datapipe.core.observe import Observer, null_observer
from datapipe.index.tables import TableGroup, TableIndex
from datapipe.loader.choice import resolve_device
from datapipe.loader.device_table_parts import DeviceTableParts
from datapipe.loader.host_table_parts import HostTableParts
from datapipe.loader.iteration import BatchIterator, Epochs, PassSetup
from datapipe.loader.kept_rows import KeptRows, cache_directory
from datapipe.loader.parsing import default_num_workers, parse_tail
from datapipe.loader.policy import BadSample, BadSampleLog
from datapipe.loader.ranks import resolve_rank
from datapipe.loader.row_batches import RowMaker
from datapipe.loader.scheduling import OnError
from datapipe.loader.seeding import Seed, seed_source
from datapipe.loader.sources import SpanSource
from datapipe.loader.state import LoaderState
from datapipe.loader.table_assembly import device_parts, host_parts
from datapipe.loader.table_batches import TableMaker
from datapipe.loader.table_choice import TABLE_BACKENDS, TableBackend, TableChoice, choose_table_backend, measured_rates
from datapipe.loader.table_options import WINDOW_NBYTES, TableOptions
from datapipe.loader.torch_compat import EpochSetter, OwnBatches, SequentialEpochSetter, check_still_alone
from datapipe.order.plan import Plan, Rank, Tail
from datapipe.order.row_order import PLACE_NBYTES, FirstWindowed, ShuffledRows, StoredRows, WindowedRows


class TableDataset:
    """The `dataset` of a loader: the rows of a table, counted, with their schema."""

    def __init__(self, index: TableIndex) -> None:
        self.index = index

    def __len__(self) -> int:
        """Return the rows, over all ranks."""
        return len(self.index)


class TableLoader:
    """Give batches of rows of a table as tensors: groups of columns side by side in row-major matrices, and a label.

    `source`: a Parquet, Arrow or Feather file, a directory of them, a glob pattern, a list of paths, or the row-major file that
    `datapipe convert --to hdf5` makes. What a batch is:

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
        columns: Columns = None,
        label: str | Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | Any = None,
        transform: Recipe | None = None,
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
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        if backend not in TABLE_BACKENDS:
            raise OptionError(f"backend is {backend!r:.60}; choose one of {', '.join(TABLE_BACKENDS)}")
        self.options = TableOptions(
            batch_size=whole_number(batch_size, "batch_size"),
            shuffle=bool(shuffle),
            tail=parse_tail(tail, drop_last=drop_last),
            num_workers=default_num_workers() if num_workers is None else whole_number(num_workers, "num_workers"),
            prefetch_factor=2 if prefetch_factor is None else whole_number(prefetch_factor, "prefetch_factor"),
            on_error=on_error,
            pin_memory=pin_memory,
            timeout_s=real_number(timeout, "timeout"),
            window_nbytes=whole_number(window_nbytes, "window_nbytes"),
            batch_transform=callable_or_none(batch_transform, "batch_transform"),
        )
        self._worker_init_fn = callable_or_none(worker_init_fn, "worker_init_fn")
        self._seed = Seed(seed_source(seed, generator))
        resolve_rank(rank, world_size)  # refuse half a pair here, not at the first batch
        self._resolve_device = resolve_device(device)
        self.dataset = TableDataset(open_table(source))
        if transform is not None and not isinstance(transform, Recipe):
            raise OptionError(f"transform is {transform!r:.60}; pass a dp.Columns, such as dp.Columns.load('recipe.json')")
        chains_of = (lambda column: ()) if transform is None else transform.chains_of
        index = self.dataset.index
        self.layout: MatrixLayout = layout_of(
            index, columns=columns, label=label, dtypes=dtypes, chains_of=chains_of, lists=lists
        )
        self._kept = self._open_kept(cache)
        self._bad_samples = BadSampleLog()
        self._epochs = Epochs()
        self._observer: Observer = null_observer
        self._rank: Rank | None = None
        self._backend = backend
        self._choice: TableChoice | None = None
        self._parts: HostTableParts | DeviceTableParts | None = None
        self._rows: RowGather | None = None
        self._latest: Plan | None = None
        self.origin = ""
        # Attributes that frameworks and scripts read from a torch DataLoader.
        self.batch_size = self.options.batch_size
        self.drop_last = self.options.tail is Tail.DROP
        self.num_workers = self.options.num_workers
        self.sampler = (EpochSetter if self.options.shuffle else SequentialEpochSetter)(self._epochs, len(self.dataset))
        self.batch_sampler = OwnBatches(self)
        self.generator = generator

    # -- torch's contract -----------------------------------------------------------------------

    def __iter__(self) -> BatchIterator:
        now = resolve_rank(self._arguments["rank"], self._arguments["world_size"])
        check_still_alone(self._frozen_rank(), now, SpanSource(self.plan()))
        return BatchIterator(PassSetup(self._begin, self.__len__, self._epochs, self._worker_init_fn))

    def __len__(self) -> int:
        """Return batches per epoch on this rank; the same on all."""
        return self.plan().num_steps

    def __reduce__(self) -> tuple[Callable[..., TableLoader], tuple[dict[str, Any]]]:
        return _from_arguments, (self._arguments,)

    # -- epochs, state, observation -------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one over this epoch. Without it epochs count up from 0."""
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch delivered: small, JSON-safe. After a pass: the beginning of the next epoch."""
        return {**self._state().to_json(), "layout": self.layout.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there with the next pass, on any number of ranks as long as batch_size x world_size is the same.

        Raises StateError for a state that this loader would not continue exactly.
        """
        cursor = self._state().cursor_from(state)
        if state.get("layout") != self.layout.fingerprint:
            raise StateError("the state was saved with other columns, label, dtypes or transform; pass the same ones as then")
        self.plan().check(cursor)
        self._seed.resume(state["seed"])
        self._latest = None
        self._epochs.resume(cursor)

    def observe(self, observer: Observer) -> None:
        """Report every stage of passes that begin from now on to `observer`."""
        if not callable(observer):
            raise OptionError(f"observe({observer!r:.60}): pass a function that takes a StageEvent")
        self._observer, self._parts = observer, None

    @property
    def seed(self) -> int | None:
        """The seed of the order; None until it is drawn, when the first pass begins."""
        return self._seed.value

    def describe_seed(self) -> str:
        """Return the seed and its origin, for people."""
        return self._seed.describe()

    @property
    def device(self) -> torch.device:
        """The device on which batches are delivered."""
        return self._resolve_device()

    @property
    def bad_samples(self) -> list[BadSample]:
        """The row groups that were skipped or replaced, the latest 1,000."""
        return list(self._bad_samples.latest)

    # -- the parts of a pass --------------------------------------------------------------------

    def plan(self, seed: int = 0) -> Plan:
        """Return the steps of a pass with that seed; their number depends on no seed."""
        rank, options = self._frozen_rank(), self.options
        return Plan(self._order(seed, rank), options.batch_size, rank, options.tail)

    def _order(self, seed: int, rank: Rank) -> StoredRows | ShuffledRows | WindowedRows | FirstWindowed:
        index, options = self.dataset.index, self.options
        if not options.shuffle:
            return StoredRows(index.starts)
        if index.is_row_major:
            return ShuffledRows(len(index), seed)
        windowed = WindowedRows.within(
            index.starts,
            seed=seed,
            global_batch=options.batch_size * rank.world_size,
            row_nbytes=self.layout.row_nbytes + PLACE_NBYTES,
            window_nbytes=options.window_nbytes,
        )
        return windowed if self._kept is None else FirstWindowed(windowed, ShuffledRows(len(index), seed))

    def _frozen_rank(self) -> Rank:
        if self._rank is None:
            self._rank = resolve_rank(self._arguments["rank"], self._arguments["world_size"])
        return self._rank

    def _begin(self) -> tuple[TableMaker | RowMaker, SpanSource]:
        """Return the maker and the source of spans of a pass that begins now."""
        rank = self._frozen_rank()
        seed = self._seed.settle(rank, self.dataset.index.fingerprint)
        order = self._order(seed, rank)
        plan = self._latest = Plan(order, self.options.batch_size, rank, self.options.tail)
        if problem := sharing_problem(plan, self.dataset.index):
            warnings.warn(problem, RuntimeWarning, stacklevel=5)  # at the `next()` that begins the pass
        parts, upcoming = self._shared_parts(), self._epochs.upcoming
        if self.dataset.index.is_row_major or (self._kept is not None and upcoming.epoch):
            assert isinstance(parts, HostTableParts)  # cuDF serves neither
            return RowMaker(parts, plan, self._mapped_rows(parts)), SpanSource(plan)
        if self._kept is not None:
            self._kept.open_for_writing()
        runs = order.first if isinstance(order, FirstWindowed) else order
        assert not isinstance(runs, ShuffledRows)
        return TableMaker(parts, plan, runs, seed, plan.step_at(upcoming)), SpanSource(plan)

    def _shared_parts(self) -> HostTableParts | DeviceTableParts:
        """Return what all passes share. Call it in the consumer's thread: for a GPU it creates a stream there."""
        if self._parts is None:
            index, layout, options, log = self.dataset.index, self.layout, self.options, self._bad_samples
            if self.choice().uses_cudf:
                self._parts = device_parts(
                    self.device, index=index, layout=layout, options=options, bad_samples=log, observer=self._observer
                )
            else:
                self._parts = host_parts(
                    self.device,
                    index=index,
                    layout=layout,
                    options=options,
                    bad_samples=log,
                    observer=self._observer,
                    kept=self._kept,
                )
        return self._parts

    def choice(self) -> TableChoice:
        """Return the backend that serves this loader, and why. The first call may measure."""
        if self._choice is None:
            self._choice = choose_table_backend(
                self._backend,
                self.device,
                index=self.dataset.index,
                layout=self.layout,
                has_cache=self._kept is not None,
                rates=self._rates,
            )
        return self._choice

    def _rates(self) -> dict[str, float]:
        """Measure the backends on this table, alone on this rank."""
        index, options = self.dataset.index, self.options
        about = {
            "layout": self.layout.fingerprint,
            "num_rows": 2 ** round(math.log2(len(index))),  # so that another part of the same data gives the same key
            "rows_per_group": 2 ** round(math.log2(max(1, len(index) // index.num_groups))),
            "batch_size": options.batch_size,
            "shuffle": options.shuffle,
            "window_nbytes": options.window_nbytes,
            "num_workers": options.num_workers,
        }
        changes = {"rank": 0, "world_size": 1, "seed": 0, "generator": None, "device": self.device, "on_error": "skip"}
        changes |= {"batch_size": min(options.batch_size, len(index)), "batch_transform": None, "worker_init_fn": None}

        def open_loader(backend: TableBackend) -> TableLoader:
            return TableLoader(**{**self._arguments, **changes, "backend": backend})

        return measured_rates(open_loader, device=self.device, circumstances=about)

    def _open_kept(self, cache: str | os.PathLike[str] | None) -> KeptRows | None:
        if cache is None:
            return None
        if not self.options.shuffle or self.options.on_error != "raise":
            raise OptionError("cache keeps rows to shuffle all of them in full; pass shuffle=True and on_error='raise' with it")
        if self.layout.lists:
            raise OptionError(
                "cache keeps rows of one size, which lists have not; leave it out, or pad them by dp.Columns.PadList"
            )
        if self.dataset.index.is_row_major:
            raise OptionError("cache: the table is row-major, and mapped already; leave it out")
        return KeptRows(cache_directory(cache), self.dataset.index, self.layout)

    def _mapped_rows(self, parts: HostTableParts) -> RowGather:
        """Return the rows of a row-major file, or those that were kept."""
        from datapipe.containers.hdf5.row_major import open_rows

        if self._rows is None and self._kept is not None:
            self._rows = self._kept.complete(parts.keep, num_threads=self.options.num_workers)
        if self._rows is None:
            (file,) = self.dataset.index.files
            check_unchanged(file)
            opened = open_rows(file.path)
            datasets = tuple(
                Dataset(tuple(column.name for column in matrix.columns), array)
                for matrix, array in zip(opened.matrices, opened.arrays, strict=True)
            )
            self._rows = RowGather(datasets, self.layout, TableGroup(file, 0, len(self.dataset)))
        return self._rows

    def _state(self) -> LoaderState:
        plan, last = self._latest or self.plan(), self._epochs.last
        return LoaderState(
            epoch=last.epoch,
            samples_done=last.samples_done,
            global_batch=plan.global_batch,
            num_samples=len(self.dataset),
            order=plan.order.kind,
            seed=self._seed.value,
            tail=self.options.tail.value,
            dataset=self.dataset.index.fingerprint,
        )


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


def _from_arguments(arguments: dict[str, Any]) -> TableLoader:
    return TableLoader(**arguments)
