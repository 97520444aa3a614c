"""Find the sound files that a path means, and the utterances in them: a folder, files, tars, a list, LibriSpeech."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.file_tree import FileKind, FolderSource
from datapipe.containers.form import ClassFrom, Form
from datapipe.containers.listing import AUDIO_SUFFIXES, is_audio_name
from datapipe.containers.lists.parts import LIST_SUFFIXES, read_parts
from datapipe.containers.lists.rows import read_header
from datapipe.containers.recordings.indexing import open_recordings
from datapipe.containers.recordings.shards import are_shards, open_shards
from datapipe.core.checks import path_name
from datapipe.core.printable import listed
from datapipe.core.regular_files import read_bytes
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.listed import ScanNotes, Workspace
from datapipe.index.recordings import RecordingSource
from datapipe.index.utterances import Utterances, text_array
from datapipe.stores.location import is_url

AudioSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_TRANSCRIPTS = ".trans.txt"  # of LibriSpeech: "ID TEXT" in each line, of ID.flac beside it
_CLIPS, _VALIDATED = "clips", "validated.tsv"  # of Common Voice
_OF_COMMON_VOICE = ("client_id", "path", "sentence")


def open_utterances(source: AudioSource) -> Utterances:
    """Return the utterances that a source means, in order.

    `source`: a folder of sound files, whose top folders are classes if all of them lie in such; one of LibriSpeech, or of Common
    Voice; tars, as WebDataset has them; a file, a glob pattern or a list of files; or a list of utterances, CSV or JSON lines,
    with a path, and start, end (seconds), label and text if there are any. Raises MissingDataError, StorageError, FormatError or
    OptionError.
    """
    if not isinstance(source, (str, os.PathLike)):
        names = [path_name(one, "the path to a sound file") for one in source]
        if not names:
            raise OptionError("the list of sound files is empty; name at least one")
        return _of_files([file for name in names for file in _matching(name)], listed(names, most=1))
    name = path_name(source, "the path to the sound files")
    if is_url(name):
        raise OptionError(f"{name}: sound is read from local disks; copy it here")
    if are_shards(name):
        return open_shards(name)
    if os.path.isdir(name):
        if os.path.isfile(os.path.join(name, _VALIDATED)):
            return _of_list(Path(name, _VALIDATED))
        transcripts = _transcripts(Path(name))
        return _of_librispeech(Path(name), transcripts) if transcripts else _of_folder(Path(name))
    return _of_list(Path(name)) if name.lower().endswith(LIST_SUFFIXES) else _of_files(_matching(name), name)


def _matching(name: str) -> list[str]:
    """Return the files that a path or pattern names, by name."""
    if os.path.exists(name) or not glob.has_magic(name):
        return [name]
    found = sorted(glob.glob(name, recursive=True))
    if not found:
        raise MissingDataError(f"{name}: no file matches")
    return found


def _of_files(paths: Sequence[str], where: str) -> Utterances:
    for path in paths:
        if not os.path.isfile(path):
            raise MissingDataError(f"{path}: is no file; name sound files, or their folder")
    recordings = open_recordings([RecordingSource(os.path.abspath(path)) for path in paths], where=where)
    return Utterances.of(recordings, np.arange(len(paths)), where=where)


def _of_folder(root: Path) -> Utterances:
    kind = FileKind(FieldSpec("audio", FieldKind.BYTES), is_audio_name, "sound files", ", ".join(AUDIO_SUFFIXES[:5]) + ", ...")
    has_classes = not any(is_audio_name(os.fsencode(name)) for name in os.listdir(root)) and any(
        path.is_dir() and not path.name.startswith(".") for path in root.iterdir()
    )
    folder = FolderSource(root, Form("image-folder", class_from=ClassFrom.FOLDER if has_classes else ClassFrom.NONE), kind)
    samples = sorted(folder.scan(ScanNotes(), Workspace(root, None)), key=lambda one: (one.place, one.directory, one.name))
    facts = folder.facts()
    if not samples:
        raise MissingDataError(f"{root}: {facts.nothing}; {facts.remedy}")
    paths = [os.path.join(os.fsencode(root.absolute()), sample.source) for sample in samples]
    recordings = open_recordings([RecordingSource(os.fsdecode(path)) for path in paths], where=str(root))
    labels = np.array([sample.label for sample in samples], np.int64) if has_classes else None
    classes = facts.classes if has_classes else None
    return Utterances.of(recordings, np.arange(len(paths)), where=str(root), labels=labels, classes=classes)


def _of_list(path: Path) -> Utterances:
    """Return the utterances of a list. Common Voice's are in `clips` beside it, and quotes in them are those of sentences."""
    is_common_voice = path.suffix.lower() == ".tsv" and {*_OF_COMMON_VOICE} <= {*read_header(path)}
    root = path.parent / _CLIPS if is_common_voice else None
    parts = read_parts(path, root=root, has_quotes=not is_common_voice)
    return Utterances.of(
        open_recordings([RecordingSource(name) for name in parts.paths], where=str(path)),
        parts.file,
        where=str(path),
        start=parts.start,
        end=parts.end,
        labels=parts.labels,
        classes=parts.classes,
        texts=None if parts.texts is None else text_array(parts.texts),
    )


def _transcripts(root: Path) -> list[str]:
    """Return the lists of transcripts below a folder, by path; those of folders whose names begin with a dot are left out."""
    found = []
    for directory, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(directory, name) for name in names if name.endswith(_TRANSCRIPTS)]
    return sorted(found, key=os.fsencode)


def _of_librispeech(root: Path, transcripts: Sequence[str]) -> Utterances:
    sources, texts = [], []
    for path in transcripts:
        directory = os.path.dirname(os.path.abspath(path))
        known = {name.partition(".")[0]: name for name in os.listdir(directory) if is_audio_name(os.fsencode(name))}
        for number, line in enumerate(read_bytes(path).decode(errors="replace").splitlines(), 1):
            name, _, text = line.strip().partition(" ")
            if not name:
                continue
            if name not in known:
                raise FormatError(f"{path}: line {number}: {name} has no sound file beside it; get the data again")
            sources.append(RecordingSource(os.path.join(directory, known[name])))
            texts.append(text)
    recordings = open_recordings(sources, where=str(root))
    return Utterances.of(recordings, np.arange(len(sources)), where=str(root), texts=text_array(texts))
