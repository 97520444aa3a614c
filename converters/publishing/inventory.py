"""The contents of a destination: datasets, their files, and files that belong to none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from converters.shards import QUARANTINE_NAME, shard_files
from converters.writers import TARGETS, Target
from datapipe.core.errors import FormatError
from datapipe.core.regular_files import path_inside
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME, Manifest, read_document

ERRORS_NAME = "errors.jsonl"
FINISHED_NAME = ".finished"  # new name of the building directory when the dataset is complete
_IGNORED = frozenset((BUILDING_NAME, FINISHED_NAME))


@dataclass(frozen=True, slots=True)
class FoundSet:
    """A finished dataset: the destination itself, or one split in it."""

    name: str  # "" for the destination itself
    directory: Path
    manifest: Manifest

    def files(self) -> list[str]:
        """Return the names that its directory may contain; `verify` checks which exist."""
        target = target_of(self.manifest)
        names = [name for shard in self.manifest.shards for name in shard_files(stem_of(shard.name, target), target)]
        return [*names, ERRORS_NAME, MANIFEST_NAME]


def target_of(manifest: Manifest) -> Target:
    """Return the format of a converted dataset. Raises FormatError for one that this program does not write."""
    for target in TARGETS.values():
        if target.container == manifest.container:
            return target
    known = ", ".join(target.container for target in TARGETS.values())
    raise FormatError(f"dataset of kind {manifest.container!r}; verify and convert know {known}")


def stem_of(shard_name: str, target: Target) -> str:
    """Return a shard's file name without its suffix."""
    return shard_name.removesuffix(target.suffix)


def holds_dataset(directory: Path) -> bool:
    """Return True if `directory` is or contains a finished dataset; reads no manifest."""
    return any((place / MANIFEST_NAME).exists() for place in (directory, *_folders(directory)))


def find_sets(directory: Path) -> list[FoundSet]:
    """Return the datasets in `directory`: itself, or its splits; also next to the marker of a running conversion.

    Raises FormatError for a manifest that does not parse, and for a split that is a link to another place.
    """
    if (directory / MANIFEST_NAME).exists():
        return [FoundSet("", directory, read_document(directory))]
    splits = [path for path in _folders(directory) if (path / MANIFEST_NAME).exists()]
    for path in splits:
        path_inside(str(directory), path.name, named_in=directory)
    return [FoundSet(path.name, path, read_document(path)) for path in splits]


def strange_files(directory: Path, sets: list[FoundSet]) -> list[str]:
    """Return the paths, relative to `directory`, of files that belong to none of `sets`."""
    strange: list[str] = []
    known_here: set[str] = set()
    for found in sets:
        known = {*found.files(), QUARANTINE_NAME}
        if found.name:
            known_here.add(found.name)
            strange += [f"{found.name}/{name}" for name in _names(found.directory) if name not in known]
        else:
            known_here |= known
    return sorted(strange + [name for name in _names(directory) if name not in known_here])


def _names(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name not in _IGNORED]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folders(directory: Path) -> list[Path]:
    return sorted(directory / name for name in _names(directory) if (directory / name).is_dir())
