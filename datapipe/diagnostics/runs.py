"""Run the user's command with an attachment: once to diagnose it, and again with a remedy or with other batch sizes.

A diagnosis has five steps: record, try, judge, predict and tell. What is tried after the script has ended waits for the verdict.
"""

from __future__ import annotations

import dataclasses
import functools
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from datapipe.analysis.judge.analysis import Analysis, analyze
from datapipe.analysis.judge.ranks import join_ranks
from datapipe.core.printable import say
from datapipe.diagnostics.diagnosis import Command, Diagnosis, diagnose, with_applied
from datapipe.diagnostics.document import BatchSizeRow, Document
from datapipe.instruments.attach.launching import CommandResult, run_command, run_script
from datapipe.instruments.attach.settings import Applied, Settings
from datapipe.instruments.measure.recorded import Process, read_processes
from datapipe.instruments.trials.choosing import waits_for_storage
from datapipe.instruments.trials.results import Trials
from datapipe.instruments.trials.running import run_trials

_DATASET_S = 4.0  # at most, of the time for trials, for each trial of the script's own code
_SNAPSHOT_S = 10.0  # the first snapshot; the next after twice as long, and so on
_MOST_STEPS = 300  # limit of another run


def tell(text: str) -> None:
    """Say something to the user while the command runs or after it."""
    say(f"datapipe diagnose: {text}", file=sys.stderr)


@contextmanager
def _scratch_in(out: Path) -> Iterator[Path]:
    """Yield a directory for the recordings of a run."""
    with tempfile.TemporaryDirectory(prefix=".processes-", dir=out) as name:
        yield Path(name)


def _run_any(command: Sequence[str], results: Path, settings: Settings, *, quiet: bool) -> CommandResult:
    """Run a script, a module or another command; `quiet`: its output goes to standard error."""
    sys.stdout.flush()
    run, argv = (run_command, command[1:]) if command[0] == "--" else (run_script, command)
    return run(argv, results, settings=settings, stdout=sys.stderr if quiet else None)


def diagnose_command(
    command: Sequence[str],
    out: Path,
    *,
    trials_s: float,
    max_steps: int | None = None,
    profile: bool = False,
    flops: bool = False,
    nvtx: bool = False,
    quiet: bool = False,
) -> tuple[Diagnosis, CommandResult]:
    """Run a script or a command and diagnose it; `quiet`: its output goes to standard error."""
    settings = Settings(
        nvtx=nvtx,
        max_steps=max_steps,
        keeps_samples=trials_s > 0,
        tries_dataset_s=min(trials_s, _DATASET_S),
        snapshot_s=_SNAPSHOT_S,
        profile=str(out.resolve()) if profile else None,
        counts_operations=flops,
    )
    started_at, started_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    with _scratch_in(out) as scratch:
        outcome = _run_any(command, scratch, settings, quiet=quiet)
        facts = Command(tuple(command), outcome.exit_code, started_at, time.monotonic() - started_s)
        processes, notes = read_processes(scratch)
        if outcome.signal is not None:  # whoever ended it wants an end
            trials_s = 0
            name = signal.Signals(outcome.signal).name
            notes = [*notes, f"{name} ended the script; this describes the first half of its time, or more"]
        try_out = functools.partial(_trials_of, processes, scratch, trials_s)
        return diagnose(processes, facts, try_out=try_out, troubles=notes), outcome


def _trials_of(processes: Sequence[Process], scratch: Path, seconds: float, found: Analysis) -> Trials:
    """Try remedies for the judged loader. One rank records for all: loaders are numbered alike on each."""
    assert found.loader is not None
    key, dataset = found.loader.key, found.loader.dataset
    alike = (one for one in processes if key in one.loaders and one.loaders[key].dataset == dataset)
    source = next((one.sources[key] for one in alike if key in one.sources), None)
    evicts = waits_for_storage([profile.made for profile in found.profiles])
    return run_trials(source, scratch, seconds=seconds, evicts=evicts, tell=tell)


@dataclass(frozen=True, slots=True)
class Again:
    """Runs a command again from its start, with everything that it writes, for as many steps as were measured before."""

    command: Sequence[str]
    out: Path
    quiet: bool

    def with_best_remedy(self, document: Document, applied: Mapping[str, Applied]) -> Document:
        """Apply the best remedy that needs no edit, of `applied`. Returns the document, with the outcome added."""
        predictions = document.remedies.predictions if document.remedies is not None else ()
        chosen = next((one for one in predictions if one.name in applied), None)
        if chosen is None:
            why = document.why_no_remedies or "no remedy that needs no edit of the script is surely worth it"
            return msgspec.structs.replace(document, troubles=(*document.troubles, f"nothing was applied: {why}"))
        steps = f"for {_num_steps(document)} steps; predicted {chosen.step_s.value * 1e3:.1f} ms per step"
        tell(f"running the script again with {chosen.name}, {steps}")
        outcome, found = self._run(document, Settings(applied=applied[chosen.name]))
        return with_applied(document, chosen, found, exit_code=outcome.exit_code)

    def with_batch_sizes(self, document: Document, sizes: Sequence[int]) -> Document:
        """Try other sizes of the judged loader's batches. Returns the document, with a row for each added."""
        judged = next((one for one in document.loaders if one.is_judged), None)
        if judged is None:
            return msgspec.structs.replace(
                document, troubles=(*document.troubles, "no batch size was tried: no loader was judged")
            )
        site = None if judged.where is None else str(Path.cwd() / judged.where)
        rows = list[BatchSizeRow]()
        for size in sizes:
            tell(f"running the script again with batch_size={size}, for {_num_steps(document)} steps")
            settings = Settings(applied=Applied(site, batch_size=size), counts_operations=True)
            outcome, found = self._run(document, settings)
            rows.append(_row(size, found, outcome.exit_code))
        return msgspec.structs.replace(document, batch_sizes=tuple(rows))

    def _run(self, document: Document, settings: Settings) -> tuple[CommandResult, list[Analysis]]:
        settings = dataclasses.replace(settings, ends_after=_num_steps(document))
        with _scratch_in(self.out) as scratch:
            outcome = _run_any(self.command, scratch, settings, quiet=self.quiet)
            site = None if settings.applied is None else settings.applied.site
            return outcome, [analyze(process, site=site) for process in read_processes(scratch)[0]]


def _num_steps(document: Document) -> int:
    return min(_MOST_STEPS, max((rank.num_steps or 0 for rank in document.ranks), default=0))


def _row(size: int, found: Sequence[Analysis], exit_code: int) -> BatchSizeRow:
    if exit_code:
        return BatchSizeRow(batch_size=size, reason=f"the script ended with status {exit_code}")
    if not found:
        return BatchSizeRow(batch_size=size, reason="no loader was iterated")
    judged = found[join_ranks(found).place]
    figures = judged.of_loader
    if size not in {profile.made.num_samples for profile in judged.profiles}:
        return BatchSizeRow(batch_size=size, reason="the loader's batches are made by code of its own, whose size cannot be set")
    if not figures.is_settled:
        return BatchSizeRow(batch_size=size, reason="the steps did not settle; let the script run longer")
    model = next((one.process.model for one in found if one.process.model is not None), None)
    return BatchSizeRow(batch_size=size, step_s=figures.step_s, data_s=figures.data_s, model=model)
