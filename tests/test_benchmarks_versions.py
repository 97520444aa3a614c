"""The runs on several versions: counts, the table, interpreters."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import versions


@pytest.mark.parametrize(
    ("closing", "expected"),
    [
        ("5986 passed, 29 skipped, 53 warnings in 1056.79s (0:17:36)", (5986, 0, 29)),
        ("1 failed, 3 passed, 2 errors in 0.12s", (3, 3, 0)),
        ("FAILED tests/test_a.py - no tests ran", (0, 0, 0)),
    ],
)
def test_outcomes_are_counted(closing: str, expected: tuple[int, int, int]) -> None:
    counts = versions.counted(f"1 failed, 1 passed\n{closing}\n")
    assert (counts["passed"], counts["failed"], counts["skipped"]) == expected


def test_the_table_has_a_row_for_each_run() -> None:
    environment = {"python": "3.11.7", "date": "2026-11-23T10:00:00+00:00", "cpu": "a CPU"}
    run = {"suite": "quick", "passed": 5, "failed": 1, "skipped": 2, "versions": {"torch": "2.6.0"}, "environment": environment}
    table = versions.as_markdown({"versions": {"runs": {"lowest": run}}})
    assert "| 3.11.7 | 2.6.0 | lowest allowed | quick | 5 | 1 | 2 | 2026-11-23 |" in table
    assert "a CPU" in table
    assert versions.as_markdown({}) == ""


def test_an_interpreter_of_the_path_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pyenv's shims of versions that are not chosen."""
    for path, status in (("shims/python3.12", 127), ("pyenv/versions/3.12.1/bin/python3.12", 0)):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / path).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert versions.find_python("3.12") == str(tmp_path / "pyenv/versions/3.12.1/bin/python3.12")
    monkeypatch.setattr(versions, "_UV", ["/bin/false"])
    assert versions.find_python("3.77") is None
