"""The way of a batch, as docs/architecture.md lists it, is the one that a batch goes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import converters
import datapipe as dp
from datapipe import transforms as T
from datapipe.testing.synthetic_images import make_image_folder

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "datapipe"


def listed_files() -> list[str]:
    """The files of the numbered list in the section about a batch of images."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("## A batch, from request to release\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+)`: ", section.partition("The files, in the order")[2], re.MULTILINE)


def test_the_files_that_a_batch_meets_exist_and_are_few() -> None:
    found = listed_files()
    assert 10 <= len(found) <= 16
    assert len(set(found)) == len(found)
    assert [name for name in found if not (PACKAGE / f"{name}.py").is_file()] == []


def test_a_batch_meets_the_files_that_are_listed(tmp_path: Path) -> None:
    make_image_folder(tmp_path / "photos", num_images=12)
    converters.convert(converters.ConvertOptions(tmp_path / "photos", tmp_path / "shards", num_workers=1))
    transform = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    loader = dp.DataLoader(tmp_path / "shards", 4, shuffle=True, seed=0, num_workers=0, transform=transform, device="cpu")
    met: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        met.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        next(iter(loader))
    finally:
        sys.setprofile(before)
    assert [name for name in listed_files() if str(PACKAGE / f"{name}.py") not in met] == []
