"""A few clips by themselves, without a loader: what a batch of them would hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.fetch.local import LocalFiles
from datapipe.fetch.row_groups import RowGroups
from datapipe.index.clips import AnyClips
from datapipe.kinds.clips.decoding import ClipDecoder, decoded_dtype, frames_of, write_depth
from datapipe.kinds.clips.settings import ClipSettings
from datapipe.kinds.clips.table_images import TableImages
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe


def clips_alone(index: AnyClips, settings: ClipSettings, clips: NDArray[np.int64]) -> dict[str, Any]:
    """Return the usual fields of clips, in the layout "BTCHW", uint8 and without transforms. Each clip is decoded by itself.

    Raises OptionError if videos differ in size, and the error of a clip that is bad.
    """
    recipe = Recipe.of(None)
    images = TableImages(index, RowGroups())
    decoder = ClipDecoder(index.cameras, index.videos, recipe.geometry_alone(), LocalFiles(), settings.resize, images=images)
    made: dict[str, Any] = {}
    for number, camera in enumerate(index.cameras):
        height, width = recipe.check_equal_sizes(camera.size, such_as="the videos differ in size")
        shape = (len(clips), camera.num_frames, height, width, camera.channels)
        pixels = torch.empty(shape, dtype=decoded_dtype(camera))
        for place in range(len(clips)):
            one = clips[place : place + 1]
            for reason in decoder.decode(
                number, frames_of(index, one, number), Draws(0, 0, one), pixels[place : place + 1]
            ).values():
                raise reason
        if camera.depth is not None:
            codes, pixels = pixels, torch.empty(shape)
            write_depth(codes.flatten(0, 1), camera.depth, pixels.flatten(0, 1))
        video = pixels.permute(0, 1, 4, 2, 3)
        made[camera.name] = video if camera.has_time else video.squeeze(1)
    for name in index.columns:
        values = index.values(name, clips)
        made[name] = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    return made
