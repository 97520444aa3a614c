"""Find the sound files that a path means, and the utterances in them: a folder, files, tars, a list, LibriSpeech."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from datapipe.containers.forms import AUDIO
from datapipe.containers.listing import is_audio_name
from datapipe.core.checks import path_name
from datapipe.core.printable import listed
from datapipe.errors import OptionError
from datapipe.index.media import MediaSource
from datapipe.index.utterances import Utterances, text_array
from datapipe.opening.media import parts_of_files, parts_of_folder
from datapipe.opening.recordings.indexing import open_recordings
from datapipe.opening.recordings.lists import list_in_folder, read_list
from datapipe.opening.recordings.shards import are_sound_shards, open_shards
from datapipe.opening.recordings.source import KIND
from datapipe.sources.lists.parts import LIST_SUFFIXES, ListedParts
from datapipe.stores.location import is_url, parse_place

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
