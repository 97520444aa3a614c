"""What could be done about a cell, as a prediction and in the loader itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.diagnostics.cells import Cell
from benchmarks.diagnostics.runs import Run, run_virtual, try_scaling
from datapipe.analysis.judge.analysis import Analysis
from datapipe.analysis.predict.measured_workload import workload_from
from datapipe.analysis.predict.remedies import NOTHING, Ranking, Remedy, rank_remedies
from datapipe.analysis.predict.replay import Delivery
from datapipe.analysis.predict.workload import Change, Contention, contention_of

_CONVERTED = 0.3  # of the time to make a batch, as if measured on a converted part of the data


@dataclass(frozen=True, slots=True)
class Forecast:
    """Made from a run, before anything is changed."""

    cell: Cell
    ranking: Ranking

    @property
    def best(self) -> str:
        return self.ranking.best.remedy.name


def num_more(cell: Cell) -> int:
    """The larger number of workers that is tried."""
    return 2 * cell.num_workers or 2


def remedies_for(cell: Cell, contention: Contention | None = None) -> list[Remedy]:
    """The easier ones first."""
    setup, remedies = cell.setup, []
    if cell.num_workers:
        remedies.append(Remedy("prefetch x4", Change(replace(setup, depth=4 * setup.depth))))
    if cell.is_synced:
        remedies.append(Remedy("no sync", Change(drops_syncs=True)))
    if cell.num_workers > 1:
        remedies.append(Remedy("out of order", Change(replace(setup, delivery=Delivery.COMPLETION))))
    workers = num_more(cell)
    change = Change(replace(setup, num_workers=workers, depth=max(2 * workers, workers * cell.prefetch)))
    if contention is not None:
        added_s = contention.added_s(workers)
        spread = contention.spread if added_s else 0.0
        change = replace(
            change, stall_added_s=added_s, worst_stall_added_s=contention.worst_added_s(workers), production_spread=spread
        )
    remedies.append(Remedy("workers", change))
    remedies.append(Remedy("converted", Change(production_factor=_CONVERTED)))
    return remedies


def forecast(cell: Cell, found: Analysis) -> Forecast | None:
    """As `datapipe diagnose` predicts; None where too little was measured."""
    workload = workload_from(found)
    if isinstance(workload, str):
        return None
    workload = replace(workload, setup=cell.setup)  # cores are the cell's, not those of this machine
    tried = try_scaling(cell, sorted({max(1, cell.num_workers), num_more(cell)})) if cell.is_together else None
    contention = None if tried is None else contention_of(workload, tried)
    return Forecast(cell, rank_remedies(workload, remedies_for(cell, contention), measured_step_s=found.of_loader.step_s))


def apply(remedy: Remedy, cell: Cell, *, seed: int) -> Run:
    """The cell with the remedy, and other jitter of the same kind."""
    change = remedy.change
    return run_virtual(cell, setup=change.setup, factor=change.production_factor, drops_syncs=change.drops_syncs, seed=seed)


__all__ = ["NOTHING", "Forecast", "apply", "forecast", "remedies_for"]
