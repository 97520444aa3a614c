"""Pages tried as a reader would: files are saved, commands typed, and what is shown is compared with what comes.

A page shows files as `python` blocks with a title, commands as `bash` blocks, and their output as the `text` block that follows.
Numbers and fingerprints may differ, the width of columns, and the folder, which pages call /home/you. What cannot be promised
is in a `console` block, and not compared.

python tests/docs/typed.py PAGE FOLDER [SECTION ...] does so with the commands on PATH.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TIMEOUT_S = 240


class Block(NamedTuple):
    """A piece of code or output of a page."""

    language: str
    title: str | None
    text: str


def sections(page: str) -> dict[str, list[Block]]:
    """Return the blocks below each heading of the second level."""
    parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
    return {
        title: [Block(*found) for found in _BLOCK.findall(text)] for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def type_in(blocks: list[Block], folder: Path, environment: dict[str, str]) -> None:
    """Save the files, run the commands in `folder`, and compare. Raises AssertionError where the page promises something else."""
    said = ""
    for language, title, text in blocks:
        if language == "python" and title:
            (folder / title).write_text(text)
        elif language in ("bash", "python"):
            command = ["bash", "-ec", text] if language == "bash" else [sys.executable, "-c", text]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
            said = done.stdout + done.stderr
            assert done.returncode == 0, f"{text}\n{said}"
        elif language == "text":
            for line in text.splitlines():
                assert re.search(f"^{_pattern(line)}$", said, re.MULTILINE), f"the page shows\n{line}\nand there comes\n{said}"


def _pattern(line: str) -> str:
    """Return an expression for that line with other numbers, fingerprints and folders."""
    line = re.sub(r"\b[0-9a-f]{16}\b", "FINGERPRINT", line.rstrip())
    line = re.sub(r"\b\d[\d,]*(\.\d+)?(?=\D|$)", "NUMBER", line)
    line = re.sub(r"(?<=\S) {2,}", "SPACES", line)  # between columns, which are as wide as their numbers
    return (
        re.escape(line)
        .replace("FINGERPRINT", "[0-9a-f]{16}")
        .replace("NUMBER", r"[\d.,]+")
        .replace("SPACES", " +")
        .replace("/home/you", ".*")
    )


def main() -> None:
    page, folder, *names = sys.argv[1:]
    found = sections(Path(page).read_text())
    for name in names or found:
        print(f"{page}: {name}", flush=True)
        type_in(found[name], Path(folder), dict(os.environ))


if __name__ == "__main__":
    main()
