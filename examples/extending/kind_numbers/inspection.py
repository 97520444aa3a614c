"""Recognise directories of files of numbers, and say what is there."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kind_numbers.kind import NumbersIndex


def claim(path: str) -> NumbersIndex | None:
    """Return the numbers in a directory of `*.numbers`, None for any other path."""
    files = sorted(Path(path).glob("*.numbers"))
    return NumbersIndex(tuple(files)) if files else None


def describe(index: NumbersIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return how many there are."""
    return {"numbers": int(index.starts[-1]), "files": len(index.files)}


def as_text(path: str, facts: dict[str, Any]) -> str:
    """Return the same in words."""
    return f"{path}: {facts['numbers']} numbers in {facts['files']} files"
