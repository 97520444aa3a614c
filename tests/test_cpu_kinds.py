"""The kinds of CPU: their settings reach the libraries, and what a machine cannot stand for is said."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.cpu_kinds import CpuKind, as_markdown, cpu_kinds

LOOK = """
import json, numpy, torch
found = numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
print(json.dumps([torch.backends.cpu.get_cpu_capability(), found]))
"""


def test_the_first_kind_is_the_cpu_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    first, *_ = cpu_kinds()
    assert first.settings == {}
    assert not first.why_not()
    assert "ATEN_CPU_CAPABILITY" not in first.environment()


def test_names_are_unique_and_all_plain_has_the_settings_of_the_plain_ones() -> None:
    kinds = {kind.name: kind for kind in cpu_kinds()}
    assert len(kinds) == len(cpu_kinds())
    for name in ("torch plain", "JPEG plain", "numpy plain"):
        assert kinds[name].settings.items() <= kinds["all plain"].settings.items()


def test_an_instruction_that_the_cpu_lacks_is_named() -> None:
    assert CpuKind("of tomorrow", {"ATEN_CPU_CAPABILITY": "avx2048"}, needs="avx2048").why_not()


@pytest.mark.nightly
def test_settings_reach_the_libraries() -> None:
    (plain,) = [kind for kind in cpu_kinds() if kind.name == "all plain"]
    if reason := plain.why_not():
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-c", LOOK], env=plain.environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["DEFAULT", []]


def test_the_table_says_what_was_run_and_what_was_not() -> None:
    runs = [
        {"name": "as it is", "settings": {}, "passed": 7, "failed": 0, "skipped": 1},
        {"name": "numpy plain", "settings": {"NPY_DISABLE_CPU_FEATURES": "A B C D"}, "passed": 6, "failed": 1, "skipped": 1},
        {"name": "torch AVX-512", "settings": {"ATEN_CPU_CAPABILITY": "avx512"}, "not_run": "this CPU has no avx512f"},
    ]
    found = {"cpu-kinds": {"runs": runs, "environment": {"cpu": "A CPU", "date": "2026-11-23T20:02:56+00:00"}}}
    assert as_markdown(found).splitlines()[2:] == [
        "| as it is | none | 7 | 0 | 1 |",
        "| numpy plain | `NPY_DISABLE_CPU_FEATURES=A ... D` | 6 | 1 | 1 |",
        "| torch AVX-512 | `ATEN_CPU_CAPABILITY=avx512` | this CPU has no avx512f |  |  |",
        "",
        "Run on A CPU, 2026-11-23.",
    ]
    assert as_markdown({}) == ""
