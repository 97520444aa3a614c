"""Python datasets of other libraries: find the files that they read, so that datapipe can read these directly."""

from __future__ import annotations

from datapipe.datasets.lerobot import EpisodeSource, episode_source
from datapipe.datasets.seen import DatasetFiles, Original, converted_index, see_through
from datapipe.datasets.webdataset_pipelines import webdataset_stream

__all__ = [
    "DatasetFiles",
    "EpisodeSource",
    "Original",
    "converted_index",
    "episode_source",
    "see_through",
    "webdataset_stream",
]
