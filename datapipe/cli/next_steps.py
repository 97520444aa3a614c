"""`datapipe` without a command: say what to do next by what lies in this folder."""

from __future__ import annotations

import itertools
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from converters import ConvertOptions, recognise
from datapipe.containers import container_of
from datapipe.containers.listing import is_image_name
from datapipe.core.errors import DatapipeError
from datapipe.core.printable import say
from datapipe.core.regular_files import read_bytes
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME

_MAX_ENTRIES = 200  # names of the folder that are looked at
_MAX_TOLD = 5
_UNFINISHED, _SCRIPT, _DATASET, _SOURCE = range(4)  # ranks: what is more urgent comes first
_SCRIPT_NBYTES = 1_000_000  # of a script; larger ones are none
_LOADERS = (b"DataLoader", b"from_torch", b"WebLoader", b"TableLoader")


@dataclass(frozen=True, slots=True)
class NextStep:
    """Something that lies here, and the commands that make sense for it."""

    rank: int
    what: str
    commands: tuple[str, ...]


def run(args: None) -> int:
    """Print what to do next in the current folder. Returns 0."""
    folder = Path.cwd()
    steps = sorted(look(folder), key=lambda step: step.rank)
    say("datapipe keeps GPUs fed: convert small files, load them fast, diagnose training that waits.", "")
    if not steps:
        say("Here is nothing that it can convert, load or diagnose. To try it on generated photographs:", "")
        say("  datapipe demo --photos photos --images 600", "  datapipe convert photos shards --to webdataset", "")
    for step in steps[:_MAX_TOLD]:
        say(step.what, *(f"  {command}" for command in step.commands), "")
    if len(steps) > _MAX_TOLD:
        say(f"... and {len(steps) - _MAX_TOLD} more", "")
    say("All commands: datapipe --help      This machine: datapipe doctor")
    return 0


def look(folder: Path) -> list[NextStep]:
    """Return the steps for what lies in `folder`: the folder itself if it is a dataset or a source, else its entries."""
    if (folder / MANIFEST_NAME).is_file() or (folder / BUILDING_NAME).exists():
        return [step for step in [_step(folder.resolve(), ".")] if step is not None]
    names = _names(folder)
    steps = [step for step in (_step(folder / name, name) for name in names) if step is not None]
    if all(step.rank == _SOURCE for step in steps) and _holds_samples(folder, names):
        whole = _of_source(folder.resolve(), ".", ".")  # one source, not several
        return steps if whole is None else [whole]
    return steps


def _holds_samples(folder: Path, names: list[str]) -> bool:
    """Return True if images or shards lie in the folder itself, or images in folders of it."""
    if any(is_image_name(os.fsencode(name)) or container_of(name) for name in names):
        return True
    return any(is_image_name(os.fsencode(name)) for path in _folders(folder, names) for name in _names(path))


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in itertools.islice(entries, _MAX_ENTRIES) if not entry.name.startswith("."))


def _folders(folder: Path, names: list[str]) -> list[Path]:
    paths = [folder / name for name in names]
    return [path for path in paths if path.is_dir() and os.access(path, os.R_OK | os.X_OK)]


def _step(path: Path, name: str) -> NextStep | None:
    shown = shlex.quote(name)
    if path.suffix == ".py":
        return _of_script(path, shown)
    if (path / BUILDING_NAME).exists():
        what = f"{name}: a conversion into it has not ended; the command that began it continues it"
        return NextStep(_UNFINISHED, what, (f"datapipe convert SRC {shown} --to FORMAT     # as it was typed then",))
    if (path / MANIFEST_NAME).is_file():
        return _of_dataset(shown, f"{name}: a dataset that datapipe converted")
    sets = [child for child in _folders(path, _names(path)) if (child / MANIFEST_NAME).is_file()] if path.is_dir() else []
    if sets:
        what = f"{name}: datasets that datapipe converted: {', '.join(child.name for child in sets)}"
        return _of_dataset(shlex.quote(f"{name}/{sets[0].name}"), what)
    return _of_source(path, name, shown)


def _of_dataset(shown: str, what: str) -> NextStep:
    return NextStep(
        _DATASET,
        what,
        (
            f"datapipe inspect {shown} --grid sheet.png     # what is in it",
            f"datapipe bench {shown} --against torch        # how fast it loads",
            f'dp.DataLoader("{shown}", batch_size=256, shuffle=True, transform=[...])     # in a script',
        ),
    )


def _of_script(path: Path, shown: str) -> NextStep | None:
    try:
        text = read_bytes(path, at_most=_SCRIPT_NBYTES)
    except (DatapipeError, OSError):
        return None
    if not any(loader in text for loader in _LOADERS):
        return None
    what = f"{path.name}: a script with a data loader"
    return NextStep(_SCRIPT, what, (f"datapipe diagnose {shown}     # how long it waits for data, why, and what would help",))


def _of_source(path: Path, name: str, shown: str) -> NextStep | None:
    name_of_shards = f"{path.name.partition('.')[0]}-shards"
    try:
        found = recognise(ConvertOptions(path, path.parent / name_of_shards))
    except (DatapipeError, OSError):
        return None
    destination = shlex.quote(f"../{name_of_shards}" if name == "." else name_of_shards)
    return NextStep(
        _SOURCE,
        f"{name}: {found}",
        (
            f"datapipe convert {shown} {destination} --to webdataset --dry-run     # what that would make",
            f"datapipe convert {shown} {destination} --to webdataset",
        ),
    )
