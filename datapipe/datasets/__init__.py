"""Python datasets of other libraries: find the files that they read, so that datapipe can read these directly."""

from __future__ import annotations

from datapipe.datasets.original import Original
from datapipe.datasets.seen import Seen, Unseen, see_through
from datapipe.datasets.webdataset_pipelines import SeenStream, webdataset_stream

__all__ = ["Original", "Seen", "SeenStream", "Unseen", "see_through", "webdataset_stream"]
