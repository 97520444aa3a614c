"""Find the sound files that a path means, and the utterances in them: a folder, files, tars, a list, LibriSpeech."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import LABEL_FIELD
from datapipe.containers.form import Form
from datapipe.containers.forms import AUDIO
from datapipe.containers.listing import is_audio_name
from datapipe.core.checks import path_name
from datapipe.core.printable import listed
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.listed import ScanNotes, Workspace
from datapipe.index.recordings import RecordingSource
from datapipe.index.utterances import Utterances, text_array
from datapipe.opening.recordings.indexing import open_recordings
from datapipe.opening.recordings.lists import list_in_folder, read_list
from datapipe.opening.recordings.shards import are_shards, open_shards
from datapipe.opening.recordings.source import KIND
from datapipe.sources.file_tree import classes_if_all, placed
from datapipe.sources.lists.parts import LIST_SUFFIXES, ListedParts
from datapipe.stores.location import Place, is_url, parse_place

AudioSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def open_utterances(source: AudioSource) -> Utterances:
    """Return the utterances that a source means, in order.

    `source`: a folder of sound files, or a prefix of them in a store, whose top folders are classes if all of them lie in such;
    one of LibriSpeech, or of Common Voice; tars, as WebDataset has them, or Parquet; a file, a URL, a glob pattern or a list of
    those; or a list of utterances, CSV or JSON lines, with a path, and start, end (seconds), label and text if there are any.
    Raises MissingDataError, StorageError, FormatError or OptionError.
    """
    if not isinstance(source, (str, os.PathLike)):
        names = [path_name(one, "the path to a sound file") for one in source]
        if not names:
            raise OptionError("the list of sound files is empty; name at least one")
        return _of_files([file for name in names for file in _matching(name)], listed(names, most=1))
    name = path_name(source, "the path to the sound files")
    if are_shards(name):
        return open_shards(name)
    if is_url(name) and name.lower().endswith(LIST_SUFFIXES):
        raise OptionError(f"{name}: lists are read from disks; copy it here, and name the files in it by their URLs")
    if is_url(name) and not is_audio_name(os.fsencode(name)):
        return _opened(_of_folder(parse_place(name)), name)
    if os.path.isdir(name) and list_in_folder(Path(name)) is None:
        return _opened(_of_folder(Path(name)), name)
    if os.path.isdir(name) or name.lower().endswith(LIST_SUFFIXES):
        return _opened(read_list(Path(name)), name)
    return _of_files(_matching(name), name)


def _opened(parts: ListedParts, where: str) -> Utterances:
    recordings = open_recordings([RecordingSource(path) for path in parts.paths], where=where)
    return Utterances.of(
        recordings,
        parts.file,
        where=where,
        start=parts.start,
        end=parts.end,
        labels=parts.labels,
        classes=parts.classes,
        texts=None if parts.texts is None else text_array(parts.texts),
    )


def _matching(name: str) -> list[str]:
    """Return the files that a path or pattern names, by name."""
    if is_url(name) or os.path.exists(name) or not glob.has_magic(name):
        return [name]
    found = sorted(glob.glob(name, recursive=True))
    if not found:
        raise MissingDataError(f"{name}: no file matches")
    return found


def _of_files(paths: Sequence[str], where: str) -> Utterances:
    for path in paths:
        if not is_url(path) and not os.path.isfile(path):
            raise MissingDataError(f"{path}: is no file; name sound files, or their folder")
    return _opened(ListedParts.whole(tuple(path if is_url(path) else os.path.abspath(path) for path in paths)), where)


def _of_folder(root: Place) -> ListedParts:
    folder = classes_if_all(root, Form(AUDIO), KIND)
    space = Workspace(Path(), None)  # nothing is unpacked
    samples = sorted(folder.scan(ScanNotes(), space), key=lambda one: (one.place, one.directory, one.name))
    facts = folder.facts()
    if not samples:
        raise MissingDataError(f"{root}: {facts.nothing}; {facts.remedy}")
    paths = tuple(placed(root, sample.origins[KIND.field.name]) for sample in samples)
    labels = np.array([sample.label for sample in samples], np.int64) if LABEL_FIELD in facts.fields else None
    return ListedParts.whole(paths, labels=labels, classes=None if labels is None else facts.classes)
