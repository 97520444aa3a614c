"""The way of data through the code is short: how many files it passes, and how often it moves from one to another.

A reader follows the same way. What is done once for each sample should stay in few files, with what is known for all samples
computed before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import datapipe as dp
from converters import ConvertOptions, convert
from datapipe import transforms as T
from datapipe.testing.synthetic_images import make_image_folder

ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(f"{ROOT / package}/" for package in ("datapipe", "converters"))
NUM = 64


class Way:
    """The files of ours that calls came to, and moves: calls, or generators resumed, in another file than the thread's last."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.files: set[str] = set()
        self.num_moves = 0
        self._last: dict[int, str] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            run()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(_OURS):
            return
        self.files.add(name.removeprefix(f"{ROOT}/"))
        thread = threading.get_ident()
        if self._last.get(thread) != name:
            self._last[thread] = name
            self.num_moves += 1


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images; `converted` next to it is the same in shards."""
    photos = make_image_folder(tmp_path_factory.mktemp("paths") / "photos", num_images=NUM, num_classes=4, scale="small")
    convert(ConvertOptions(photos, photos.with_name("converted"), num_workers=1))
    return photos


def test_a_way_is_counted() -> None:
    way = Way(lambda: Path("a call of no code of ours").name)
    assert (way.files, way.num_moves) == (set(), 0)
    way = Way(lambda: [T.CenterCrop(1), T.CenterCrop(2)])
    assert "datapipe/transforms/options.py" in way.files
    assert way.num_moves >= 4


def test_a_conversion_passes_few_files(photos: Path) -> None:
    way = Way(lambda: convert(ConvertOptions(photos, photos.with_name("again"), num_workers=1)))
    assert {"converters/conversion.py", "datapipe/codecs/probe.py"} <= way.files
    assert len(way.files) <= 40, sorted(way.files)
    assert way.num_moves <= 2000


def test_a_batch_passes_few_files(photos: Path) -> None:
    """One in the middle of an epoch, made in the caller's thread."""
    transform = [T.RandomResizedCrop(64)]
    loader = dp.DataLoader(photos.with_name("converted"), 8, shuffle=True, transform=transform, num_workers=0, device="cpu")
    list(loader)
    batches = iter(loader)
    next(batches)
    way = Way(lambda: next(batches))
    assert {"datapipe/kernel/iteration.py", "datapipe/codecs/probe.py"} <= way.files
    assert len(way.files) <= 26, sorted(way.files)
    assert way.num_moves <= 200
