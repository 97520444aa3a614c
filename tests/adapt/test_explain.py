"""`explain` of loaders that stay with torch's workers: which part runs where, and what would gain more."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures import make_folder
from own_code import Numbers, Stream, watermarked
from torch.utils.data import DataLoader
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe import transforms as T
from datapipe.codecs.decode import default_decoder_name

torchvision_v2()
folders = importlib.import_module("torchvision.datasets")
v1: Any = importlib.import_module("torchvision.transforms")


def as_lists(samples: list[Any]) -> Any:
    return samples


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("explained") / "set", num=6)


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.kernel.options.num_usable_cores", lambda: 8)


def told(loader: Any, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What `explain` says of it taken over: the text under each heading."""
    print(dp.explain(loader))
    found: dict[str, str] = {}
    heading = ""
    for line in capsys.readouterr().out.splitlines():
        heading = line[:10].strip() or heading
        found[heading] = f"{found[heading]}\n{line[10:]}" if heading in found else line[10:]
    return found


def test_a_chain_with_code_of_the_users(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain = v1.Compose([v1.Resize(30), v1.RandomCrop(24), watermarked, v1.ToTensor()])
    found = told(dp.from_torch(DataLoader(folders.ImageFolder(root, chain), 4, shuffle=True, num_workers=2)), capsys)
    assert found["workers"] == "2 processes of torch's, 4 batches ahead in all"
    assert found["decoder"].startswith(f"datapipe's ({default_decoder_name()}), in torch's workers; Pillow for")
    recipe = found["recipe"].splitlines()
    assert [line.partition(":")[0] for line in recipe[:3]] == ["by datapipe, with the decode"] * 2 + [
        "by torch's workers, unchanged"
    ]
    assert "RandomCrop(24)" in recipe[1]
    assert recipe[2].endswith(".watermarked, torchvision.transforms.ToTensor")
    assert "watermarked runs unchanged" in recipe[3]
    assert found["batches"] == "by default_collate, in torch's workers"
    cores, transforms = found["to gain"].splitlines()
    assert cores == "num_workers=8 instead of 2: this process may use 8 cores"
    assert transforms.startswith("use transforms that datapipe has (docs/transforms.md) in place of ")
    assert found["seed"].startswith("torch.initial_seed()")


def test_a_collate_fn_for_images(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = folders.ImageFolder(root, v1.Compose([v1.RandomCrop(24)]))
    found = told(dp.from_torch(DataLoader(dataset, 4, num_workers=2, collate_fn=as_lists)), capsys)
    assert "handover_point" not in str(found)
    assert found["recipe"].endswith("\npassed on as the transforms would pass it on")
    assert found["batches"] == "by collate_fn as_lists, in torch's workers"
    assert (
        found["to gain"]
        .splitlines()[1]
        .startswith("end the transforms in ToTensor(), and in place of as_lists use a collate_fn that takes")
    )


@pytest.mark.parametrize(
    ("dataset", "asked"), [(Numbers(), {"sampler": [1, 2]}), (Stream(), {}), (Numbers(), {"batch_size": None})]
)
def test_a_dataset_that_is_not_seen_through(dataset: Any, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    name = type(dataset).__name__
    found = told(dp.from_torch(DataLoader(dataset, **({"batch_size": 2} | asked)), device="cpu"), capsys)
    assert found["workers"].startswith("none: the training process makes each batch itself")
    if asked.keys() == {"sampler"}:
        assert found["decoder"].startswith(f"datapipe's ({default_decoder_name()}) for JPEGs that {name} opens with Pillow")
        assert found["deferred"] == "nothing seen yet: operations are listed once batches have come"
        assert found["seed"].startswith("torch.initial_seed()")
    else:
        why = "images of an IterableDataset are not deferred" if name == "Stream" else "datapipe does not see its files"
        assert found["decoder"] == f"that of {name}'s code: {why}"
        assert found["recipe"] == f"{name}'s code runs all transforms, in the training process"
        assert "seed" not in found
    assert "num_workers=8 so that batches are made while the model computes" in found["to gain"]
    assert ("ask again once batches have come" if asked.keys() == {"sampler"} else "`datapipe convert`") in found["to gain"]


def test_the_text_is_shown_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for loader in (
        dp.DataLoader(str(root), batch_size=2, transform=[T.CenterCrop(24)]),
        dp.from_torch(DataLoader(Numbers(), 2)),
        dp.prefetch(DataLoader(Numbers(), 2), device="cpu"),
    ):
        found = dp.explain(loader)
        assert capsys.readouterr().out == "", "nothing is printed unless it is asked for"
        print(found)
        printed = capsys.readouterr().out
        assert printed.count("device    ") == 1
        assert printed.strip().splitlines()[-1] != "None"
        sys.displayhook(found)  # as an interactive session shows it
        assert capsys.readouterr().out == printed
