"""Which strategy takes a torch loader over, and what `explain` says of those that were tried before it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import make_folder
from own_code import Numbers, Stream, watermarked
from torch.utils.data import DataLoader, TensorDataset
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe.adapt.facts import facts_of
from datapipe.adapt.strategies import OTHER_KIND, STRATEGIES
from datapipe.datasets import DatasetFiles

torchvision_v2()
folders = importlib.import_module("torchvision.datasets")
v1: Any = importlib.import_module("torchvision.transforms")
NAMES = [strategy.name for strategy in STRATEGIES]
FILES, SHARDS, EPISODES, IN_WORKERS, WHOLE, OWN, AS_IT_IS = NAMES
OTHERS = f"not {SHARDS}, {EPISODES}: {OTHER_KIND}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("strategies") / "set", num=6)


def folder(*chain: Any) -> Callable[[Path], Any]:
    return lambda root: folders.ImageFolder(root, v1.Compose([*chain, v1.ToTensor()]))


CUT = v1.RandomCrop(24)
WHY_WHOLE = "its samples are no rows of tensors or columns, nor slices of arrays that cost less gathered"
CASES: dict[str, tuple[Callable[[Path], Any], dict[str, Any], list[str]]] = {
    "seen through": (folder(CUT), {}, [FILES]),
    "code after the cut": (folder(CUT, watermarked), {}, [IN_WORKERS, f"not {FILES}: see `from`", OTHERS]),
    "code before the cut": (
        folder(watermarked, CUT),
        {},
        [
            OWN,
            f"not {FILES}: see `from`",
            OTHERS,
            f"not {IN_WORKERS}: to decode whole images, and no more, costs more than Pillow",
            f"not {WHOLE}: {WHY_WHOLE}",
        ],
    ),
    "faithful": (
        folder(CUT),
        {"faithful": True},
        [OWN, f"not {FILES}, {IN_WORKERS}: see `from`", OTHERS, f"not {WHOLE}: {WHY_WHOLE}"],
    ),
    "tensors": (
        lambda _: TensorDataset(torch.arange(6)),
        {},
        [WHOLE, f"not {FILES}, {IN_WORKERS}: torch.utils.data.dataset.TensorDataset is custom Python code", OTHERS],
    ),
    "own": (lambda _: Numbers(), {}, [OWN, f"not {FILES}, {IN_WORKERS}: see `from`", OTHERS, f"not {WHOLE}: {WHY_WHOLE}"]),
    "stream": (lambda _: Stream(), {}, [AS_IT_IS, f"not {FILES}, {IN_WORKERS}, {WHOLE}, {OWN}: see `from`", OTHERS]),
}


@pytest.mark.parametrize("case", CASES)
def test_explain_lists_the_strategies_and_their_reasons_once(root: Path, case: str) -> None:
    make, options, expected = CASES[case]
    ours = dp.from_torch(DataLoader(make(root), 2), device="cpu", **options)
    lines = str(dp.explain(ours)).splitlines()
    assert lines[0].startswith("from      ")
    assert lines[1] == f"strategy  {expected[0]}"
    assert [line[10:] for line in lines[2 : 1 + len(expected)]] == expected[1:]
    assert not lines[1 + len(expected)].startswith(" "), "no strategy is missing"
    reasons = [line.partition(": ")[2] for line in expected[1:]]
    assert len({*reasons}) == len(reasons)


def test_what_a_copy_says_is_the_same() -> None:
    import pickle

    ours = dp.from_torch(DataLoader(Numbers(), 2), device="cpu")
    assert str(dp.explain(pickle.loads(pickle.dumps(ours)))) == str(dp.explain(ours))


def test_facts_are_computed_once_and_stay(root: Path) -> None:
    loader = DataLoader(folder(CUT)(root), 2, shuffle=True, num_workers=2)
    facts = facts_of(loader)
    assert facts.given is facts.loader is loader
    assert isinstance(facts.files, DatasetFiles)
    assert facts.recipe is not None
    assert (facts.is_shuffle, facts.is_stream, facts.is_pipeline, facts.has_stages) == (True, False, False, False)
    assert (facts.collates, facts.draws) == (False, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.is_stream = True  # type: ignore[misc]
    assert facts_of(DataLoader(Stream())).files == "it is an IterableDataset, which has no place that could be saved"
