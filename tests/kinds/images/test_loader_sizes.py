"""Images that no transform makes equal in size: taken where they are equal, and otherwise refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import CLASSES, listing, write_webdataset
from PIL import Image

import datapipe as dp
from datapipe import transforms as T

TO_FLOAT = [T.ToDtype(torch.float32, scale=True)]
NUM = 40


def write(path: Path, number: int, size: tuple[int, int] = (14, 12)) -> None:
    """A PNG of that height and width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def pngs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pngs") / "set"
    for number in range(NUM):
        write(root / CLASSES[number % 2] / f"{number:03}.png", number)
    return root


def make(path: Path, **arguments: Any) -> dp.DataLoader:
    return dp.DataLoader(path, **({"batch_size": 7, "transform": TO_FLOAT, "num_workers": 1, "device": "cpu"} | arguments))


def test_equal_images_need_no_geometry(pngs: Path, tmp_path: Path) -> None:
    expected = listing(pngs)
    for path in (pngs, write_webdataset(pngs, tmp_path / "shards")):
        images = torch.cat([images for images, _ in make(path)])
        assert (images.shape, images.dtype) == ((NUM, 3, 14, 12), torch.float32)
        for image, file in zip(images, expected, strict=True):
            assert torch.allclose(image.permute(1, 2, 0), torch.from_numpy(np.array(Image.open(file))) / 255)
    shorter = next(iter(make(pngs, transform=[T.Resize(6), *TO_FLOAT])))[0]
    assert shorter.shape == (7, 3, 7, 6), "equal ones stay equal where only one side is named"
    assert sum(len(labels) for _, labels in make(pngs, on_error="skip")) == NUM


def test_sizes_that_differ_are_told(pngs: Path, tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "set" / "a" / f"{number}.png", number, (14, 12 + number // 2))
    with pytest.raises(dp.errors.OptionError) as caught:
        make(tmp_path / "set")
    said = str(caught.value)
    assert "images would differ in size: the recipe's geometry has no crop or resize, and " in said
    assert f"{tmp_path / 'set' / 'a'}" in said
    assert "is 14 x 12 and" in said
    assert "is 14 x 13; end the geometry with RandomResizedCrop, CenterCrop or Resize((h, w))" in said


def test_one_that_differs_and_was_not_looked_at_is_named(pngs: Path, tmp_path: Path) -> None:
    for number in range(NUM):
        write(tmp_path / "set" / "a" / f"{number:03}.png", number, (14, 11 if number == 1 else 12))
    loader = iter(make(tmp_path / "set"))
    with pytest.raises(
        dp.errors.OptionError, match=r"differ in size: sample \d is 14 x 1\d, sample 1 14 x 11; end the geometry with"
    ):
        next(loader)


def test_images_that_cannot_be_read_say_nothing_of_sizes(tmp_path: Path) -> None:
    write(tmp_path / "set" / "a" / "0.png", 0)
    (tmp_path / "set" / "a" / "1.png").write_bytes(b"none")
    images, _ = next(iter(make(tmp_path / "set", on_error="skip")))
    assert images.shape == (1, 3, 14, 12)
    (tmp_path / "set" / "a" / "0.png").write_bytes(b"none")
    with pytest.raises(dp.errors.OptionError, match="would differ in size"):
        make(tmp_path / "set")


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (lambda image: image, "<lambda>, gives PIL images, which torch's default_collate cannot collate; end the transforms"),
        (lambda image: {1, 2}, r"gives values of type set, .* cannot collate \(default_collate: batch must contain tensors"),
        (lambda image: torch.zeros(int(np.asarray(image).sum()) % 5), r"values of type Tensor, .*cannot collate \(stack expects"),
    ],
    ids=["PIL", "sets", "sizes"],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_the_last_transform_gives_makes_no_batch(pngs: Path, last: Any, said: str, num_workers: int) -> None:
    with pytest.raises(dp.errors.OptionError, match=rf"the last transform, .*{said}") as caught:
        list(make(pngs, transform=[T.CenterCrop(8), last], num_workers=num_workers))
    assert "ToTensor(), or pass a collate_fn" in str(caught.value)
    assert len(next(iter(make(pngs, transform=[T.CenterCrop(8), last], collate_fn=list)))) == 7
