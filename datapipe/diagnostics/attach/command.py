"""Runs a script, or a launcher of scripts, so that every Python process in it is attached.

The script runs in a process of its own, as `python SCRIPT ARGS` would run it: what Python sets up, prints and
returns is Python's own doing. (Running it in this process would have to imitate that, from `sys.argv` to what
happens on Ctrl-C, beside all that the command line has imported.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from datapipe.diagnostics.attach.settings import Settings, child_environment
from datapipe.errors import MissingDataError, OptionError

RECORDING = "datapipe.diagnostics.attach.recording:open_recording"

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended. `exit_code`: as a shell would give it, 128 + n for a process that signal n ended."""

    exit_code: int
    signal: int | None = None  # that ended it


def run_script(
    argv: Sequence[str],
    results: Path,
    *,
    open_watch: str = RECORDING,
    settings: Settings | None = None,
    stdout: IO[str] | None = None,
) -> Outcome:
    """Run `SCRIPT ARGS` or `-m MODULE ARGS` with this Python; results of each process go to `results`.

    Raises OptionError where there is nothing to run, and MissingDataError where the script is not there.
    """
    if not argv:
        raise OptionError("nothing to run; pass a script and its arguments, -m and a module, or -- and a command")
    if argv[0] == "-m":
        if len(argv) < 2:
            raise OptionError("-m needs the name of a module")
    elif argv[0].startswith("-"):
        raise OptionError(f"{argv[0]!r} is neither a script nor -m; options of the script come after it")
    elif not Path(argv[0]).exists():
        raise MissingDataError(f"{argv[0]}: no such script; a command other than a Python script goes after --")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return run_command([sys.executable, *flags, *argv], results, open_watch=open_watch, settings=settings, stdout=stdout)


def run_command(
    argv: Sequence[str],
    results: Path,
    *,
    open_watch: str = RECORDING,
    settings: Settings | None = None,
    stdout: IO[str] | None = None,
) -> Outcome:
    """Run a command, such as torchrun, and wait for it. It shares terminal, working directory and process group.

    `stdout`: where what it prints goes; None: where ours goes.

    Signals that would end this process are passed on; Ctrl-C reaches the command without that. Raises
    MissingDataError where it cannot be started.
    """
    results.mkdir(parents=True, exist_ok=True)
    environment = child_environment(os.environ, results, open_watch=open_watch, settings=settings)
    try:
        process = subprocess.Popen(list(argv), env=environment, stdout=stdout)
    except OSError as exc:
        raise MissingDataError(f"{argv[0]}: cannot be run ({exc.strerror}); is it installed and on PATH?") from exc
    with _passing_signals_to(process):
        code = process.wait()
    return Outcome(code) if code >= 0 else Outcome(128 - code, -code)


@contextmanager
def _passing_signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    handlers = {}
    try:
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                handlers[number] = signal.signal(number, pass_on)
        # Ctrl-C goes to the whole process group: the command decides, and we wait for it.
        handlers[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
