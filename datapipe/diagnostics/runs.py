"""Run the user's command with an attachment: once, and again with a remedy or with other batch sizes."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from datapipe.analysis.judge.analysis import Analysis, analyze
from datapipe.analysis.judge.ranks import join_ranks
from datapipe.core.printable import say
from datapipe.diagnostics.diagnosis import with_applied
from datapipe.diagnostics.document import BatchSizeRow, Document
from datapipe.instruments.attach.launching import Applied, CommandResult, Settings, run_command, run_script
from datapipe.instruments.measure.recorded import read_processes

_MOST_STEPS = 300  # limit of another run


def tell(text: str) -> None:
    """Say something to the user while the command runs or after it."""
    say(f"datapipe diagnose: {text}", file=sys.stderr)


@contextmanager
def scratch_in(out: Path) -> Iterator[Path]:
    """Yield a directory for the recordings of a run."""
    with tempfile.TemporaryDirectory(prefix=".processes-", dir=out) as name:
        yield Path(name)


def run_any(command: Sequence[str], results: Path, settings: Settings, *, quiet: bool) -> CommandResult:
    """Run a script, a module or another command; `quiet`: its output goes to standard error."""
    sys.stdout.flush()
    stdout = sys.stderr if quiet else None
    if command[0] == "--":
        return run_command(command[1:], results, settings=settings, stdout=stdout)
    return run_script(command, results, settings=settings, stdout=stdout)


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
        with scratch_in(self.out) as scratch:
            outcome = run_any(self.command, scratch, settings, quiet=self.quiet)
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
