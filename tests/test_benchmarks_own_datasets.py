"""Datasets that benchmarks take over: each gives the same shapes and types as by torch's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import make_folder
from torch.utils.data import DataLoader

import datapipe
from benchmarks.contenders import OWN_DATASETS
from benchmarks.contenders.own_datasets import OwnDataset
from benchmarks.contenders.own_recipes import mixed
from benchmarks.contenders.torchvision_transforms import import_torchvision

import_torchvision()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"))


def shapes(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.shape, batch.dtype
    return [shapes(part) for part in batch]


@pytest.mark.parametrize("kind", [kind for kind in OWN_DATASETS if kind != "timm"])
def test_a_kind_taken_over_gives_the_same_shapes(root: Path, kind: str) -> None:
    loader: Any = DataLoader(OwnDataset(root, kind), batch_size=3, collate_fn=mixed if kind == "random-collate" else None)
    theirs = [shapes(batch) for batch in loader]
    assert [shapes(batch) for batch in datapipe.from_torch(loader, device="cpu")] == theirs
    assert len(theirs) == len(loader) > 1
