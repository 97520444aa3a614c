"""Put what was built into its place: the last steps of every conversion, of samples or of a table, each of which can be repeated.

The steps are recorded first, so a run that finds `final.json` continues where another one was killed. Readers refuse the
directory until the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from converters.runs import read_record
from datapipe.core import atomic
from datapipe.core.regular_files import path_inside
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME
from datapipe.index.tables import TABLE_NAME

FINAL_NAME = "final.json"
FINISHED_NAME = ".finished"  # new name of the building directory when the result is complete
_REMOVED_NAME = "old-removed"

Moves = Sequence[tuple[str, str]]  # from a name below the building directory to one below the destination


class _Final(msgspec.Struct, forbid_unknown_fields=True):
    """The last steps."""

    remove: list[str]  # names below the destination, of what is replaced
    moves: list[tuple[str, str]]
    last: list[tuple[str, str]]


def record(destination: Path, *, remove: Iterable[str], moves: Moves, last: Moves) -> None:
    """Record the last steps. `last`: the documents without which there is no dataset, moved when the rest is on disk."""
    atomic.write_json(
        destination / BUILDING_NAME / FINAL_NAME, {"remove": list(remove), "moves": list(moves), "last": list(last)}
    )


def place(destination: Path) -> None:
    """Execute what was recorded. Raises FormatError for a record that no conversion wrote, or that leads elsewhere."""
    building = destination / BUILDING_NAME
    final = _read(destination, building / FINAL_NAME)
    _remove_old(destination, building, final.remove)
    folders = {os.path.dirname(target) for _, target in final.last}
    for folder in folders:
        (destination / folder / BUILDING_NAME).mkdir(parents=True, exist_ok=True)  # marks a split as unfinished, too
    for source, target in final.moves:
        _move(building / source, destination / target)
    for folder in folders:
        atomic.sync_directory(destination / folder)
    for source, target in final.last:
        _move(building / source, destination / target)
        atomic.sync_directory((destination / target).parent)
    for folder in folders - {""}:
        (destination / folder / BUILDING_NAME).rmdir()
    shutil.rmtree(destination / FINISHED_NAME, ignore_errors=True)
    atomic.move(building, destination / FINISHED_NAME)
    sweep(destination)


def sweep(destination: Path) -> bool:
    """Delete what a finished conversion leaves behind; return True if there was anything."""
    leftover = destination / FINISHED_NAME
    if not leftover.is_dir():
        return False
    shutil.rmtree(leftover, ignore_errors=True)
    return True


def _read(destination: Path, path: Path) -> _Final:
    final = read_record(path, _Final, "the last steps of a conversion", f"delete {path.parent} and convert again")
    steps = [*final.moves, *final.last]
    for name in (*final.remove, *(target for _, target in steps)):
        path_inside(str(destination), name, named_in=path, follows=True)  # a link itself is removed or replaced,
    for folder in {os.path.dirname(name) for name in (*final.remove, *(target for _, target in steps))} - {""}:
        path_inside(str(destination), folder, named_in=path)  # but one on the way to it would be followed
    for name, _ in steps:
        path_inside(str(path.parent), name, named_in=path, follows=True)
    return final


def _remove_old(destination: Path, building: Path, names: list[str]) -> None:
    """Delete what is replaced, its documents first; only once, since new files take its names."""
    if not names or (building / _REMOVED_NAME).exists():
        return
    for name in sorted(names, key=lambda name: os.path.basename(name) not in (MANIFEST_NAME, TABLE_NAME)):
        path = destination / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for folder in {os.path.dirname(name) for name in names} - {""}:
        with contextlib.suppress(OSError):  # the folder of a split, removed if it is empty
            (destination / folder).rmdir()
    atomic.write_json(building / _REMOVED_NAME, True)


def _move(source: Path, target: Path) -> None:
    """Rename unless an earlier run did. Raises FileNotFoundError if the file, or folder, is in neither place."""
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
    try:
        os.replace(source, target)
    except FileNotFoundError:
        if not target.exists():
            raise
