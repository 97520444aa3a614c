"""What could be done about a cell, as a prediction and in the loader itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.diagnostics.cells import Cell
from benchmarks.diagnostics.runs import Run, run_virtual
from datapipe.diagnostics.figures import figures_of
from datapipe.diagnostics.remedies import NOTHING, Ranking, Remedy, rank_remedies
from datapipe.diagnostics.workload import Change, workload_of

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


def forecast(cell: Cell, run: Run) -> Forecast | None:
    """None where too little was measured."""
    figures = figures_of(run.steps, num_workers=cell.num_workers)
    workload = workload_of(run.steps, cell.setup, production_s=run.production_s, production_cpu_s=run.production_cpu_s)
    if workload is None:
        return None
    return Forecast(cell, rank_remedies(workload, remedies_for(cell), measured_step_s=figures.step_s))


def apply(remedy: Remedy, cell: Cell, *, seed: int) -> Run:
    """The cell with the remedy, and other jitter of the same kind."""
    change = remedy.change
    return run_virtual(cell, setup=change.setup, factor=change.production_factor, drops_syncs=change.drops_syncs, seed=seed)


__all__ = ["NOTHING", "Forecast", "apply", "forecast", "remedies_for"]
