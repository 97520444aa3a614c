"""Recognise directories of files of numbers, and say what is there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.containers.form import Form
from datapipe.containers.look import Evidence, Look


class NumbersIndex:
    """Where numbers lie. A number's id is its line, counted over all files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.starts = np.cumsum([0, *(path.read_bytes().count(b"\n") for path in files)])

    def place(self, id: int) -> tuple[int, int]:
        """Return the file of a number, and its line there."""
        file = int(np.searchsorted(self.starts, id, side="right")) - 1
        return file, id - int(self.starts[file])


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is files of numbers; None if it is none."""
    return Evidence("it holds .numbers files") if look.holds(lambda name: name.endswith(b".numbers")) else None


def open_place(path: str, form: Form) -> NumbersIndex:
    """Return the numbers in a directory of `*.numbers`."""
    return NumbersIndex(sorted(Path(path).glob("*.numbers")))


def describe(index: NumbersIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return how many there are."""
    return {"numbers": int(index.starts[-1]), "files": len(index.files)}


def as_text(path: str, facts: dict[str, Any]) -> str:
    """Return the same in words."""
    return f"{path}: {facts['numbers']} numbers in {facts['files']} files"
