"""A script that hangs, dies or takes all memory does so in a process of its own, and is told in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.core.limited_process import UnfitError, run_limited

SCRIPTS = {
    "memory": ("import sys; sys.stdin.read(); held = bytearray(1 << 30)", r"^it fails: MemoryError$"),
    "abort": ("import os; os.abort()", r"^it ends its process by SIGABRT$"),
    "words": ("raise SystemExit('one\\n\\x1b[31mtwo')", r"^it fails: \\x1b\[31mtwo$"),
    "endless": ("while True: pass", r"^it does not end within 1 s of processor time$"),
}


@pytest.mark.parametrize("name", ["memory", "abort", "words", pytest.param("endless", marks=pytest.mark.nightly)])
def test_a_script_that_does_not_end_well(name: str, tmp_path: Path) -> None:
    script, said = SCRIPTS[name]
    (tmp_path / "script.py").write_text(script)
    with pytest.raises(UnfitError, match=said):
        run_limited(str(tmp_path / "script.py"), b"", cpu_s=1, nbytes=256 << 20)


def test_what_a_script_prints_of_what_it_reads(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])")
    assert run_limited(str(tmp_path / "script.py"), b"abc" * 100_000, cpu_s=10, nbytes=256 << 20) == b"cba" * 100_000
