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
from datapipe.containers.forms import AUDIO, AUDIO_SUFFIXES
from datapipe.containers.listing import is_audio_name
from datapipe.containers.look import Evidence, Look, Nature, Strength
from datapipe.core.checks import path_name
from datapipe.core.directories import names_in, walk_folders
from datapipe.core.printable import listed
from datapipe.core.remembering import remembered
from datapipe.errors import FormatError, OptionError
from datapipe.index.listed import Origin, Source
from datapipe.index.manifest import MANIFEST_NAME
from datapipe.index.media import MediaSource
from datapipe.index.recordings import RecordingEntry
from datapipe.index.utterances import Utterances, frames_at, text_array
from datapipe.opening.converted import kind_of_set
from datapipe.opening.media import holds_spoken, media_in_shards, parts_of_files, parts_of_folder, parts_to_convert
from datapipe.opening.recordings.indexing import look_at, open_recordings
from datapipe.opening.recordings.shards import open_shards
from datapipe.sources.file_tree import FileKind, classes_if_all, refuse_field_choices
from datapipe.sources.lists import refuse_class_from
from datapipe.sources.lists.parts import LIST_SUFFIXES, ListedParts, read_parts, what_it_lists
from datapipe.sources.lists.parts_source import PartsSource
from datapipe.sources.lists.rows import read_header, text_lines
from datapipe.sources.tars import media_held
from datapipe.stores.location import Place, is_url
from datapipe.stores.places import parse_place

KIND = FileKind(AUDIO_FIELD, is_audio_name, "sound files", ", ".join(AUDIO_SUFFIXES[:5]) + ", ...")
_KEPT = 16  # recordings that are known, whose parts often follow each other

_TRANSCRIPTS = ".trans.txt"  # of LibriSpeech: "ID TEXT" in each line, of ID.flac beside it
_BLANKS = " \t\r\n"
_CLIPS, _VALIDATED = "clips", "validated.tsv"  # of Common Voice
_OF_COMMON_VOICE = ("client_id", "path", "sentence")

AudioSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is sound, in files, in shards or in a list; None if it is none."""
    if look.nature is Nature.NOTHING:
        return None
    if kind_of_set(look) == "audio":
        return Evidence(f"it holds {MANIFEST_NAME}", Strength.DECISIVE)
    if what_it_lists(look) == AUDIO:
        return Evidence("it lists sound files")
    if media_held(look) == AUDIO or holds_spoken(look):
        return Evidence("its shards hold sound")
    if look.nature is Nature.FILE:
        return Evidence(f"its name ends with {look.suffix}") if is_audio_name(look.name) else None
    if look.nature is Nature.PATTERN:
        return Evidence("by the names that it matches") if all(map(is_audio_name, look.files)) else None
    if not look.holds(is_audio_name):
        return None
    if not look.is_stored and (
        _VALIDATED.encode() in look.files or look.holds(lambda name: name.endswith(_TRANSCRIPTS.encode()))
    ):
        return Evidence("sound files with a list of what is said in them")
    return Evidence("sound files in it, or in folders in it", Strength.LIKELY)


@remembered()
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
    if media_in_shards(name) == AUDIO:
        return open_shards(name)
    if is_url(name) and name.lower().endswith(LIST_SUFFIXES):
        raise OptionError(f"{name}: lists are read from disks; copy it here, and name the files in it by their URLs")
    is_prefix = is_url(name) and not is_audio_name(os.fsencode(name))
    if is_prefix or (os.path.isdir(name) and _list_in_folder(Path(name)) is None):
        return _opened(parts_of_folder(parse_place(name), AUDIO, KIND), name)
    if os.path.isdir(name) or name.lower().endswith(LIST_SUFFIXES):
        return _opened(_read_list(Path(name)), name)
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
    listed_in = _list_in_folder(path) if path.is_dir() else str(path) if path.name.lower().endswith(LIST_SUFFIXES) else None
    if path.is_dir() and listed_in is None:
        return classes_if_all(path, form, KIND)
    refuse_class_from(form)
    if listed_in is not None:
        root, parts = form.root or _root_of(path), _read_list(path, root=form.root)
    else:
        refuse_root(form)
        root, parts = parts_to_convert(path)
    return PartsSource(root, Path(listed_in or path), parts, form, KIND, locate=_located, text=SPOKEN)


def _located(path: str, origin: Origin, start: float, end: float) -> tuple[int, int] | str:
    """Return about which bytes a part of a recording needs, or why it has none: its share of the file."""
    entry = _looked_at(path, origin.mtime_ns)
    if entry.problem:
        return entry.problem
    rate, num = np.array([entry.rate]), np.array([entry.num_frames])
    first, after = (int(frames_at(np.array([one]), rate, num)[0]) for one in (start, end))
    if first >= after:
        return f"it has no sound then: it ends at {entry.num_frames / entry.rate:.3f} s"
    begin = origin.nbytes * first // entry.num_frames
    return begin, max(begin + 1, origin.nbytes * after // entry.num_frames)


@functools.lru_cache(maxsize=_KEPT)
def _looked_at(path: str, mtime_ns: int) -> RecordingEntry:
    return look_at(MediaSource(path))


def _list_in_folder(root: Path) -> str | None:
    """Return a list of recordings, or of what is said in them, that lies in a folder; None for a folder of files alone."""
    if os.path.isfile(root / _VALIDATED):
        return os.path.join(root, _VALIDATED)
    return next(iter(_transcripts(root)), None)


def _read_list(path: Path, *, root: Path | None = None) -> ListedParts:
    """Return the utterances that a list names, or those of a folder of which `_list_in_folder` names one.

    `root`: what paths are relative to, where it is not what the list's form says. Raises as `read_parts` does.
    """
    if path.is_dir():
        transcripts = _transcripts(path)
        if not os.path.isfile(path / _VALIDATED):
            return _of_librispeech(transcripts)
        path = path / _VALIDATED
    is_common_voice = _is_common_voice(path)
    root = root or (path.parent / _CLIPS if is_common_voice else None)
    return read_parts(path, root=root, has_quotes=not is_common_voice)  # quotes in Common Voice are those of sentences


def _root_of(path: Path) -> Path:
    """Return what the paths in a list are relative to, or all recordings of such a folder lie in."""
    if path.is_dir():
        return path / _CLIPS if os.path.isfile(path / _VALIDATED) else path
    return path.parent / _CLIPS if _is_common_voice(path) else path.parent


def _is_common_voice(path: Path) -> bool:
    return path.suffix.lower() == ".tsv" and {*_OF_COMMON_VOICE} <= {*read_header(path)}


def _transcripts(root: Path) -> list[str]:
    """Return the lists of transcripts below a folder, by path; those of folders whose names begin with a dot are left out."""
    found = []
    for directory, _, names in walk_folders(root):
        found += [os.path.join(directory, name) for name in names if name.endswith(_TRANSCRIPTS)]
    return sorted(found, key=os.fsencode)


def _of_librispeech(transcripts: Sequence[str]) -> ListedParts:
    paths, texts = [], []
    for path in transcripts:
        directory = os.path.dirname(os.path.abspath(path))
        known = {name.partition(".")[0]: name for name in names_in(directory) if is_audio_name(os.fsencode(name))}
        for number, line in enumerate(text_lines(Path(path)), 1):
            name, _, text = line.strip(_BLANKS).partition(" ")
            if not name:
                continue
            if name not in known:
                raise FormatError(f"{path}: line {number}: {name} has no sound file beside it; get the data again")
            paths.append(os.path.join(directory, known[name]))
            texts.append(text)
    return ListedParts.whole(tuple(paths), texts=texts)
