"""`python -m benchmarks.gpu STAGE`: one stage of the GPU check, all of them, the summary, or the plots."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.environment import ROOT
from benchmarks.gpu.settings import STAGES, Check, Deadline, default_data

_OVERTIME_S = 90  # that a stage gets to stop by itself


def main() -> None:
    arguments = _parse()
    if arguments.stage in ("summary", "plots"):
        _tell(arguments.stage, arguments.out)
        return
    if arguments.dry_run:
        with tempfile.TemporaryDirectory(prefix="gpu-dry-run-") as scratch:
            _go(arguments, arguments.out or Path(scratch) / "results", arguments.data or Path(scratch) / "data")
        return
    _go(arguments, arguments.out or ROOT / "benchmarks" / "results", arguments.data or default_data())


def _go(arguments: argparse.Namespace, out: Path, data: Path) -> None:
    check = Check(
        out=out,
        data=data,
        is_dry=arguments.dry_run,
        minutes=arguments.minutes,
        spare="" if arguments.spare is None else str(arguments.spare),
        photos=arguments.photos,
        commit=arguments.commit,
    )
    if not check.is_dry:
        from benchmarks.gpu.device import open_device

        open_device(check.device)
    if check.is_dry:
        run = _in_fork
    else:
        run = _in_own_process if arguments.stage == "all" else run_stage
    failed = [stage for stage in (STAGES if arguments.stage == "all" else [arguments.stage]) if not run(stage, check)]
    _tell("summary", check.out)
    if failed:
        raise SystemExit(f"not all came out as it should: {', '.join(failed)}")


def run_stage(stage: str, check: Check) -> bool:
    """Whether nothing failed in it."""
    from benchmarks.gpu.report import Report

    report = Report(stage, check)
    with report.attempt(stage):
        importlib.import_module(f"benchmarks.gpu.{stage}").run(check, report, Deadline.after(check.minutes_of(stage)))
    report.finish()
    return report.num_failures == 0


def _in_own_process(stage: str, check: Check) -> bool:
    """A stage that hangs or takes its process down leaves the others."""
    command = [sys.executable, "-m", "benchmarks.gpu", stage, "--out", str(check.out), "--data", str(check.data)]
    minutes = check.minutes_of(stage)
    command += ["--minutes", str(minutes), "--photos", check.photos, "--commit", check.commit, "--quiet"]
    command += ["--spare", check.spare] if check.spare else []
    try:
        return subprocess.run(command, cwd=ROOT, timeout=60 * minutes + _OVERTIME_S).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{stage}: stopped, it did not end by itself", flush=True)
        return False


def _in_fork(stage: str, check: Check) -> bool:
    """The same for a dry run, in which imports are most of the time: they are made once, and before any threads are."""
    from benchmarks.gpu.job import import_early

    import_early()
    process = multiprocessing.get_context("fork").Process(target=_end_with, args=(stage, check))
    process.start()
    process.join()
    return process.exitcode == 0


def _end_with(stage: str, check: Check) -> None:
    sys.exit(0 if run_stage(stage, check) else 1)


def _tell(what: str, out: Path | None) -> None:
    results = out or ROOT / "benchmarks" / "results"
    if what == "plots":
        from benchmarks.gpu.plots import plot_all

        plot_all(results)
    elif not _is_quiet():
        from benchmarks.gpu.summary import as_text

        print(f"\n{as_text(results)}", flush=True)


def _is_quiet() -> bool:
    return "--quiet" in sys.argv


def _minutes() -> str:
    return ", ".join(f"{stage} {minutes:g}" for stage, minutes in STAGES.items())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="The GPU check; see benchmarks/gpu/README.md.")
    parser.add_argument("stage", choices=[*STAGES, "all", "summary", "plots"])
    parser.add_argument("--out", type=Path, help="for results (default: benchmarks/results; a scratch folder in a dry run)")
    parser.add_argument("--data", type=Path, help="where photographs are made and kept (default: in memory, if there is room)")
    parser.add_argument("--photos", default="generated", help="image folder to take JPEGs from (default: generated photographs)")
    parser.add_argument("--minutes", type=float, help=f"per stage (default: {_minutes()})")
    parser.add_argument("--spare", type=Path, help="folder with another nvImageCodec, which is asked for regions by itself")
    parser.add_argument("--dry-run", action="store_true", help="the same lines on the CPU, over tiny images")
    parser.add_argument("--commit", default="", help="what to record as the commit where git cannot say")
    parser.add_argument("--quiet", action="store_true", help="no summary at the end")
    arguments = parser.parse_args()
    if arguments.minutes is not None and arguments.minutes <= 0:
        parser.error("--minutes must be above 0")
    return arguments


if __name__ == "__main__":
    main()
