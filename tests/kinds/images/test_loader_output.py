"""What a batch looks like: fields, masks, collate_fn, batch_transform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import NUM_SAMPLES, listing
from recipes import TRAIN, make

import datapipe as dp
from datapipe import transforms as T
from datapipe.testing.loaders.kind import copies, own_threads, same

pytestmark = pytest.mark.usefixtures("backend")


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_mask_says_which_samples_are_real(folder: Path, rank: int) -> None:
    batches = list(make(folder, tail="mask", ranks=(rank, 3)))
    assert [tuple(mask.shape) for _, _, mask in batches] == [(5,)] * 3
    assert all(mask.dtype == torch.bool and len(images) == 5 for images, _, mask in batches)
    expected = [True] * 10 + [30 + rank * 5 + n < NUM_SAMPLES for n in range(5)]
    assert torch.cat([mask for _, _, mask in batches]).tolist() == expected


def test_dicts_name_their_fields(folder: Path) -> None:
    batch = next(iter(make(folder, output="dict", tail="mask")))
    assert {name: value.dtype for name, value in batch.items()} == {
        "image": torch.uint8, "label": torch.int64, "real": torch.bool, "id": torch.int64,
    }  # fmt: skip
    renamed = next(iter(make(folder, output={"image": "pixel_values", "label": "labels"})))
    assert list(renamed) == ["pixel_values", "labels", "id"]
    assert torch.equal(renamed["pixel_values"], batch["image"])


def test_samples_without_labels(folder: Path, tmp_path: Path) -> None:
    import webdataset

    with webdataset.ShardWriter(str(tmp_path / "set-%d.tar"), verbose=0) as writer:
        for path in listing(folder):
            writer.write({"__key__": path.stem, "jpg": path.read_bytes()})
    loader = make(tmp_path)
    batches = copies(loader)
    assert [len(batch) for batch in batches] == [1] * 8
    assert "label" not in next(iter(make(tmp_path, output="dict")))
    assert len(loader.dataset[0]) == 1
    with pytest.raises(dp.errors.OptionError, match=r"MixUp.* labels"):
        make(tmp_path, transform=[*TRAIN, T.MixUp(num_classes=3)])


def test_batch_transform_comes_last(folder: Path) -> None:
    expected = copies(make(folder))
    loader = make(folder, batch_transform=lambda batch: (batch[0].float() / 2, batch[1] + 1))
    assert same(copies(loader), [(images.float() / 2, labels + 1) for images, labels in expected])
    loader = make(folder, output="dict", collate_fn=len, batch_transform=lambda length: -length)
    assert list(loader) == [-5] * 7 + [-2]


def test_collate_fn_gets_dicts_where_asked(folder: Path) -> None:
    (first, *_) = next(iter(make(folder, output={"image": "x"}, collate_fn=list, tail="mask")))
    assert {name: type(value) for name, value in first.items()} == {"x": torch.Tensor, "label": int, "real": bool, "id": int}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["collate_fn", "batch_transform"])
def test_errors_of_the_users_functions_arrive(folder: Path, num_workers: int, name: str) -> None:
    def fail(_: Any) -> Any:
        raise KeyError("mine")

    loader = make(folder, num_workers=num_workers, **{name: fail})
    iterator = iter(loader)
    for _ in range(len(loader)):
        with pytest.raises(KeyError, match="mine"):
            next(iterator)
    assert next(iterator, None) is None
    assert own_threads() == []
