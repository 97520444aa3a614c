"""Generated photographs: reproducible, of the promised sizes, and their classes can be told apart."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datapipe.errors import OptionError
from datapipe.testing.synthetic_images import SCALES, make_image_folder


def contents(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*.jpg")}


def test_same_arguments_same_files(tmp_path: Path) -> None:
    first = contents(make_image_folder(tmp_path / "a", num_images=12, num_classes=3, seed=5, scale="small", num_threads=1))
    again = contents(make_image_folder(tmp_path / "b", num_images=12, num_classes=3, seed=5, scale="small", num_threads=3))
    other = contents(make_image_folder(tmp_path / "c", num_images=12, num_classes=3, seed=6, scale="small"))
    assert len(first) == 12
    assert first == again
    assert not set(first.values()) & set(other.values())


def test_classes_take_turns(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "set", num_images=8, num_classes=3, scale="small")
    assert {path.name: len(list(path.iterdir())) for path in root.iterdir()} == {"class_000": 3, "class_001": 3, "class_002": 2}


@pytest.mark.nightly
def test_pictures_have_the_promised_sizes_and_bytes(tmp_path: Path) -> None:
    seen = []
    paths = list(make_image_folder(tmp_path / "set", num_images=60, seed=1).rglob("*.jpg"))
    for path in paths:
        with Image.open(path) as image:
            seen.append(image.size)
            assert image.mode == "RGB"
    assert set(seen) <= {size for size, _ in SCALES["imagenet"]}
    assert len(set(seen)) > 3
    assert 60_000 < np.mean([path.stat().st_size for path in paths]) < 95_000


def test_classes_can_be_told_apart(tmp_path: Path) -> None:
    """The nearest class mean of a coarse colour histogram is right far more often than chance (1 in 4)."""
    root = make_image_folder(tmp_path / "set", num_images=160, num_classes=4, scale="small", seed=2)
    features, labels = [], []
    for path in sorted(root.rglob("*.jpg")):
        with Image.open(path) as image:
            hue, saturation, _ = np.asarray(image.convert("HSV").resize((32, 32))).reshape(-1, 3).T
        features.append(np.bincount(hue[saturation > 120] // 16, minlength=16) / 1024)
        labels.append(int(path.parent.name[-3:]))
    x, y = np.array(features), np.array(labels)
    known = np.arange(len(y)) % 2 == 0
    means = np.stack([x[known & (y == label)].mean(axis=0) for label in range(4)])
    guess = np.linalg.norm(x[~known][:, None] - means, axis=2).argmin(axis=1)
    assert (guess == y[~known]).mean() > 0.6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_images": 0}, "num_images is 0"),
        ({"num_images": 1, "num_classes": 0}, "num_classes 0"),
        ({"num_images": 1, "scale": "huge"}, "'huge'"),
    ],
)
def test_refuses(tmp_path: Path, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_image_folder(tmp_path / "set", **arguments)  # type: ignore[arg-type]


def test_refuses_a_directory_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(OptionError, match="not empty"):
        make_image_folder(tmp_path, num_images=1)
