"""Run a script, or a launcher of scripts, with every Python process in it attached.

The script runs in its own process, as `python SCRIPT ARGS` would run it, so Python itself determines what it sets up,
prints and returns. (Running it in this process would have to imitate that, from `sys.argv` to Ctrl-C, and would share the
command line's imports.)
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import msgspec

from datapipe.errors import MissingDataError
from datapipe.instruments.attach.ours import ROOT
from datapipe.instruments.attach.settings import RECORDING, RESULTS, ROOT_DIRECTORY, SETTINGS, WATCH, Settings

_BOOT = Path(__file__).resolve().parent / "boot"
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1  # prctl(2)
_SENT_BY_PROCESS = 0  # sigaction(2): SI_USER and below; a terminal's signals come from the kernel, with more
_LOOK_S = 0.2  # from one look to the next, whether the command has ended


def child_environment(
    environment: Mapping[str, str], results: Path, *, open_watch: str = RECORDING, settings: Settings | None = None
) -> dict[str, str]:
    """Return `environment` with what attaches Python processes that get it.

    That is a `sitecustomize` in a directory put first on PYTHONPATH: the one place where Python looks in every process,
    without anything installed. A `.pth` file would have to be written to the user's site-packages.
    """
    python_path = [str(_BOOT), *filter(None, [environment.get("PYTHONPATH")])]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(python_path),
        ROOT_DIRECTORY: str(ROOT),
        WATCH: open_watch,
        RESULTS: str(results.resolve()),
        SETTINGS: msgspec.json.encode(settings or Settings()).decode(),
    }


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a command. `exit_code`: as in a shell, 128 + n for a process ended by signal n."""

    exit_code: int
    signal: int | None = None  # the signal that ended it


def run_script(
    argv: Sequence[str], results: Path, *, settings: Settings | None = None, stdout: IO[str] | None = None
) -> CommandResult:
    """Run `SCRIPT ARGS` or `-m MODULE ARGS` with this Python; results of each process go to `results`."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return run_command([sys.executable, *flags, *argv], results, settings=settings, stdout=stdout)


def run_command(
    argv: Sequence[str], results: Path, *, settings: Settings | None = None, stdout: IO[str] | None = None
) -> CommandResult:
    """Run a command, such as torchrun, and wait for it. It shares terminal, working directory and process group.

    `stdout`: destination of its output; None: that of this process. Signals that would end this process are passed on, also if
    it is killed; Ctrl-C reaches the command anyway. Raises MissingDataError if it cannot be started.
    """
    results.mkdir(parents=True, exist_ok=True)
    environment = child_environment(os.environ, results, settings=settings)
    try:
        process = subprocess.Popen(argv, env=environment, stdout=stdout, preexec_fn=_end_with_parent())
    except OSError as exc:
        raise MissingDataError(f"{argv[0]}: cannot be run ({exc.strerror}); is it installed and on PATH?") from exc
    with _passing_signals_to(process), _passing_interrupts_to(process):
        code = process.wait()
    return CommandResult(code) if code >= 0 else CommandResult(128 - code, -code)


def _end_with_parent() -> Callable[[], object] | None:
    """Return what a child calls so that the death of this thread sends it SIGTERM; None where the kernel is not Linux."""
    if sys.platform != "linux":
        return None
    return functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _passing_signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    handlers = {}
    try:
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                handlers[number] = signal.signal(number, pass_on)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _passing_interrupts_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass on a SIGINT that a process sends to this one alone. Ctrl-C reaches the whole process group: the command decides."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with _passing_on_what_is_sent(process) if hasattr(signal, "sigtimedwait") else nullcontext():
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _passing_on_what_is_sent(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Tell a SIGINT of a process from one of the terminal, which only waiting for a blocked signal does."""
    has_ended = threading.Event()

    def pass_on() -> None:
        while not has_ended.is_set():
            seen = signal.sigtimedwait({signal.SIGINT}, _LOOK_S)
            if seen is not None and seen.si_code <= _SENT_BY_PROCESS:
                process.send_signal(signal.SIGINT)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    thread = threading.Thread(target=pass_on, name="datapipe-interrupts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
