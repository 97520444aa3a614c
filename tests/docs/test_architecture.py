"""The ways of a batch and of a conversion, as docs/architecture.md lists them, are those that they go."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import converters
import datapipe as dp
from datapipe import transforms as T
from datapipe.testing.synthetic_images import make_image_folder

ROOT = Path(__file__).parents[2]
BATCH, CONVERSION = "A batch, from request to release", "A conversion, from scan to dataset"


def listed_files(title: str) -> list[Path]:
    """The files of the numbered list in a section."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    names = re.findall(r"^\d+\. `([\w/]+)`: ", section.partition("The files, in the order")[2], re.MULTILINE)
    return [ROOT / ("" if name.startswith("converters/") else "datapipe") / f"{name}.py" for name in names]


@contextlib.contextmanager
def files_met() -> Iterator[set[Path]]:
    """Collect the files whose code runs in the block."""
    met: set[Path] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        met.add(Path(frame.f_code.co_filename))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield met
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("title", [BATCH, CONVERSION])
def test_the_files_that_are_listed_exist_and_are_few(title: str) -> None:
    found = listed_files(title)
    assert 10 <= len(found) <= 16
    assert len(set(found)) == len(found)
    assert [path for path in found if not path.is_file()] == []


def test_a_batch_meets_the_files_that_are_listed(tmp_path: Path) -> None:
    make_image_folder(tmp_path / "photos", num_images=12)
    converters.convert(converters.ConvertOptions(tmp_path / "photos", tmp_path / "shards", num_workers=1))
    transform = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    loader = dp.DataLoader(tmp_path / "shards", 4, shuffle=True, seed=0, num_workers=0, transform=transform, device="cpu")
    with files_met() as met:
        next(iter(loader))
    assert set(listed_files(BATCH)) <= met


def test_a_conversion_meets_the_files_that_are_listed(tmp_path: Path) -> None:
    make_image_folder(tmp_path / "photos", num_images=12)
    with files_met() as met:
        converters.convert(converters.ConvertOptions(tmp_path / "photos", tmp_path / "shards", num_workers=1))
    assert set(listed_files(CONVERSION)) <= met
