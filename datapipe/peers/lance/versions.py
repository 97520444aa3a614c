"""Versions of a Lance dataset: the manifest file of each, and the one at which a dataset is opened.

Names of manifests are those of the format (https://lance.org/format): the version, or 2^64 - 1 less it, so that the latest
comes first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from datapipe.core.directories import names_in
from datapipe.core.pinning import version_of
from datapipe.core.regular_files import refuse_irregular
from datapipe.errors import MissingDataError, OptionError
from datapipe.peers.lance.library import opened, version_of_tag

FOLDER = "_versions"
_NAME = re.compile(r"(\d+)\.manifest")
_LAST = 2**64 - 1
_REVERSED_FROM = 2**63  # names that are numbers from here on count down


def entry_of(place: Path) -> Path | None:
    """Return the manifest of the version at which a dataset is opened: the chosen one, else the latest; None for other folders.

    Raises MissingDataError for a version that is not there, and OptionError for what names none.
    """
    known = _versions_in(place)
    if not known:
        return None
    number = int(version_of(str(place.absolute()), lambda chosen: str(_number(place, chosen, known))))
    if number not in known:
        there = f"{min(known)} to {max(known)}"
        raise MissingDataError(f"{place}: has no version {number} (but {there}); it may have been cleaned up")
    return place / FOLDER / known[number]


def _number(place: Path, chosen: str, known: dict[int, str]) -> int:
    if not chosen:
        return max(known)
    if chosen.isdecimal():
        return int(chosen)
    number = version_of_tag(place, chosen)
    if number is None:
        there = f"{min(known)} to {max(known)}"
        raise OptionError(f"{place}: has no version or tag {chosen!r:.60}; pass a number from {there}, or a tag")
    return number


def _versions_in(place: Path) -> dict[int, str]:
    """Return the names of manifests by version; none for a folder that is no dataset."""
    if not os.path.isdir(place / FOLDER):
        return {}
    names = names_in(place / FOLDER)
    return {number: name for name in names if (number := number_of(name)) is not None}


def number_of(name: str) -> int | None:
    """Return the version of a manifest by its file's name; None for other files."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    number = int(found.group(1))
    return _LAST - number if number >= _REVERSED_FROM else number


def dataset_of(manifest: str | Path) -> tuple[Path, int]:
    """Return the folder of the dataset, and the version, of a manifest's path."""
    path = Path(manifest)
    number = number_of(path.name)
    assert number is not None
    return path.parent.parent, number


def shown(manifest: str | Path) -> str:
    """Return the dataset and its version for messages."""
    place, number = dataset_of(manifest)
    return f"{place} (version {number})"


def dataset_at(manifest: str | Path) -> Any:
    """Return the dataset of a manifest, as pylance opens it; kept by this process.

    Raises FileNotFoundError if that version is not there any more, FormatError, LanceError and DependencyError.
    """
    status = os.stat(manifest)  # versions may be cleaned up, and datasets replaced
    refuse_irregular(manifest)
    return opened(*dataset_of(manifest), (status.st_ino, status.st_mtime_ns))
