"""Videos in shards: members of tars, named `KEY.mp4`, with `KEY.cls` beside, where they lie."""

from __future__ import annotations

import numpy as np

from datapipe.codecs.field_values import FieldKind
from datapipe.containers.field_names import is_video
from datapipe.containers.listing import is_image_name, is_video_name
from datapipe.containers.tar.scanner import begins_with
from datapipe.core.printable import listed
from datapipe.errors import OptionError
from datapipe.index.clips import VideoParts
from datapipe.index.media import MediaSource
from datapipe.opening.media import are_shards, look_up_all
from datapipe.opening.samples import open_index
from datapipe.opening.videos.indexing import open_videos


def are_video_shards(name: str) -> bool:
    """Return True for a path, a pattern or a URL of tars, or of a folder or prefix with such, whose first members are videos."""
    return are_shards(name, {"tar": lambda tar: begins_with(tar, is_video_name, others=is_image_name)})


def open_shards(name: str) -> VideoParts:
    """Return the videos of shards, in order, a part each, with their labels.

    Raises what `open_index` raises, and OptionError for samples of several videos, or ones that do not lie there as they are.
    """
    index = open_index(name)
    fields = [one.name for one in index.manifest.fields if is_video(one)]
    if len(fields) != 1:
        raise OptionError(f"{name}: each sample must have one video, and they have {listed(fields, most=5) or 'none in common'}")
    sources: list[MediaSource] = []
    labels = []
    for entries in look_up_all(index, fields[0]):
        extents = entries.extents
        if extents.codecs is not None and any(extents.codecs):
            raise OptionError(f"{name}: its videos do not lie there as they are; convert it with --to webdataset")
        places = zip(extents.paths, extents.offset.tolist(), extents.nbytes.tolist(), strict=True)
        sources += [MediaSource(*place) for place in places]
        labels.append(entries.labels)
    videos = open_videos(sources, where=name)
    if not any(one.kind is FieldKind.LABEL for one in index.manifest.fields):
        return VideoParts.whole(videos)
    return VideoParts.whole(videos, np.concatenate(labels), index.manifest.classes)
