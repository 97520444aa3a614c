"""The image sets of the check: made where they are missing, in memory if there is room."""

from __future__ import annotations

import fcntl
from pathlib import Path

from benchmarks.data import ImageSet, Workshop, prepare, warm
from benchmarks.gpu.settings import Check
from datapipe.samples import make_image_folder

NAMES = ("photos", "256")
_NUM_FILES, _COPIES = 2500, 40  # an epoch of 100,000 images: 390 steps of 256, several seconds at any rate measured here
_DRY_FILES, _DRY_COPIES = 24, 8


def image_set(check: Check, name: str) -> Path:
    """The directory of a set, with `folder/` and `shards/`, read once."""
    check.data.mkdir(parents=True, exist_ok=True)
    with (check.data / "lock").open("w") as lock:  # stages may be started side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = prepare(Workshop(check.data), _described(check, name), ("folder", "shards"))
        warm([made / "shards"])
    return made


def _described(check: Check, name: str) -> ImageSet:
    if not check.is_dry:
        return ImageSet(name, check.photos, _NUM_FILES, _COPIES)
    source = check.photos
    if source == "generated":
        small = check.data / "small"
        if not small.exists():
            make_image_folder(small, num_images=_DRY_FILES, num_classes=4, scale="small")
        source = str(small)
    return ImageSet(name, source, _DRY_FILES, _DRY_COPIES)
