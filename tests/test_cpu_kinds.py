"""The kinds of CPU: their settings reach the libraries, and what a machine cannot stand for is said."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.cpu_kinds import CpuKind, cpu_kinds

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


def test_settings_reach_the_libraries() -> None:
    (plain,) = [kind for kind in cpu_kinds() if kind.name == "all plain"]
    if reason := plain.why_not():
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-c", LOOK], env=plain.environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["DEFAULT", []]
