"""`datapipe diagnose`: run an unchanged training script, and report how long it waited for data, why, and what would help."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.cli.say import say

if TYPE_CHECKING:
    from datapipe.diagnostics.attach.command import CommandResult
    from datapipe.diagnostics.attach.settings import Settings
    from datapipe.diagnostics.diagnosis import Diagnosis
    from datapipe.diagnostics.document import Document
    from datapipe.diagnostics.fail_if import Condition

_EPILOG = """\
examples:
  datapipe diagnose train.py --epochs 1
  datapipe diagnose --steps 500 -m package.train --config base
  datapipe diagnose -- torchrun --nproc-per-node 2 train.py
  datapipe diagnose --fail-if 'starvation>10%' train.py
  datapipe diagnose --compare before/diagnosis.json after/diagnosis.json
"""
_DIAGNOSIS, _PAGE, _TRACE = "diagnosis.json", "diagnosis.html", "trace.json"
_DATASET_S = 4.0  # at most, of the time for trials, for each trial of the script's own code
_SNAPSHOT_S = 10.0  # the first snapshot; the next after twice as long, and so on
_APPLIED_STEPS = 300  # limit of the run with the remedy


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "diagnose",
        help="run an unchanged training script: how long it waits for data, why, and what would help",
        description="Run a training script, unmodified, and measure how long the GPU stands idle for data, which stage is at "
        "fault, and what each remedy would bring. Exits with the script's own status. Options of diagnose come first.",
        usage="datapipe diagnose [options] SCRIPT ARGS... | -m MODULE ARGS... | -- COMMAND ARGS...",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the results go (default: a fresh diagnosis-DATE-TIME)")
    parser.add_argument("--steps", type=int, metavar="N", help="stop measuring after N training steps; the script continues")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON; what the script prints goes to stderr")
    parser.add_argument("--html", action=argparse.BooleanOptionalAction, default=True, help="write an HTML page (default)")
    parser.add_argument("--trace", action="store_true", help="write trace.json, for chrome://tracing or ui.perfetto.dev")
    parser.add_argument(
        "--nvtx",
        action="store_true",
        help="put NVTX ranges around each next() and each step, and around what workers do, for Nsight Systems: "
        "nsys profile datapipe diagnose --nvtx SCRIPT",
    )
    parser.add_argument("--profile", action="store_true", help="have torch.profiler record 10 steps, which are then not measured")
    parser.add_argument(
        "--trials",
        type=float,
        metavar="SECONDS",
        default=15.0,
        help="after the script has ended, if it waits for data, try datapipe's loader and converted data on up to 1,000 of the "
        "samples for about this long; 0: do not (default: 15)",
    )
    parser.add_argument(
        "--fail-if",
        metavar="CONDITION",
        action="append",
        default=[],
        help="exit with status 1 if this holds, such as 'starvation>10%%' or 'step>120ms'; may be repeated",
    )
    parser.add_argument(
        "--apply",
        action="store_true",
        help="apply the best remedy that needs no edit and run the script again, from its start and for at most "
        f"{_APPLIED_STEPS} steps, with everything that it writes",
    )
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="show what changed between two diagnoses")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, as python -m does")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT", help="a script and its arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Diagnose, or compare. Raises OptionError for options that exclude each other."""
    from datapipe.core.errors import OptionError
    from datapipe.diagnostics.fail_if import Condition
    from datapipe.diagnostics.torch_stages.ranges import open_recorder

    conditions = [Condition.parse(text) for text in args.fail_if]
    if args.compare is not None:
        if args.command or args.module is not None:
            raise OptionError("--compare takes two diagnoses and runs nothing; leave the script out")
        return _compare(*args.compare, as_json=args.json)
    command = _command(args)
    if args.steps is not None and args.steps < 1:
        raise OptionError(f"--steps is {args.steps}; it must be at least 1")
    if not 0 <= args.trials < float("inf"):
        raise OptionError(f"--trials is {args.trials}; it is a number of seconds, or 0")
    if args.nvtx and command[0] != "--":  # another command may use another Python, whose processes check for themselves
        open_recorder()
    out = _fresh_directory(args.out)
    diagnosis, outcome = diagnose_command(
        command, out, trials_s=args.trials, max_steps=args.steps, profile=args.profile, nvtx=args.nvtx, quiet=args.json
    )
    document = diagnosis.document
    if args.apply:
        document = _apply(args, command, out, diagnosis)
    return _report(args, document, outcome.exit_code, conditions, out)


