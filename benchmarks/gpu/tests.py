"""Stage `tests`: `pytest -m gpu`, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.environment import ROOT
from benchmarks.gpu.report import Report
from benchmarks.gpu.settings import Check, Deadline

_NEEDED = ("pytest", "hypothesis")
_TOLD = 1500  # characters of the last words


def run(check: Check, report: Report, deadline: Deadline) -> None:
    """Run the files that have such tests, and report each that fails. A dry run takes one file, whose tests are skipped."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        report.skip("pytest -m gpu", f"{' and '.join(missing)} not installed")
        return
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text())
    files = [name for name in files if "test_gpu_check" not in name][: check.pick(None, 1)]
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch, "results.xml")
        # Plugins of the machine may be too new for the pytest that is carried, or change what tests see.
        variables = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        limit_s = max(1.0, deadline.left_s)
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={results}", *files]
        try:
            done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired as exc:
            report.fail("pytest -m gpu", f"stopped after {limit_s:.0f} s\n{_words(exc.stdout)}")
            return
        if not results.exists():  # it crashed
            report.fail("pytest -m gpu", f"exit code {done.returncode}\n{_words(done.stdout)}\n{_words(done.stderr)}")
            return
        cases = list(ElementTree.parse(results).iter("testcase"))
    outcomes = dict.fromkeys(("passed", "skipped", "failed"), 0)
    for case in cases:
        wrong = [child for child in case if child.tag in ("failure", "error")]
        outcomes["failed" if wrong else "skipped" if case.find("skipped") is not None else "passed"] += 1
        for child in wrong:
            name = f"{case.get('classname')}::{case.get('name')}"
            report.fail(name, f"{child.get('message')}\n{(child.text or '')[-_TOLD:]}")
    report.add("pytest -m gpu", {"question": "tests", **outcomes})
    report.expect("pytest -m gpu", check.is_dry or outcomes["passed"] > 0, "not one test ran")


def _words(said: str | bytes | None) -> str:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
    return text[-_TOLD:]
