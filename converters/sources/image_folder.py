"""An image folder as a source: its classes, their labels, and whether it is one set at all."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from converters.writers import IMAGE_FIELD, LABEL_FIELD
from datapipe.containers.listing import held_apart, list_classes
from datapipe.errors import MissingDataError, OptionError, StorageError

FIELDS = (IMAGE_FIELD, LABEL_FIELD)  # of every sample


@dataclass(frozen=True, slots=True)
class ClassTable:
    """Class folders in listing order, and their labels."""

    folders: tuple[bytes, ...]
    labels: tuple[int, ...]  # beside `folders`
    names: tuple[str, ...]  # by label; may hold more classes than there are folders

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.names)}


def read_classes(source: Path, *, class_map: Path | None = None, command: str = "") -> ClassTable:
    """The classes of `source`, labelled by place or by the map.

    `command`: what to print for each set if `source` turns out to hold several, with {source} and {name}.
    Raises MissingDataError, StorageError, or OptionError for a source of several sets or a map that does not fit.
    """
    folders = list_classes(source)
    sets = held_apart(source, folders)
    if sets:
        names = [os.fsdecode(name) for name in sets]
        commands = "\n".join(f"  {command.format(source=source / name, name=name)}" for name in names)
        shown = " and ".join(f"{name}/" for name in names)
        raise OptionError(f"{source}: holds {shown}, which are sets of their own; run\n{commands}")
    if class_map is None:
        names_by_label = tuple(os.fsdecode(folder) for folder in folders)
        return ClassTable(tuple(folders), tuple(range(len(folders))), names_by_label)
    table = read_class_map(class_map)
    unknown = [os.fsdecode(folder) for folder in folders if os.fsdecode(folder) not in table]
    if unknown:
        shown = ", ".join(repr(name) for name in unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise OptionError(f"{class_map}: has no index for class folders {shown} of {source}; add them, or move them away")
    by_label = sorted(table, key=table.__getitem__)
    return ClassTable(tuple(folders), tuple(table[os.fsdecode(folder)] for folder in folders), tuple(by_label))


def read_class_map(path: Path) -> dict[str, int]:
    """A JSON object {folder: index}, or lines of `folder index`.

    Indices must be 0..n-1, each once: they are labels, and a class list has no holes.
    """
    try:
        text = os.fsdecode(path.read_bytes())
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
    except ValueError as exc:
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
        if not name or not index.isdecimal():
            raise OptionError(f"{path}: line {number} is {line!r}; expected a folder, a space and its index")
        if name in table:
            raise OptionError(f"{path}: line {number} names {name!r} a second time; keep one")
        table[name] = int(index)
    return table