def _command(args: argparse.Namespace) -> list[str]:
    from datapipe.core.errors import MissingDataError, OptionError

    command = list(args.command) if args.module is None else ["-m", *args.module, *args.command]
    if command in ([], ["--"], ["-m"]):
        raise OptionError("nothing to run; pass a script and its arguments, -m and a module, or -- and a command")
    if command[0] not in ("--", "-m") and not command[0].startswith("-") and not Path(command[0]).exists():
        raise MissingDataError(f"{command[0]}: no such script; a command other than a Python script goes after --")
    if command[0] == "--" and shutil.which(command[1]) is None:
        raise MissingDataError(f"{command[1]}: cannot be run; is it installed and on PATH?")
    return command


def _fresh_directory(wanted: Path | None) -> Path:
    """Create the directory now, so that no script runs for hours in vain. Raises OptionError for one that holds a diagnosis."""
    from datapipe.core.atomic import refuse_to_replace
    from datapipe.core.errors import OptionError, StorageError

    out = wanted
    if out is None:
        stamp = datetime.now().strftime("diagnosis-%Y%m%d-%H%M%S")
        names = (Path(stamp if number == 0 else f"{stamp}-{number}") for number in range(1000))
        out = next(path for path in names if not path.exists())
    for name in (_DIAGNOSIS, _PAGE, _TRACE):
        refuse_to_replace(out / name)
    if (out / _DIAGNOSIS).exists():
        raise OptionError(f"--out {out}: holds a diagnosis already; name another directory, or delete it")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StorageError(f"--out {out}: cannot be made ({exc.strerror}); name another directory") from exc
    return out


def diagnose_command(
    command: Sequence[str],
    out: Path,
    *,
    trials_s: float,
    max_steps: int | None = None,
    profile: bool = False,
    nvtx: bool = False,
    quiet: bool = False,
) -> tuple[Diagnosis, CommandResult]:
    """Run a script or a command and diagnose it; `quiet`: its output goes to standard error."""
    from datapipe.cli.diagnose_trying import Trying
    from datapipe.diagnostics.attach.settings import Settings
    from datapipe.diagnostics.diagnosis import Command, diagnose
    from datapipe.diagnostics.recorded import read_processes

    settings = Settings(
        nvtx=nvtx,
        max_steps=max_steps,
        keeps_samples=trials_s > 0,
        tries_dataset_s=min(trials_s, _DATASET_S),
        snapshot_s=_SNAPSHOT_S,
        profile=str(out.resolve()) if profile else None,
    )
    started_at, started_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    with _scratch(out) as scratch:
        outcome = _run(command, scratch, settings, quiet=quiet)
        facts = Command(tuple(command), outcome.exit_code, started_at, time.monotonic() - started_s)
        processes, notes = read_processes(scratch)
        if outcome.signal is not None:  # whoever ended it wants an end
            trials_s = 0
            name = signal.Signals(outcome.signal).name
            notes = [*notes, f"{name} ended the script; this describes the first half of its time, or more"]
        return diagnose(processes, facts, try_out=Trying(scratch, processes, trials_s, tell=_tell), troubles=notes), outcome


def write_reports(document: Document, out: Path, *, html: bool, trace: bool) -> Path | None:
    """Write `diagnosis.json` and the other requested files. Returns the path of the page, if written."""
    from datapipe.core.atomic import atomic_writer, write_json
    from datapipe.diagnostics.document import as_json

    write_json(out / _DIAGNOSIS, as_json(document))
    if trace:
        from datapipe.diagnostics.report.trace import trace as trace_of

        write_json(out / _TRACE, trace_of(document))
    if not html:
        return None
    from datapipe.diagnostics.report.page import page

    path = out / _PAGE
    with atomic_writer(path) as file:
        file.write(page(document).encode("utf-8", "backslashreplace"))
    return path


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=".processes-", dir=out) as name:
        yield Path(name)


