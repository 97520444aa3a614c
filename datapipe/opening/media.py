"""The files of videos, or of sound, that a path means: in a folder, by patterns, in shards."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import LABEL_FIELD
from datapipe.containers.form import Form
from datapipe.containers.forms import AUDIO, FORMS, VIDEOS
from datapipe.containers.look import Look, Nature, look_at, recognise_by_names
from datapipe.containers.parquet.scanner import holds_sound
from datapipe.core.directories import matching
from datapipe.errors import FormatError, MissingDataError
from datapipe.index.concat import AnyIndex
from datapipe.index.entries import Entries
from datapipe.index.listed import ScanNotes, Workspace
from datapipe.opening.converted import kind_of_set
from datapipe.sources.file_tree import FileKind, classes_if_all, placed
from datapipe.sources.lists.parts import ListedParts
from datapipe.sources.tars import media_held
from datapipe.stores.location import Place, is_url
from datapipe.stores.places import parse_place

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


def media_in_shards(name: str) -> str:
    """Return VIDEOS or AUDIO if a path, pattern, folder or URL names shards of these; "" for all else. Raises StorageError."""
    for media in (VIDEOS, AUDIO):
        if form_of_shards(name, FORMS[media].kind) is not None:
            return media
    try:
        look = look_at(parse_place(name))
        of_set = {"clips": VIDEOS, "audio": AUDIO}.get(kind_of_set(look))
        return of_set or (AUDIO if holds_spoken(look) else media_held(look))
    except (FormatError, MissingDataError):  # what reads it says what is wrong
        return ""


def holds_spoken(look: Look) -> bool:
    """Return True for Parquet files with a column of sound."""
    first = look.first_shard("parquet") if recognise_by_names(look, "parquet") or look.nature is Nature.PATTERN else None
    if first is None or not first.endswith(".parquet"):
        return False
    return look.once(f"sound in {first}", lambda: holds_sound(first))


def form_of_shards(name: str, kind: str) -> str | None:
    """Return the form of the shards that a path, pattern, folder or URL names, if all of that form are of this kind of data.

    None for any other, such as tars, whose members say what they are. Raises StorageError.
    """
    forms = [form for form, facts in FORMS.items() if facts.shards and facts.kind == kind]
    try:
        look = look_at(parse_place(name)) if forms else None
    except (FormatError, MissingDataError):  # what reads it says what is wrong
        return None
    return None if look is None else next((form for form in forms if recognise_by_names(look, form) is not None), None)


def look_up_all(index: AnyIndex, field: str) -> Iterator[Entries]:
    """Yield the entries of all samples of shards, some at a time."""
    for first in range(0, len(index), _AT_ONCE):
        yield index.look_up(index.ids(np.arange(first, min(first + _AT_ONCE, len(index)), dtype=np.int64)), field)
