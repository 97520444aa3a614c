"""Work in a process of its own, so that a crash, a hang or a leak of one measurement is one measurement's.

`run_job(check, "rates", arguments)` runs `python -m benchmarks.gpu.job rates ARGUMENTS CHECK`: the function
`measure(arguments, check)` of that module, which yields one JSON-safe dict per result. Results count as they are
printed: a job that dies has given those before.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

import torch

from benchmarks.environment import ROOT
from benchmarks.gpu.report import Report
from benchmarks.gpu.settings import Check, Deadline

_MARK = "RESULT "
_LOG_TAIL = 2000  # characters
_START_S = 60  # a job may take so long to begin
_DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG
_JOBS = tuple(f"benchmarks.gpu.{name}" for name in ("rates", "train_job", "tables_job", "tokens_job", "clips_job"))
_IMPORTS = ("datapipe.kinds.loader", "nvidia.dali.fn", *_JOBS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job."""

    results: list[dict[str, Any]]
    problem: str | None  # how it ended, if not well, and its last words
    wall_s: float
    log: str  # all other output

    @property
    def last(self) -> dict[str, Any]:
        """The last result; empty where there is none."""
        return self.results[-1] if self.results else {}


def run_job(
    check: Check,
    module: str,
    arguments: Mapping[str, Any],
    *,
    limit_s: float,
    cores: tuple[int, ...] = (),
    environment: Mapping[str, str] | None = None,
    ends_normally: bool = False,
) -> Outcome:
    """Run it, for `limit_s` at most, on `cores` (empty: all). Never raises, however the job ends.

    A dry run forks jobs off this process, which saves the imports, unless they need an `environment` of their own.
    `ends_normally`: let the interpreter end as it does after a script, in place of at once after the last result.
    """
    start = _forked if check.is_dry and environment is None else _started
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = start(Job(module, dict(arguments), check, cores, dict(environment or {}), ends_normally), out)
        try:
            code = process.wait(max(limit_s, 1))
            problem = None if code == 0 else _ending(code)
        except subprocess.TimeoutExpired:
            problem = f"stopped after {limit_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # worker processes, too: they belong to its group
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(None)
        out.seek(0)
        lines = out.read().splitlines()
    results = [json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK)]
    log = "\n".join(line for line in lines if not line.startswith(_MARK))
    if problem is not None:
        problem = f"{problem}\n{log[-_LOG_TAIL:]}"
    return Outcome(results, problem, time.monotonic() - began, log)


def ask_job(
    check: Check,
    report: Report,
    deadline: Deadline,
    what: str,
    module: str,
    arguments: dict[str, Any],
    *,
    seconds: float = 8,
    **about: Any,
) -> dict[str, Any]:
    """Run one job of a result, if so many `seconds` are left, and report it; its result, or nothing."""
    if not check.is_dry and deadline.left_s < seconds + 10:
        report.skip(what, f"{seconds + 10:.0f} s needed, {max(0, deadline.left_s):.0f} s left")
        return {}
    outcome = run_job(check, module, arguments, limit_s=_START_S + 4 * seconds)
    if outcome.problem is not None or not outcome.results:
        report.fail(what, outcome.problem or "no result")
        return {}
    found = {"question": arguments["question"], **about, **outcome.last}
    report.add(what, found)
    return found


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is started for."""

    module: str
    arguments: dict[str, Any]
    check: Check
    cores: tuple[int, ...]
    environment: dict[str, str]
    ends_normally: bool = False

    def work(self) -> None:
        """Print the results, and end the process."""
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # a stage that is killed leaves nothing on the GPU
        if self.cores:
            os.sched_setaffinity(0, self.cores)
        results: Iterator[dict[str, Any]] = importlib.import_module(f"benchmarks.gpu.{self.module}").measure(
            self.arguments, self.check
        )
        for result in results:
            print(_MARK + json.dumps(result), flush=True)
        sys.stderr.flush()
        if not self.ends_normally:
            os._exit(0)  # endless loaders end here; several of them join worker threads for ever at exit


class _Running(Protocol):
    """A process, as `subprocess` has it."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float | None = None) -> int: ...


def _started(job: Job, out: IO[str]) -> _Running:
    """A fresh interpreter."""
    command = [sys.executable, "-m", "benchmarks.gpu.job", job.module, json.dumps(job.arguments), job.check.to_json()]
    command += [json.dumps(job.cores), json.dumps(job.ends_normally)]
    # Torch's pools would fight over the cores with the loaders' threads.
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONFAULTHANDLER": "1"}
    variables = {**os.environ, **quiet, **job.environment}
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=out, stderr=out, start_new_session=True)


class _Fork:
    """A child of this process, which has imported already what jobs import."""

    def __init__(self, job: Job, out: IO[str]) -> None:
        self._process = multiprocessing.get_context("fork").Process(target=_work_in_fork, args=(job, out.fileno()))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("job", timeout or 0)
        return self._process.exitcode


def _forked(job: Job, out: IO[str]) -> _Running:
    import_early()
    return _Fork(job, out)


def import_early() -> None:
    """Import, once, what jobs and stages of a dry run need, so that forks have it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)  # no threads before a fork: a child that computes would wait for them for ever
    for name in _IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("benchmarks.contenders.torchvision_transforms").import_torchvision()


def _work_in_fork(job: Job, out: int) -> None:
    os.setsid()
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # the parent process may have replaced them
    faulthandler.enable()
    warnings.simplefilter("ignore")
    try:
        job.work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _ending(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def main() -> None:
    module, arguments, check, cores, ends_normally = sys.argv[1:]
    Job(module, json.loads(arguments), Check.from_json(check), tuple(json.loads(cores)), {}, json.loads(ends_normally)).work()


if __name__ == "__main__":
    main()
