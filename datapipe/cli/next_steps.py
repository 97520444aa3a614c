"""`datapipe` without a command: say what to do next by what lies in this folder."""

from __future__ import annotations

import itertools
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from converters import ConvertOptions, recognise
from converters.tables.sources import is_table
from datapipe.cli.recognition import table_at
from datapipe.columns.recipe import VOCABULARIES_SUFFIX
from datapipe.containers import container_of
from datapipe.containers.formats import TEXT_SUFFIXES
from datapipe.containers.listing import held_apart, is_image_name, is_kept_by_tools, list_folders
from datapipe.containers.tables.files import SUFFIXES
from datapipe.core.errors import DatapipeError
from datapipe.core.printable import say
from datapipe.core.regular_files import read_bytes
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME
from datapipe.index.tables import TABLE_NAME

_MAX_ENTRIES = 200  # names of the folder that are looked at
_MAX_TOLD = 5
_UNFINISHED, _SCRIPT, _DATASET, _SOURCE, _TABLE = range(5)  # ranks: what is more urgent comes first
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
    if any((folder / name).exists() for name in (MANIFEST_NAME, TABLE_NAME, BUILDING_NAME)):
        return [step for step in [_step(folder.resolve(), ".")] if step is not None]
    names = [] if is_kept_by_tools(os.fsencode(folder)) else _names(folder)
    steps = [step for step in (_step(folder / name, name) for name in names) if step is not None]
    ranks = {step.rank for step in steps}
    is_one = ranks <= {_SOURCE} or (ranks == {_TABLE} and len(steps) > 1)
    if is_one and _holds_samples(folder, names):
        whole = _of_source(folder.resolve(), ".", ".")  # one source, not several
        return steps if whole is None else [whole]
    return steps


def _holds_samples(folder: Path, names: list[str]) -> bool:
    """Return True if images or shards lie in the folder itself, or images in folders of it."""
    if any(is_image_name(os.fsencode(name)) or container_of(name) for name in names):
        return True
    return any(is_image_name(os.fsencode(name)) for path in _folders(folder, names) for name in _names(path))


def _names(folder: Path) -> list[str]:
    """Return the names in `folder` that are anybody's own: no hidden ones, no environments, caches or vocabularies."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, _MAX_ENTRIES)]
    own = (name for name in names if not name.startswith(".") and not name.endswith(VOCABULARIES_SUFFIX))
    return sorted(name for name in own if not is_kept_by_tools(os.fsencode(folder / name)))


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
    if (path / TABLE_NAME).is_file():
        return _of_table(name, f"{name}: a table that datapipe converted")
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


def _of_table(name: str, what: str) -> NextStep:
    shown = shlex.quote(name)
    return NextStep(
        _TABLE,
        what,
        (
            f"datapipe inspect {shown}     # its columns, and whether its row groups suit shuffling",
            f"datapipe bench {shown}       # how fast it loads",
            f"dp.TableLoader({name!r}, batch_size=65536, shuffle=True, columns=[...], label=...)     # in a script",
        ),
    )


def _of_source(path: Path, name: str, shown: str) -> NextStep | None:
    name_of_shards = f"{path.name.partition('.')[0]}-shards"
    destination = f"../{name_of_shards}" if name == "." else name_of_shards
    try:
        if path.suffix.lower() in TEXT_SUFFIXES and is_table(path):
            return _conversion(f"{name}: a table, as text", shown, shlex.quote(destination), to="parquet")
        if _holds_rows(path):
            return _of_table(name, f"{name}: a table")
        apart = [] if path.is_file() else held_apart(path, list_folders(path, otherwise=""))
        if apart:
            sets = [os.fsdecode(one) for one in apart]
            first = shlex.quote(os.path.join(name, sets[0]))
            what = f"{name}: the sets {', '.join(sets)}, which are converted one by one"
            return _conversion(what, first, shlex.quote(f"{destination}/{sets[0]}"))
        found = recognise(ConvertOptions(path, path.parent / name_of_shards))
    except (DatapipeError, OSError):
        return None
    return _conversion(f"{name}: {found}", shown, shlex.quote(destination)) if found.is_certain else None


def _holds_rows(path: Path) -> bool:
    """Return True for a file of a table, and for a folder whose first such file is one. Reads one footer at most."""
    names = [""] if path.is_file() else _names(path)
    files = [path / name for name in names if (path / name).suffix.lower() in SUFFIXES]
    try:
        return bool(files) and table_at(os.fspath(files[0])) is not None
    except DatapipeError:  # files of images, or damaged ones: what follows says so
        return False


def _conversion(what: str, source: str, destination: str, *, to: str = "webdataset") -> NextStep:
    command = f"datapipe convert {source} {destination} --to {to}"
    return NextStep(_SOURCE, what, (f"{command} --dry-run     # what that would make", command))
