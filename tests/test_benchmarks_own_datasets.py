"""Datasets that benchmarks take over: each gives the same shapes and types as by torch's loader."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import make_folder
from torch.utils.data import DataLoader

import datapipe
from benchmarks.contenders import OWN_DATASETS
from benchmarks.contenders.own_datasets import own_dataset
from benchmarks.contenders.own_recipes import mixed
from benchmarks.contenders.public_styles import STYLES
from benchmarks.contenders.torchvision_transforms import import_torchvision
from datapipe.deferral.paying import Paying

import_torchvision()
KINDS = [kind for kind in OWN_DATASETS if kind != "timm"]
_OWN_GENERATORS = ("albumentations",)  # draws from generators of its own, which from_torch does not seed
MADE = [
    *KINDS,
    *(
        kind
        for kind, style in STYLES.items()
        if style.shuffles is not None and kind not in _OWN_GENERATORS and not style.missing()
    ),
]
NUM = 14


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"))


def shapes(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.shape, batch.dtype
    return [shapes(part) for part in batch]


@pytest.mark.daily(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_taken_over_gives_the_same_shapes(root: Path, kind: str) -> None:
    loader: Any = DataLoader(own_dataset(root, kind, 100), batch_size=3, collate_fn=mixed if kind == "random-collate" else None)
    theirs = [shapes(batch) for batch in loader]
    assert [shapes(batch) for batch in datapipe.from_torch(loader, device="cpu")] == theirs
    assert len(theirs) == len(loader) > 1


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.clone()]
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    return [tensor for part in value for tensor in tensors(part)]


def taken_over(root: Path, kind: str, num_workers: int) -> Any:
    """The kind's Dataset, with so little read ahead that 64 MB of shared memory hold the batches of ten workers."""
    style = STYLES.get(kind)
    collate = style.collate_fn if style is not None else mixed if kind == "random-collate" else None
    loader: Any = DataLoader(
        own_dataset(root, kind, 100) if style is None else style.make(root, NUM),
        4,
        shuffle=True,
        num_workers=num_workers,
        collate_fn=collate,
        prefetch_factor=1 if num_workers else None,
    )
    return datapipe.from_torch(loader, device="cpu", seed=3)


def same(ours: list[list[torch.Tensor]], theirs: list[list[torch.Tensor]]) -> bool:
    pairs = [pair for these, those in zip(ours, theirs, strict=True) for pair in zip(these, those, strict=True)]
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("kind", MADE)
def test_batches_of_a_kind_are_the_same_for_any_number_of_workers_and_after_a_resume(
    root: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [tensors(batch) for batch in taken_over(root, kind, 0)]
    # Where both ways give the same pixels, each is taken at times.
    turns = itertools.cycle([True, False, False, True, True])
    monkeypatch.setattr(Paying, "_chooses_plain", lambda self: bool(self.is_exact) and next(turns))
    for num_workers in (0, 1, 2, 3, 5):
        loader = taken_over(root, kind, num_workers)
        iterator = iter(loader)
        found = [tensors(next(iterator)) for _ in range(2)]
        resumed = taken_over(root, kind, 3 - min(num_workers, 3))
        resumed.load_state_dict(loader.state_dict())
        assert same(found + [tensors(batch) for batch in resumed], expected)
        assert same(found + [tensors(batch) for batch in iterator], expected)
