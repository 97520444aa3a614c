"""`datapipe diagnose`: run an unchanged training script, and report how long it waited for data, why, and what would help."""

from __future__ import annotations

import argparse
import json
import operator
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from datapipe.analysis.judge.verdict import Verdict, VerdictKind
from datapipe.core.atomic import atomic_writer, refuse_to_replace, write_json
from datapipe.core.regular_files import read_bytes
from datapipe.diagnostics.diagnosis import Command, diagnose
from datapipe.diagnostics.document import Document, as_json
from datapipe.diagnostics.report.compare import compare, differences
from datapipe.diagnostics.report.page import page
from datapipe.diagnostics.report.screen import screen, takes_colours
from datapipe.diagnostics.report.trace import trace as trace_of
from datapipe.diagnostics.runs import Again, diagnose_command, tell
from datapipe.errors import DatapipeError, FormatError, MissingDataError, OptionError, StorageError
from datapipe.instruments.attach.ours import NAME_TAKEN, is_name_taken
from datapipe.instruments.measure.recorded import SUFFIX, read_processes
from datapipe.instruments.torch_stages.ranges import open_recorder

_DIAGNOSIS, _PAGE, _TRACE = "diagnosis.json", "diagnosis.html", "trace.json"
_OF_SCRIPTS, _OF_SHELLS = ("", ".py", ".pyw"), (".sh", ".bash", ".zsh")
_OF_DATA = (
    ".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow", ".feather", ".tar", ".gz", ".h5", ".hdf5", ".npy", ".npz",
    ".tfrecord", ".jpg", ".jpeg", ".png", ".mp4", ".wav", ".flac", ".txt",
)  # fmt: skip
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_UNITS = {"starvation": {"%": 0.01}, "step": {"s": 1.0, "ms": 1e-3, "us": 1e-6}, "wait": {"s": 1.0, "ms": 1e-3, "us": 1e-6}}
_FORM = re.compile(r"\s*([a-z]+)\s*(>=|<=|>|<)\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-z]+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of `--fail-if` on the slowest rank's steady steps, that must not hold.

    `name`: "starvation" (waiting for data, as a share of the step), "step" (its mean length) or "wait" (for data, per step).
    """

    name: str
    sign: str
    limit: float  # a share, or seconds
    text: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse `NAME SIGN NUMBER UNIT`. Raises OptionError for anything else."""
        match = _FORM.fullmatch(text)
        if match is None or match[1] not in _UNITS or match[4] not in _UNITS[match[1]]:
            raise OptionError(
                f"--fail-if {text!r} is not NAME SIGN NUMBER UNIT with starvation (%), step or wait (s, ms, us) and one of "
                "> >= < <=; such as 'starvation>10%' or 'step>120ms'"
            )
        name, sign, number, unit = match.groups()
        return cls(name, sign, float(number) * _UNITS[name][unit], text.strip())

    def violation(self, verdict: Verdict) -> str | None:
        """Return why the diagnosis fails; None if it does not. A value that was not measured fails."""
        figures = verdict.figures
        share = None if figures.starvation is None else figures.starvation.value
        value = {"starvation": share, "step": figures.step_s, "wait": figures.data_s}[self.name]
        if value is None or verdict.kind in (VerdictKind.NOT_MEASURED, VerdictKind.NOT_ENOUGH):
            return f"--fail-if {self.text}: {self.name} was not measured ({verdict.kind.value}: {verdict.reason})"
        if not _OPERATORS[self.sign](value, self.limit):
            return None
        shown = f"{value:.1%}" if self.name == "starvation" else f"{value * 1e3:.2f} ms"
        return f"--fail-if {self.text}: {self.name} is {shown}"


def run(args: argparse.Namespace) -> int:
    """Diagnose, or compare. Raises OptionError for options that exclude each other."""
    conditions = [Condition.parse(text) for text in args.fail_if]
    if args.compare is not None:
        if args.command or args.module is not None:
            raise OptionError("--compare takes two diagnoses and runs nothing; leave the script out")
        return _compare(*args.compare, as_json=args.json)
    if (recorded := _recording(args)) is not None:
        return _report(args, _diagnosis_of(recorded), 0, conditions, _fresh_directory(args.out))
    command = _command(args)
    if command[0] not in ("--", "-m"):
        _tell_of_misplaced(command, args.parser._option_string_actions)
    if args.steps is not None and args.steps < 1:
        raise OptionError(f"--steps is {args.steps}; it must be at least 1")
    if not 0 <= args.trials < float("inf"):
        raise OptionError(f"--trials is {args.trials}; it is a number of seconds, or 0")
    if args.nvtx and command[0] != "--":  # another command may use another Python, whose processes check for themselves
        open_recorder()
    out = _fresh_directory(args.out)
    diagnosis, outcome = diagnose_command(
        command,
        out,
        trials_s=args.trials,
        max_steps=args.steps,
        profile=args.profile,
        flops=args.flops or bool(args.batch_sizes),
        nvtx=args.nvtx,
        quiet=args.json,
    )
    document = diagnosis.document
    again = Again(command, out, quiet=args.json)
    if args.batch_sizes:
        document = again.with_batch_sizes(document, args.batch_sizes)
    if args.apply:
        document = again.with_best_remedy(document, diagnosis.applied)
    return _report(args, document, outcome.exit_code, conditions, out)


def _recording(args: argparse.Namespace) -> Path | None:
    """Return the directory that a monitor has saved a run in, if it is what is given.

    Raises OptionError for options that need a script.
    """
    path = Path(args.command[0]) if args.command and args.module is None else None
    if path is None or not path.is_dir() or not any(path.glob(f"*{SUFFIX}")):
        return None
    if len(args.command) > 1:
        raise OptionError(f"{' '.join(args.command[1:])}: comes after {path}, a recording; put options of diagnose before it")
    for name in ("steps", "apply", "nvtx", "profile", "flops", "batch_sizes"):
        if getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            raise OptionError(f"{option}: {path} is a run that is over; give the script to run it again, or leave the option out")
    return path


def _diagnosis_of(recorded: Path) -> Document:
    """Return the diagnosis of a run that a monitor has saved. Nothing is tried."""
    processes, notes = read_processes(recorded)
    spans = [(one.ended_ns or 0) - (one.started_ns or 0) for one in processes]
    return diagnose(processes, Command((str(recorded),), None, None, max(spans) * 1e-9), troubles=notes).document


def _command(args: argparse.Namespace) -> list[str]:
    command = list(args.command) if args.module is None else ["-m", *args.module, *args.command]
    if command in ([], ["--"], ["-m"]):
        raise OptionError("nothing to run; pass a script and its arguments, -m and a module, or -- and a command")
    if command[0] not in ("--", "-m") and not Path(command[0]).exists():
        raise MissingDataError(f"{command[0]}: no such script; a command other than a Python script goes after --")
    if command[0] not in ("--", "-m"):
        _refuse_data(Path(command[0]))
    if command[0] != "--":
        first = Path.cwd() if command[0] == "-m" else Path(command[0]).resolve().parent
        further = os.environ.get("PYTHONPATH")
        if is_name_taken([str(first), *(further.split(os.pathsep) if further else [])]):
            raise OptionError(NAME_TAKEN)
    if command[0] == "--" and shutil.which(command[1]) is None:
        raise MissingDataError(f"{command[1]}: cannot be run; is it installed and on PATH?")
    return command


def _refuse_data(path: Path) -> None:
    """Raise OptionError for what is no script of Python's: a folder, a file of data, a script of a shell."""
    if path.suffix in _OF_SHELLS:
        raise OptionError(f"{path}: no Python script; what else is to run goes after --: datapipe diagnose -- bash {path}")
    if (path / _DIAGNOSIS).exists():
        raise OptionError(f"{path}: holds a diagnosis; its page is {path / _PAGE}, and --compare A B says how two differ")
    if path.is_dir():
        is_data = not (path / "__main__.py").exists()
    else:
        is_data = path.suffix in _OF_DATA or (zipfile.is_zipfile(path) and "__main__.py" not in zipfile.ZipFile(path).namelist())
    if is_data:
        raise OptionError(
            f"{path}: neither a Python script nor a recording; to measure a loader over it: `datapipe bench {path}`"
        )


def _tell_of_misplaced(command: Sequence[str], options: Collection[str]) -> None:
    """Say which of our options are passed to a script that does not know them."""
    script, *arguments = command
    if Path(script).suffix not in _OF_SCRIPTS:
        return
    with suppress(OSError, DatapipeError):
        words = {*re.findall(r"\w+", read_bytes(Path(script)).decode(errors="replace"))}  # `steps` may become --steps
        given = [option for one in arguments if (option := one.partition("=")[0]) in options]
        if misplaced := [option for option in given if option[2:].replace("-", "_") not in words]:
            tell(f"passed to {script}, which does not know it: {', '.join(misplaced)}; options of diagnose come before that")


def _fresh_directory(wanted: Path | None) -> Path:
    """Create the directory now, so that no script runs for hours in vain. Raises OptionError for one that holds a diagnosis."""
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


def write_reports(document: Document, out: Path, *, html: bool, trace: bool) -> Path | None:
    """Write `diagnosis.json` and the other requested files. Returns the path of the page, if written."""
    write_json(out / _DIAGNOSIS, as_json(document))
    if trace:
        write_json(out / _TRACE, trace_of(document))
    if not html:
        return None
    path = out / _PAGE
    with atomic_writer(path) as file:
        file.write(page(document).encode("utf-8", "backslashreplace"))
    return path


def _report(args: argparse.Namespace, document: Document, exit_code: int, conditions: Sequence[Condition], out: Path) -> int:
    page = write_reports(document, out, html=args.html, trace=args.trace)
    if args.json:
        print(json.dumps(as_json(document), indent=1))
    else:
        print(screen(document, page=None if page is None else str(page), colours=takes_colours(sys.stdout, os.environ)))
    violations = [reason for condition in conditions if (reason := condition.violation(document.verdict)) is not None]
    for reason in violations:
        tell(reason)
    return 1 if violations else exit_code


def _compare(before: Path, after: Path, *, as_json: bool) -> int:
    first, second = _read(before), _read(after)
    print(json.dumps(differences(first, second), indent=1) if as_json else compare(first, second))
    return 0


def _read(path: Path) -> dict[str, Any]:
    """Read a diagnosis, or the one in a directory."""
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
