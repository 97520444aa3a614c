"""The sound that a path means: the utterances in it, and samples of a conversion. A folder, files, tars, a list, LibriSpeech."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from datapipe.codecs.audio.library import import_soundfile
from datapipe.containers.field_names import AUDIO_FIELD, SPOKEN
from datapipe.containers.form import Form, on_disk, refuse_root
from datapipe.containers.forms import AUDIO
from datapipe.containers.listing import AUDIO_SUFFIXES, is_audio_name
from datapipe.core.checks import path_name
from datapipe.core.printable import listed
from datapipe.errors import OptionError
from datapipe.index.listed import Origin, Source
from datapipe.index.media import MediaSource
from datapipe.index.recordings import RecordingEntry
from datapipe.index.utterances import Utterances, frames_at, text_array
from datapipe.opening.media import parts_of_files, parts_of_folder, parts_to_convert
from datapipe.opening.recordings.indexing import look_at, open_recordings
from datapipe.opening.recordings.lists import list_in_folder, read_list, root_of
from datapipe.opening.recordings.shards import are_sound_shards, open_shards
from datapipe.sources.file_tree import FileKind, classes_if_all, refuse_field_choices
from datapipe.sources.lists import refuse_class_from
from datapipe.sources.lists.parts import LIST_SUFFIXES, ListedParts
from datapipe.sources.lists.parts_source import PartsSource
from datapipe.stores.location import Place, is_url, parse_place

KIND = FileKind(AUDIO_FIELD, is_audio_name, "sound files", ", ".join(AUDIO_SUFFIXES[:5]) + ", ...")
_KEPT = 16  # recordings that are known, whose parts often follow each other

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
        return _opened(parts_of_files(names, KIND), listed(names, most=1))
    name = path_name(source, "the path to the sound files")
    if are_sound_shards(name):
        return open_shards(name)
    if is_url(name) and name.lower().endswith(LIST_SUFFIXES):
        raise OptionError(f"{name}: lists are read from disks; copy it here, and name the files in it by their URLs")
    is_prefix = is_url(name) and not is_audio_name(os.fsencode(name))
    if is_prefix or (os.path.isdir(name) and list_in_folder(Path(name)) is None):
        return _opened(parts_of_folder(parse_place(name), AUDIO, KIND), name)
    if os.path.isdir(name) or name.lower().endswith(LIST_SUFFIXES):
        return _opened(read_list(Path(name)), name)
    return _opened(parts_of_files([name], KIND), name)


def _opened(parts: ListedParts, where: str) -> Utterances:
    recordings = open_recordings([MediaSource(path) for path in parts.paths], where=where)
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


def open_source(place: Place, form: Form) -> Source:
    """Open a folder of sound files, LibriSpeech, Common Voice, a file, a pattern of files, or a list of parts, CSV or JSON lines.

    Raises OptionError for choices that have no effect on these, DependencyError without soundfile, and what reading raises.
    """
    import_soundfile()  # now, rather than for each file
    path = on_disk(place, form)
    refuse_field_choices(form)
    listed_in = list_in_folder(path) if path.is_dir() else str(path) if path.name.lower().endswith(LIST_SUFFIXES) else None
    if path.is_dir() and listed_in is None:
        return classes_if_all(path, form, KIND)
    refuse_class_from(form)
    if listed_in is not None:
        root, parts = form.root or root_of(path), read_list(path, root=form.root)
    else:
        refuse_root(form)
        root, parts = parts_to_convert(path)
    return PartsSource(root, Path(listed_in or path), parts, form, KIND, locate=_located, text=SPOKEN)


def _located(path: str, origin: Origin, start: float, end: float) -> tuple[int, int] | str:
    """Return about which bytes a part of a recording needs, or why it has none: its share of the file."""
    entry = _looked_at(path, origin.mtime_ns)
    if entry.problem:
        return entry.problem.removeprefix(f"{path}: ")
    rate, num = np.array([entry.rate]), np.array([entry.num_frames])
    first, after = (int(frames_at(np.array([one]), rate, num)[0]) for one in (start, end))
    if first >= after:
        return f"it has no sound then: it ends at {entry.num_frames / entry.rate:.3f} s"
    begin = origin.nbytes * first // entry.num_frames
    return begin, max(begin + 1, origin.nbytes * after // entry.num_frames)


@functools.lru_cache(maxsize=_KEPT)
def _looked_at(path: str, mtime_ns: int) -> RecordingEntry:
    return look_at(MediaSource(path))
