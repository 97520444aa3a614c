"""Recordings as samples of a conversion: those of a folder, files, LibriSpeech, Common Voice, or the parts that a list names."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from datapipe.codecs.audio.library import import_soundfile
from datapipe.containers.field_names import AUDIO_FIELD, SPOKEN
from datapipe.containers.form import Form, on_disk, refuse_root
from datapipe.containers.listing import AUDIO_SUFFIXES, is_audio_name
from datapipe.index.listed import Origin, Source
from datapipe.index.media import MediaSource
from datapipe.index.recordings import RecordingEntry
from datapipe.index.utterances import frames_at
from datapipe.opening.media import parts_to_convert
from datapipe.opening.recordings.indexing import look_at
from datapipe.opening.recordings.lists import list_in_folder, read_list, root_of
from datapipe.sources.file_tree import FileKind, classes_if_all, refuse_field_choices
from datapipe.sources.lists import refuse_class_from
from datapipe.sources.lists.parts import LIST_SUFFIXES
from datapipe.sources.lists.parts_source import PartsSource
from datapipe.stores.location import Place

KIND = FileKind(AUDIO_FIELD, is_audio_name, "sound files", ", ".join(AUDIO_SUFFIXES[:5]) + ", ...")
_KEPT = 16  # recordings that are known, whose parts often follow each other


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
