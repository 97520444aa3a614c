"""Read the user's map of classes to labels: a JSON object, or a line for each class."""

from __future__ import annotations

import json
import os
from pathlib import Path

from datapipe.core import regular_files
from datapipe.errors import MissingDataError, OptionError, StorageError


def read_class_map(path: Path) -> dict[str, int]:
    """Read a JSON object {class: index}, or lines of `class index`.

    Indices must be 0..n-1, each once: they are labels, and a class list has no gaps.
    """
    try:
        text = os.fsdecode(regular_files.read_bytes(path))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file; check --class-map") from exc
    except OSError as exc:
        raise StorageError(f"{path}: cannot be read ({exc.strerror}); check --class-map") from exc
    table = _from_json(path, text) if text.lstrip().startswith("{") else _from_lines(path, text)
    if sorted(table.values()) != list(range(len(table))):
        raise OptionError(f"{path}: indices must be 0 to {len(table) - 1}, each once; got {sorted(table.values())[:8]}...")
    return table


def _from_json(path: Path, text: str) -> dict[str, int]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise OptionError(f"{path}: not JSON ({exc}); expected {{folder: index}}") from exc
    for name, index in value.items():
        if not isinstance(index, int) or isinstance(index, bool):
            raise OptionError(f"{path}: index of {name!r} is {index!r}; expected an integer")
    return dict(value)


def _from_lines(path: Path, text: str) -> dict[str, int]:
    table: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, _, index = line.strip().rpartition(" ")
        name = name.strip()
        if not name or not index.isdecimal() or len(index) > 18:
            raise OptionError(f"{path}: line {number} is {line!r}; expected a folder, a space and its index")
        if name in table:
            raise OptionError(f"{path}: line {number} names {name!r} a second time; keep one")
        table[name] = int(index)
    return table
