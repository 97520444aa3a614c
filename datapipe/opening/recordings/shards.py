"""Sound in shards, where it lies: tars of WebDataset (`KEY.flac`, `KEY.txt` and `KEY.cls`), and Parquet of Hugging Face."""

from __future__ import annotations

import itertools
import os

import numpy as np

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.field_names import SPOKEN, is_audio
from datapipe.containers.first_shard import first_shard
from datapipe.containers.formats import container_of
from datapipe.containers.listing import is_audio_name, is_image_name, is_video_name
from datapipe.containers.mapped import byte_source
from datapipe.containers.parquet.footer import read_footer
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.containers.tar.scanner import begins_with
from datapipe.core.printable import listed
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.fetch.files import Files, open_files
from datapipe.index.entries import Extents
from datapipe.index.recordings import RecordingSource
from datapipe.index.sample_index import SampleIndex
from datapipe.index.utterances import Utterances, text_array
from datapipe.opening.recordings.indexing import open_recordings
from datapipe.opening.recordings.unpacking import unpacked
from datapipe.opening.samples import open_index
from datapipe.sources.lists.parts import TEXTS

_AT_ONCE = 1 << 16  # samples that are looked up
_TEXTS = (SPOKEN.name, *TEXTS)  # the field of what is said: the first that there is
_COLUMNS = ("audio.bytes", "audio")  # of Parquet


def are_shards(name: str) -> bool:
    """Return True for tars, by path, pattern, folder or URL, whose first members are sound alone, and for Parquet with sound."""
    try:
        first = first_shard(name, _HELD_IN)
        return first is not None and _HELD_IN[container_of(os.path.basename(first)) or ""](first)
    except (FormatError, MissingDataError):  # of a URL; what reads it says what is wrong
        return False


def _holds_sound(tar: str) -> bool:
    """Return True if there are sound files alone among the first members of a tar; one that is none is left to others."""
    return begins_with(tar, is_audio_name, others=lambda name: is_image_name(name) or is_video_name(name))


def _has_column(parquet: str) -> bool:
    """Return True if a Parquet file has sound as Hugging Face's datasets write it; one that is none is left to others."""
    try:
        with byte_source(parquet, "Parquet") as data:
            columns = read_footer(data).columns
            return any(one.path in _COLUMNS and one.physical_type == "BYTE_ARRAY" and not one.is_text for one in columns)
    except (FormatError, DamagedError):
        return False


_HELD_IN = {"tar": _holds_sound, "parquet": _has_column}


def open_shards(name: str) -> Utterances:
    """Return the utterances of shards, in order, one for each sample, with their labels and texts.

    Raises what `open_index` raises, and OptionError for samples of several sound files, or of ones that are stored otherwise.
    """
    index = open_index(name)
    assert isinstance(index, SampleIndex)
    audio, text = spoken_fields(index.manifest.fields, name)
    has_labels = any(one.kind is FieldKind.LABEL for one in index.manifest.fields)
    files = open_files(index)
    sources: list[RecordingSource] = []
    labels, texts = [], []
    for first in range(0, len(index), _AT_ONCE):
        ids = index.ids(np.arange(first, min(first + _AT_ONCE, len(index)), dtype=np.int64))
        entries = index.look_up(ids, audio)
        sources += _sources(entries.extents, files, audio)
        labels.append(entries.labels)
        if text is not None:
            extents = index.look_up(ids, text).extents
            texts += [_text(value, name) for value in files.read_each(extents, range(len(extents)))]
    return Utterances.of(
        open_recordings(sources, where=name),
        np.arange(len(sources)),
        where=name,
        labels=np.concatenate(labels) if has_labels else None,
        classes=index.manifest.classes if has_labels else None,
        texts=None if text is None else text_array(texts),
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


def _text(value: bytes | Exception, where: str) -> str:
    if isinstance(value, Exception):
        raise FormatError(f"{where}: what is said cannot be read: {value}; get the shards again") from value
    return value.decode(errors="replace").strip()


def _sources(extents: Extents, files: Files, column: str) -> list[RecordingSource]:
    """Return where recordings lie: those that are compressed with others, unpacked. Those of a shard follow each other."""
    sources: list[RecordingSource] = []
    for path, group in itertools.groupby(range(len(extents)), extents.paths.__getitem__):
        rows = [*group]
        if extents.codecs is not None and any(extents.codecs[row] for row in rows):
            sources += unpacked(extents, rows, files, column)
        else:
            sources += [RecordingSource(path, int(extents.offset[row]), int(extents.nbytes[row])) for row in rows]
    return sources
