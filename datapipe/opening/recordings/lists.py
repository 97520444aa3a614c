"""Lists of recordings: CSV and JSON lines, and those that lie in folders of LibriSpeech and Common Voice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from datapipe.containers.listing import is_audio_name
from datapipe.core.regular_files import read_bytes
from datapipe.errors import FormatError
from datapipe.sources.lists.parts import ListedParts, read_parts
from datapipe.sources.lists.rows import read_header

_TRANSCRIPTS = ".trans.txt"  # of LibriSpeech: "ID TEXT" in each line, of ID.flac beside it
_CLIPS, _VALIDATED = "clips", "validated.tsv"  # of Common Voice
_OF_COMMON_VOICE = ("client_id", "path", "sentence")


def list_in_folder(root: Path) -> str | None:
    """Return a list of recordings, or of what is said in them, that lies in a folder; None for a folder of files alone."""
    if os.path.isfile(root / _VALIDATED):
        return os.path.join(root, _VALIDATED)
    return next(iter(_transcripts(root)), None)


def read_list(path: Path, *, root: Path | None = None) -> ListedParts:
    """Return the utterances that a list names, or those of a folder of which `list_in_folder` names one.

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


def root_of(path: Path) -> Path:
    """Return what the paths in a list are relative to, or all recordings of such a folder lie in."""
    if path.is_dir():
        return path / _CLIPS if os.path.isfile(path / _VALIDATED) else path
    return path.parent / _CLIPS if _is_common_voice(path) else path.parent


def _is_common_voice(path: Path) -> bool:
    return path.suffix.lower() == ".tsv" and {*_OF_COMMON_VOICE} <= {*read_header(path)}


def _transcripts(root: Path) -> list[str]:
    """Return the lists of transcripts below a folder, by path; those of folders whose names begin with a dot are left out."""
    found = []
    for directory, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(directory, name) for name in names if name.endswith(_TRANSCRIPTS)]
    return sorted(found, key=os.fsencode)


def _of_librispeech(transcripts: Sequence[str]) -> ListedParts:
    paths, texts = [], []
    for path in transcripts:
        directory = os.path.dirname(os.path.abspath(path))
        known = {name.partition(".")[0]: name for name in os.listdir(directory) if is_audio_name(os.fsencode(name))}
        for number, line in enumerate(read_bytes(path).decode(errors="replace").splitlines(), 1):
            name, _, text = line.strip().partition(" ")
            if not name:
                continue
            if name not in known:
                raise FormatError(f"{path}: line {number}: {name} has no sound file beside it; get the data again")
            paths.append(os.path.join(directory, known[name]))
            texts.append(text)
    return ListedParts.whole(tuple(paths), texts=texts)
