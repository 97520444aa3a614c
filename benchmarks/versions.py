"""Run the tests on several versions of Python, torch and the other dependencies, each in an environment of its own.

python -m benchmarks.versions                # all of them: hours on two cores
python -m benchmarks.versions 3.14 lowest    # those

`3.11` and the like have the newest of everything, as pip would choose it today. `lowest` has the oldest Python and the
lowest versions that pyproject.toml allows. The oldest and the newest Python run the whole suite, the others the quick one: the
tests of the day.
It needs uv (`make versions` installs it) and the network; variables such as UV_TORCH_BACKEND=cpu reach uv.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT, describe_environment

_RESULT = ROOT / "benchmarks" / "results" / "versions.json"
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_PYTHONS = [text.rpartition(" ")[2] for text in _PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
_DEPENDENCIES = [re.split(r"[\[<>=]", one)[0] for one in _PROJECT["dependencies"]]
_EXTRAS_AT_LOWEST = ("nvimgcodec", "remote", "lmdb")  # those that users install and the quick suite runs; not its own tools
_OUTCOMES = ("passed", "failed", "skipped")
_UV = [sys.executable, "-m", "uv"]

Run = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions")
    names = [*_PYTHONS, "lowest"]
    parser.add_argument("names", nargs="*", choices=names, metavar="NAME", help=f"some of {', '.join(names)}")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-versions", help="where they are made")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run tests")
    parser.add_argument("--quick", action="store_true", help="the quick suite everywhere")
    parser.add_argument("--skip-missing", action="store_true", help="a Python that cannot be found is no failure")
    arguments = parser.parse_args()
    runs: dict[str, Run] = {}
    told, good = [], True
    try:
        for name in arguments.names or names:
            version = _PYTHONS[0] if name == "lowest" else name
            python = find_python(version)
            if python is None:
                told.append(f"{name:<7} not run: no python{version} found")
                good &= arguments.skip_missing
                continue
            try:
                made = make_environment(arguments.environments.resolve() / name, python, lowest=name == "lowest")
                whole = name in (_PYTHONS[0], _PYTHONS[-1]) and not arguments.quick
                runs[name] = run_suite(made, whole=whole, jobs=arguments.jobs)
            except subprocess.CalledProcessError as exc:
                told.append(f"{name:<7} not run: {' '.join(map(str, exc.cmd))} failed:\n{exc.stderr.strip()}")
                good = False
                continue
            told.append(_line(name, runs[name]))
            good &= runs[name]["exit_status"] == 0
    finally:  # also of a run that is interrupted; not earlier, for the tests compare documents with the results
        if runs:
            _save(runs, names)
    print("\n".join(["", *told]))
    return 0 if good else 1


def _save(runs: dict[str, Run], names: list[str]) -> None:
    """Write the result file; runs of other environments stay as they are there."""
    runs = (json.loads(_RESULT.read_text())["runs"] if _RESULT.exists() else {}) | runs
    _RESULT.write_text(json.dumps({"runs": {name: runs[name] for name in names if name in runs}}, indent=1) + "\n")


def find_python(version: str) -> str | None:
    """python3.N of PATH, pyenv's, or uv's, which uv downloads if need be; None where there is none."""
    command = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (shutil.which(command), *pyenv.glob(f"{version}.*/bin/{command}")):
        # One of pyenv's shims is found for every version, and works for some.
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return str(found)
    if subprocess.run([*_UV, "python", "install", "--no-bin", version], cwd=ROOT, capture_output=True).returncode != 0:
        return None
    return _output([*_UV, "python", "find", "--managed-python", version])


def make_environment(path: Path, python: str, *, lowest: bool) -> Path:
    """Return the interpreter of a new environment with this checkout and its test tools.

    Raises subprocess.CalledProcessError if something cannot be installed.
    """
    print(f"{path}: installing with {python} ...", flush=True)
    _output([*_UV, "venv", "--clear", "--python", python, path])
    made = path / "bin" / "python"
    bounds = path / "bounds.txt"
    bounds.write_text(_lowest(made) if lowest else "")
    install = [*_UV, "pip", "install", "--python", made]
    _output([*install, "--constraint", bounds, "--editable", ".[dev]", "torchvision"])
    cuda = "cu12" if lowest else "cu13"  # of torch's build
    _output([*install, "--no-deps", f"pylibcudf-{cuda}", f"rmm-{cuda}"])  # see `.installed-dev` in the Makefile
    return made


def _lowest(python: Path) -> str:
    extras = [word for extra in _EXTRAS_AT_LOWEST for word in ("--extra", extra)]
    fixed = ["--no-deps", "--no-header", "--no-annotate", "--python", python]
    return _output([*_UV, "pip", "compile", "--resolution", "lowest-direct", *extras, *fixed, "pyproject.toml"])


def run_suite(python: Path, *, whole: bool, jobs: int) -> Run:
    """Run the tests; all of their output goes to a file in the environment.

    Raises subprocess.CalledProcessError if they do not come to their end.
    """
    environment = describe_environment()
    log = python.parents[1] / "test.log"
    print(f"{log}: {'whole' if whole else 'quick'} suite ...", flush=True)
    marks = [] if whole else ["-m", "not nightly"]
    command: list[Any] = [python, "-m", "pytest", "-n", str(jobs), "--dist", "worksteal", *marks]
    started = time.monotonic()
    with log.open("w") as out:
        status = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT).returncode
    if status not in (0, 1):  # no test failed, or some did
        raise subprocess.CalledProcessError(status, command, stderr=log.read_text()[-2000:])
    versions = json.loads(_output([*_UV, "pip", "list", "--python", python, "--format", "json"]))
    return {
        "suite": "whole" if whole else "quick",
        **counted(log.read_text()),
        "exit_status": status,
        "seconds": round(time.monotonic() - started),
        "versions": {each["name"]: each["version"] for each in versions if each["name"] in _DEPENDENCIES},
        "environment": environment | {"python": _output([python, "-c", "import platform; print(platform.python_version())"])},
    }


def counted(log: str) -> dict[str, int]:
    """Return what the last line of pytest's output counts. An error in a fixture counts as a failure."""
    closing = log.rstrip().rpartition("\n")[2]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", closing)}
    return {
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0),
        "skipped": counts.get("skipped", 0),
    }


def as_markdown(found: dict[str, Any]) -> str:
    """The table of docs/stability.md, if there is a result."""
    if "versions" not in found:
        return ""
    runs: dict[str, Run] = found["versions"]["runs"]
    head = ["Python", "torch", "other packages", "suite", *_OUTCOMES, "date"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, run in runs.items():
        packages = "lowest allowed" if name == "lowest" else "newest"
        cells = [run["environment"]["python"], run["versions"]["torch"], packages, run["suite"], *(run[key] for key in _OUTCOMES)]
        lines.append("| " + " | ".join(map(str, [*cells, run["environment"]["date"][:10]])) + " |")
    cpus = sorted({run["environment"]["cpu"] for run in runs.values()})
    return "\n".join(lines) + f"\n\nRun on the CPU ({', '.join(cpus)}) by `make versions`."


def _line(name: str, run: Run) -> str:
    counts = "  ".join(f"{run[key]:>5} {key}" for key in _OUTCOMES)
    return f"{name:<7} torch {run['versions']['torch']:<8} {run['suite']}  {counts}  {run['seconds']:>5} s"


def _output(command: list[Any]) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
