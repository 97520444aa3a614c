"""Sound in shards, where it lies: tars of WebDataset (`KEY.flac`, `KEY.txt` and `KEY.cls`), and Parquet of Hugging Face."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldKind, FieldSpec, value_of
from datapipe.containers.field_names import SPOKEN, is_audio
from datapipe.containers.foreign import cached_home, index_stamp, progress, stamp_of, write_stamp
from datapipe.containers.form import Form
from datapipe.containers.forms import AUDIO, FORMS
from datapipe.core import atomic
from datapipe.core.kept_arrays import keep_array, kept_array
from datapipe.core.printable import listed, size_text
from datapipe.core.user_cache import UNPACKED, index_directory, one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import DecodeError, IntegrityError, OptionError, StorageError
from datapipe.fetch.files import Files, open_files
from datapipe.index.entries import Extents
from datapipe.index.media import MediaSource
from datapipe.index.utterances import Utterances, text_array
from datapipe.opening.media import form_of_shards, look_up_all
from datapipe.opening.recordings.indexing import open_recordings
from datapipe.opening.samples import open_index
from datapipe.sources.lists.parts import TEXTS

_SIZES = "sizes.npy"  # of what is unpacked
_VALUES_AT_ONCE = 64
_TEXTS = (SPOKEN.name, *TEXTS)  # the field of what is said: the first that there is


def open_shards(name: str) -> Utterances:
    """Return the utterances of shards, in order, one for each sample, with their labels and texts.

    Raises what `open_index` raises, and OptionError for samples of several sound files, or of ones that are stored otherwise.
    """
    form = form_of_shards(name, FORMS[AUDIO].kind)
    index = open_index(name, None if form is None else Form(form))
    audio, text = spoken_fields(index.manifest.fields, name)
    has_labels = any(one.kind is FieldKind.LABEL for one in index.manifest.fields)
    files = open_files(index)
    sources: list[MediaSource] = []
    labels = []
    texts: list[str] = []
    unread: dict[int, str] = {}
    for entries in look_up_all(index, audio):
        sources += _sources(entries.extents, files, audio)
        labels.append(entries.labels)
        if text is not None:
            extents = index.look_up(entries.ids, text).extents
            for value in files.read_each(extents, range(len(extents))):
                said, problem = _text(value)
                if problem:
                    unread[len(texts)] = f"{text}: {problem}"
                texts.append(said)
    return Utterances.of(
        open_recordings(sources, where=name),
        np.arange(len(sources)),
        where=name,
        labels=np.concatenate(labels) if has_labels else None,
        classes=index.manifest.classes if has_labels else None,
        texts=None if text is None else text_array(texts),
        named=lambda number: index.describe(int(index.ids(np.array([number], np.int64))[0])),
        unread=unread,
    )


def spoken_fields(fields: tuple[FieldSpec, ...], where: str) -> tuple[str, str | None]:
    """Return which of the fields of shards is the sound, and which says what is said in it, if one does.

    Raises OptionError for no fields of sound, or several.
    """
    found = [one.name for one in fields if is_audio(one)]
    if len(found) != 1:
        has = listed(found, most=5) or "none in common"
        raise OptionError(f"{where}: each sample must have one sound file, and they have {has}")
    texts = {one.name for one in fields if one.kind is FieldKind.TEXT}
    return found[0], next((name for name in _TEXTS if name in texts), None)


def _text(value: bytes | Exception) -> tuple[str, str]:
    """Return what is said, and why that cannot be read ("": it can)."""
    try:
        if isinstance(value, Exception):
            raise value
        return value_of(FieldKind.TEXT, value).strip(), ""
    except (DecodeError, IntegrityError) as exc:
        return "", str(exc)


def _sources(extents: Extents, files: Files, column: str) -> list[MediaSource]:
    """Return where recordings lie: those that are compressed with others, unpacked. Those of a shard follow each other."""
    sources: list[MediaSource] = []
    for path, group in itertools.groupby(range(len(extents)), extents.paths.__getitem__):
        rows = [*group]
        if extents.codecs is not None and any(extents.codecs[row] for row in rows):
            sources += _unpacked(extents, rows, files, column)
        else:
            sources += [MediaSource(path, int(extents.offset[row]), int(extents.nbytes[row])) for row in rows]
    return sources


def _unpacked(extents: Extents, rows: Sequence[int], files: Files, column: str) -> list[MediaSource]:
    """Return where the recordings of one shard lie, unpacked in the user's cache, so that each can be read at random.

    They are unpacked now, or were in an earlier run, for as long as the shard is the same.
    `rows`: those of the extents that lie in the shard. `column`: the field's name. A value that cannot be read becomes an empty
    recording. Raises StorageError if there is no room for them.
    """
    path, first = extents.paths[rows[0]], int(extents.offset[rows[0]])
    home = index_directory(UNPACKED, cached_home("recordings", path, column, str(first)).name)
    data = home / os.path.basename(path)
    stamp = {"shard": [*stamp_of(path)], "rows": len(rows)}
    with one_at_a_time(home / ".lock"):
        sizes = _kept(home, data) if index_stamp(home).items() >= stamp.items() else None
        if sizes is None:
            reason = f"compressed sound is unpacked once, into {home}, for as long as the shard does not change"
            with reported_wait(f"the sound of {path}", reason):
                sizes = _write(data, extents, rows, files)
            keep_array(home / _SIZES, sizes)
            write_stamp(home, stamp)
    ends = np.cumsum(sizes)
    return [MediaSource(str(data), *place) for place in zip((ends - sizes).tolist(), sizes.tolist(), strict=True)]


def _kept(home: Path, data: Path) -> NDArray[np.int64] | None:
    """Return the sizes of what is unpacked; None if it is not there, or not whole."""
    with contextlib.suppress(OSError, ValueError):
        sizes: NDArray[np.int64] = kept_array(home / _SIZES)
        if sizes.ndim == 1 and sizes.dtype == np.int64 and int(sizes.sum()) == data.stat().st_size:
            return sizes
    return None


def _write(data: Path, extents: Extents, rows: Sequence[int], files: Files) -> NDArray[np.int64]:
    """Write the values one after the other; return the (n,) bytes of each."""
    path, needed = extents.paths[rows[0]], int(extents.nbytes[rows].sum())
    free = shutil.disk_usage(data.parent).free
    if needed > free:
        raise StorageError(
            f"{path}: its sound is compressed, and is unpacked into {data.parent}, which needs about {size_text(needed)} and has"
            f" {size_text(free)}; set XDG_CACHE_HOME, or convert it (datapipe convert) to webdataset"
        )
    with atomic.atomic_writer(data, mode=0o600) as file:
        values = progress(_values(extents, rows, files), path, total=len(rows), unit="recording")
        sizes = [file.write(value) for value in values]
    return np.array(sizes, np.int64)


def _values(extents: Extents, rows: Sequence[int], files: Files) -> Iterator[bytes]:
    for first in range(0, len(rows), _VALUES_AT_ONCE):
        for value in files.read_each(extents, rows[first : first + _VALUES_AT_ONCE]):
            yield b"" if isinstance(value, Exception) else value
