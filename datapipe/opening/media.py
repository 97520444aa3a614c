"""The files of videos, or of sound, that a path means: in a folder, by patterns, in shards."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import LABEL_FIELD
from datapipe.containers.form import Form
from datapipe.containers.formats import container_of
from datapipe.containers.remote_shards import expanded
from datapipe.core.directories import matching, names_in
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.concat import AnyIndex
from datapipe.index.entries import Entries
from datapipe.index.listed import ScanNotes, Workspace
from datapipe.sources.file_tree import FileKind, classes_if_all, placed
from datapipe.sources.lists.parts import ListedParts
from datapipe.stores.location import Place, is_url, parse_location
from datapipe.stores.objects import list_names

_AT_ONCE = 1 << 16  # samples that are looked up


def parts_of_files(names: Sequence[str], kind: FileKind) -> ListedParts:
    """Return the files of these paths, URLs and patterns, a part each; those of a pattern by name. Raises MissingDataError."""
    paths = [path for name in names for path in _matching(name)]
    for path in paths:
        if not is_url(path) and not os.path.isfile(path):
            raise MissingDataError(f"{path}: is no file; name {kind.plural}, or their folder")
    return ListedParts.whole(tuple(path if is_url(path) else os.path.abspath(path) for path in paths))


def _matching(name: str) -> list[str]:
    if is_url(name) or os.path.exists(name) or not glob.has_magic(name):
        return [name]
    found = matching(name)
    if not found:
        raise MissingDataError(f"{name}: no file matches")
    return found


def parts_of_folder(root: Place, form: str, kind: FileKind) -> ListedParts:
    """Return the files below a folder, or a prefix in a store, a part each.

    Its top folders are classes if all files lie in such. Raises MissingDataError if there are none.
    """
    folder = classes_if_all(root, Form(form), kind)
    space = Workspace(Path(), None)  # nothing is unpacked
    samples = sorted(folder.scan(ScanNotes(), space), key=lambda one: (one.place, one.directory, one.name))
    facts = folder.facts()
    if not samples:
        raise MissingDataError(f"{root}: {facts.nothing}; {facts.remedy}")
    paths = tuple(placed(root, sample.origins[kind.field.name]) for sample in samples)
    labels = np.array([sample.label for sample in samples], np.int64) if LABEL_FIELD in facts.fields else None
    return ListedParts.whole(paths, labels=labels, classes=None if labels is None else facts.classes)


def parts_to_convert(path: Path) -> tuple[Path, ListedParts]:
    """Return the folder in which the files of a path or a pattern lie, and the files, a part each. Raises MissingDataError."""
    found = [str(path)] if path.exists() else matching(str(path))
    if not found:
        raise MissingDataError(f"{path}: no such file, or none that matches")
    paths = tuple(map(os.path.abspath, found))
    return Path(os.path.commonpath([os.path.dirname(one) for one in paths])), ListedParts.whole(paths)


def are_shards(name: str, looks: Mapping[str, Callable[[str], bool]]) -> bool:
    """Return True if a path, pattern, folder or URL names shards of which the first is as wanted. `looks`: by container.

    Raises StorageError.
    """
    try:
        first = _first_shard(name, looks)
        return first is not None and looks[container_of(os.path.basename(first)) or ""](first)
    except (FormatError, MissingDataError):  # of a URL; what reads it says what is wrong
        return False


def _first_shard(name: str, containers: Collection[str]) -> str | None:
    """Return the first file of one of these containers that a path, pattern or URL names, or that lies in it; None if none does.

    Raises StorageError, and for a URL MissingDataError and FormatError.
    """

    def is_wanted(path: str) -> bool:
        return container_of(os.path.basename(path)) in containers

    if is_url(name):
        name = next(expanded(name)) if "{" in name else name
        location = parse_location(name)
        if is_wanted(location.name) and not glob.has_magic(location.name):
            return name
        if glob.has_magic(location.name):
            location = location.parent
        first = next((one for one in list_names(location) if is_wanted(one)), None)
        return None if first is None else str(location / first)
    if os.path.isdir(name):
        try:
            found = [os.path.join(name, one) for one in names_in(name)]
        except OSError as exc:
            raise StorageError(exc.errno, f"{name}: cannot be read ({exc.strerror}); check its permissions") from exc
    else:
        found = [name] if os.path.isfile(name) else matching(name)
    return next(filter(is_wanted, found), None)


def look_up_all(index: AnyIndex, field: str) -> Iterator[Entries]:
    """Yield the entries of all samples of shards, some at a time."""
    for first in range(0, len(index), _AT_ONCE):
        yield index.look_up(index.ids(np.arange(first, min(first + _AT_ONCE, len(index)), dtype=np.int64)), field)
