"""Sound in tars, as WebDataset has it: members `KEY.flac`, with `KEY.txt` and `KEY.cls` beside, where they lie."""

from __future__ import annotations

import glob
import itertools
import os

import numpy as np

from datapipe.codecs.field_values import FieldKind
from datapipe.containers.formats import container_of
from datapipe.containers.listing import AUDIO_SUFFIXES, is_audio_name, is_image_name, is_video_name
from datapipe.containers.mapped import byte_source
from datapipe.containers.opening import open_index
from datapipe.containers.recordings.indexing import open_recordings
from datapipe.containers.tar.scanner import scan_members
from datapipe.core.printable import listed
from datapipe.errors import FormatError, OptionError
from datapipe.fetch.local import LocalFiles
from datapipe.index.entries import Extents
from datapipe.index.recordings import RecordingSource
from datapipe.index.sample_index import SampleIndex
from datapipe.index.utterances import Utterances, text_array

_LOOKED_AT = 32  # members of the first tar
_AT_ONCE = 1 << 16  # samples that are looked up
_TEXT = "txt"  # the field of what is said


def are_shards(name: str) -> bool:
    """Return True for a path or a pattern of tars, or a folder with such, whose first members are sound alone."""
    if os.path.isdir(name):
        found = [os.path.join(name, one) for one in sorted(os.listdir(name)) if container_of(one) == "tar"]
    else:
        found = [name] if os.path.isfile(name) else sorted(glob.glob(name))
    first = next((path for path in found if container_of(os.path.basename(path)) == "tar"), None)
    return first is not None and _holds_sound(first)


def _holds_sound(tar: str) -> bool:
    """Return True if there are sound files alone among the first members of a tar; one that is none is left to others."""
    is_found = False
    try:
        with byte_source(tar, "a tar") as data:
            for member in itertools.islice(scan_members(data, tar), _LOOKED_AT):
                if is_image_name(member.name) or is_video_name(member.name):
                    return False
                is_found = is_found or is_audio_name(member.name)
    except FormatError:
        return is_found
    return is_found


def open_shards(name: str) -> Utterances:
    """Return the utterances of shards, in order, one for each sample, with their labels and texts.

    Raises what `open_index` raises, and OptionError for samples of several sound files, or of ones that are stored otherwise.
    """
    index = open_index(name)
    assert isinstance(index, SampleIndex)
    kinds = {one.name: one.kind for one in index.manifest.fields}
    fields = [one for one in kinds if f".{one.rpartition('_')[2]}" in AUDIO_SUFFIXES]
    if len(fields) != 1:
        raise OptionError(
            f"{name}: each sample must have one sound file, and they have {listed(fields, most=5) or 'none in common'}"
        )
    has_texts, has_labels = _TEXT in kinds, FieldKind.LABEL in kinds.values()
    files = LocalFiles()
    sources: list[RecordingSource] = []
    labels, texts = [], []
    for first in range(0, len(index), _AT_ONCE):
        ids = index.ids(np.arange(first, min(first + _AT_ONCE, len(index)), dtype=np.int64))
        entries = index.look_up(ids, fields[0])
        sources += _sources(entries.extents, name)
        labels.append(entries.labels)
        if has_texts:
            extents = index.look_up(ids, _TEXT).extents
            texts += [files.read(extents, row).decode(errors="replace").strip() for row in range(len(extents))]
    return Utterances.of(
        open_recordings(sources, where=name),
        np.arange(len(sources)),
        where=name,
        labels=np.concatenate(labels) if has_labels else None,
        classes=index.manifest.classes if has_labels else None,
        texts=text_array(texts) if has_texts else None,
    )


def _sources(extents: Extents, name: str) -> list[RecordingSource]:
    if extents.codecs is not None and any(extents.codecs):
        raise OptionError(f"{name}: its sound does not lie there as it is; convert it with --to webdataset")
    places = zip(extents.paths, extents.offset.tolist(), extents.nbytes.tolist(), strict=True)
    return [RecordingSource(*place) for place in places]
