"""Videos in shards: members of tars, named `KEY.mp4`, with `KEY.cls` beside, where they lie."""

from __future__ import annotations

import numpy as np

from datapipe.codecs.field_values import NO_LABEL, FieldKind
from datapipe.containers.field_names import is_video
from datapipe.containers.first_shard import first_shard
from datapipe.containers.listing import is_image_name, is_video_name
from datapipe.containers.tar.scanner import begins_with
from datapipe.core.printable import listed
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.clips import VideoParts
from datapipe.index.videos import VideoSource
from datapipe.opening.samples import open_index
from datapipe.opening.videos.indexing import open_videos

_AT_ONCE = 1 << 16  # samples that are looked up


def are_shards(name: str) -> bool:
    """Return True for a path, a pattern or a URL of tars, or of a folder or prefix with such, whose first members are videos."""
    try:
        first = first_shard(name, ("tar",))
        return first is not None and begins_with(first, is_video_name, others=is_image_name)
    except (FormatError, MissingDataError):  # of a URL; what reads it says what is wrong
        return False


def open_shards(name: str) -> VideoParts:
    """Return the videos of shards, in order, a part each, with their labels.

    Raises what `open_index` raises, and OptionError for samples of several videos, or ones that do not lie there as they are.
    """
    index = open_index(name)
    fields = [one.name for one in index.manifest.fields if is_video(one)]
    if len(fields) != 1:
        raise OptionError(f"{name}: each sample must have one video, and they have {listed(fields, most=5) or 'none in common'}")
    sources: list[VideoSource] = []
    labels = []
    for first in range(0, len(index), _AT_ONCE):
        ids = index.ids(np.arange(first, min(first + _AT_ONCE, len(index)), dtype=np.int64))
        entries = index.look_up(ids, fields[0])
        extents = entries.extents
        if extents.codecs is not None and any(extents.codecs):
            raise OptionError(f"{name}: its videos do not lie there as they are; convert it with --to webdataset")
        places = zip(extents.paths, extents.offset.tolist(), extents.nbytes.tolist(), strict=True)
        sources += [VideoSource(*place) for place in places]
        labels.append(entries.labels)
    videos = open_videos(sources, where=name)
    num = len(sources)
    is_labelled = any(one.kind is FieldKind.LABEL for one in index.manifest.fields)
    return VideoParts(
        videos,
        np.arange(num, dtype=np.int64),
        np.zeros(num),
        np.full(num, np.inf),
        np.concatenate(labels) if is_labelled else np.full(num, NO_LABEL, np.int64),
        index.manifest.classes if is_labelled else None,
    )
