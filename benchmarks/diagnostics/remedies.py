"""What could be done about a cell, as a prediction and in the loader itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.diagnostics.cells import Cell
from benchmarks.diagnostics.runs import Run, run_virtual
from datapipe.diagnostics.analysis import Analysis
from datapipe.diagnostics.candidates import workload_from
from datapipe.diagnostics.remedies import NOTHING, Ranking, Remedy, rank_remedies
from datapipe.diagnostics.workload import Change

_CONVERTED = 0.3  # of the time to make a batch, as if measured on a converted part of the data


@dataclass(frozen=True, slots=True)
class Forecast:
    """Made from a run, before anything is changed."""

    cell: Cell
    ranking: Ranking

    @property
    def best(self) -> str:
        return self.ranking.best.remedy.name


def remedies_for(cell: Cell) -> list[Remedy]:
    """The easier ones first."""
    setup, remedies = cell.setup, []
    if cell.num_workers:
        remedies.append(Remedy("prefetch x4", Change(replace(setup, depth=4 * setup.depth))))
    if cell.is_synced:
        remedies.append(Remedy("no sync", Change(drops_syncs=True)))
    workers = 2 * cell.num_workers or 2
    depth = max(2 * workers, workers * cell.prefetch)
    remedies.append(Remedy("workers", Change(replace(setup, num_workers=workers, depth=depth))))
    remedies.append(Remedy("converted", Change(production_factor=_CONVERTED)))
    return remedies


def forecast(cell: Cell, found: Analysis) -> Forecast | None:
    """As `datapipe diagnose` predicts; None where too little was measured."""
    workload = workload_from(found)
    if isinstance(workload, str):
        return None
    workload = replace(workload, setup=cell.setup)  # cores are the cell's, not those of this machine
    return Forecast(cell, rank_remedies(workload, remedies_for(cell), measured_step_s=found.of_loader.step_s))


def apply(remedy: Remedy, cell: Cell, *, seed: int) -> Run:
    """The cell with the remedy, and other jitter of the same kind."""
    change = remedy.change
    return run_virtual(cell, setup=change.setup, factor=change.production_factor, drops_syncs=change.drops_syncs, seed=seed)


__all__ = ["NOTHING", "Forecast", "apply", "forecast", "remedies_for"]