def _run(command: Sequence[str], results: Path, settings: Settings, *, quiet: bool) -> CommandResult:
    """Run the command; `quiet`: its output goes to standard error."""
    from datapipe.diagnostics.attach.command import run_command, run_script

    sys.stdout.flush()
    stdout = sys.stderr if quiet else None
    if command[0] == "--":
        return run_command(command[1:], results, settings=settings, stdout=stdout)
    return run_script(command, results, settings=settings, stdout=stdout)


def _apply(args: argparse.Namespace, command: list[str], out: Path, diagnosis: Diagnosis) -> Document:
    """Run the script again with a remedy. Returns the document, with the outcome added."""
    import msgspec

    from datapipe.diagnostics.analysis import analyze
    from datapipe.diagnostics.applying import with_applied
    from datapipe.diagnostics.attach.settings import Settings
    from datapipe.diagnostics.recorded import read_processes

    document = diagnosis.document
    predictions = document.remedies.predictions if document.remedies is not None else ()
    chosen = next((one for one in predictions if one.name in diagnosis.applied), None)
    if chosen is None:
        why = document.why_no_remedies or "no remedy that needs no edit of the script is surely worth it"
        return msgspec.structs.replace(document, troubles=(*document.troubles, f"nothing was applied: {why}"))
    num_steps = min(_APPLIED_STEPS, max(rank.num_steps or 0 for rank in document.ranks))
    predicted_ms = chosen.step_s.value * 1e3
    _tell(f"running the script again with {chosen.name}, for {num_steps} steps; predicted {predicted_ms:.1f} ms per step")
    remedy = diagnosis.applied[chosen.name]
    settings = Settings(ends_after=num_steps, applied=remedy)
    with _scratch(out) as scratch:
        outcome = _run(command, scratch, settings, quiet=args.json)
        found = [analyze(process, site=remedy.site) for process in read_processes(scratch)[0]]
    return with_applied(document, chosen, found, exit_code=outcome.exit_code)


def _report(args: argparse.Namespace, document: Document, exit_code: int, conditions: Sequence[Condition], out: Path) -> int:
    from datapipe.diagnostics.document import as_json
    from datapipe.diagnostics.report.screen import screen, takes_colours

    page = write_reports(document, out, html=args.html, trace=args.trace)
    if args.json:
        print(json.dumps(as_json(document), indent=1))
    else:
        print(screen(document, page=None if page is None else str(page), colours=takes_colours(sys.stdout, os.environ)))
    violations = [reason for condition in conditions if (reason := condition.violation(document.verdict)) is not None]
    for reason in violations:
        _tell(reason)
    return 1 if violations else exit_code


def _compare(before: Path, after: Path, *, as_json: bool) -> int:
    from datapipe.diagnostics.report.compare import compare, differences

    first, second = _read(before), _read(after)
    print(json.dumps(differences(first, second), indent=1) if as_json else compare(first, second))
    return 0


def _read(path: Path) -> dict[str, Any]:
    """Read a diagnosis, or the one in a directory."""
    from datapipe.core.errors import FormatError, MissingDataError
    from datapipe.core.regular_files import read_bytes

    file = path / _DIAGNOSIS if path.is_dir() else path
    try:
        found: dict[str, Any] = json.loads(read_bytes(file))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{file}: no such diagnosis; `datapipe diagnose --out DIR` writes DIR/diagnosis.json") from exc
    except FormatError:
        raise
    except (OSError, ValueError, RecursionError) as exc:
        raise FormatError(f"{file}: not a diagnosis ({exc}); `datapipe diagnose --out DIR` writes DIR/diagnosis.json") from exc
    return found


def _tell(text: str) -> None:
    say(f"datapipe diagnose: {text}", file=sys.stderr)
