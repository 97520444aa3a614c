"""The files recorded for trials, and the trials: no code of the script runs, and nothing is written next to its data."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import NUM_SAMPLES, make_folder, write_webdataset

from datapipe import transforms as T
from datapipe.deferral.dataset import DeferringDataset
from datapipe.errors import OptionError
from datapipe.instruments.trials.process import num_samples_of, resized_side, trials
from datapipe.instruments.trials.sample import Shards, pickled_sample, sample_of

wds = pytest.importorskip("webdataset")
CROP = T.RandomResizedCrop(16)


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 8


def never(label: int) -> int:
    raise AssertionError("the script's own code was run")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wds")
    return write_webdataset(make_folder(root / "folder"), root / "set")


def stream(shards: Path, *maps: Any, names: str = "{000..003}", **options: Any) -> Any:
    pipeline = wds.WebDataset(str(shards / f"set-{names}.tar"), shardshuffle=False)
    return pipeline.decode("pil").to_tuple("jpg;png", "cls").map_tuple(*maps)


def loader_of(dataset: Any, batch_size: int | None = None, **options: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, **options)


def test_a_stream_is_tried_from_its_shards(shards: Path, tmp_path: Path) -> None:
    data = pickled_sample(loader_of(stream(shards, CROP).batched(4)))
    assert isinstance(data, bytes)
    names = {str(argument) for _, argument, _ in pickletools.genops(data) if argument is not None}
    assert not any("webdataset" in name.split(".")[0] for name in names)
    sample = pickle.loads(data)
    assert isinstance(sample.data, Shards)
    assert (sample.batch_size, sample.where) == (4, str(shards))
    before = sorted(shards.iterdir())
    tried = trials(sample, tmp_path, side=resized_side(sample, tmp_path), seconds=0.0, evicts=False)
    assert tried["ours"]().num_samples == NUM_SAMPLES == num_samples_of(sample, tmp_path)
    assert resized_side(sample, tmp_path) == 19
    assert tried["resized"]().num_samples == NUM_SAMPLES
    with pytest.raises(OptionError, match="WebDataset shards already"):
        tried["converted"]()
    assert sorted(shards.iterdir()) == before


def test_of_some_of_a_directorys_shards_the_directory_is_not_named(shards: Path) -> None:
    sample = sample_of(loader_of(stream(shards, CROP, names="{000..001}"), 4))
    assert not isinstance(sample, str)
    assert sample.where == ""


REASONS: dict[str, tuple[Any, str]] = {
    "a dataset of one's own": (lambda shards: loader_of(Numbers(), 4), "datapipe sees no files in Numbers"),
    "a subset of it": (
        lambda shards: loader_of(torch.utils.data.Subset(Numbers(), [1]), 4),
        "datapipe sees no files in Numbers",
    ),
    "one taken over": (
        lambda shards: loader_of(DeferringDataset(Numbers(), defers=True), 4),
        "datapipe.from_torch has taken its Dataset over already",
    ),
    "Hugging Face's": (
        lambda shards: loader_of(type("Dataset", (Numbers,), {"__module__": "datasets.arrow_dataset"})(), 4),
        "the images of its Hugging Face dataset are processed by the script's own Python code",
    ),
    "maps of labels": (lambda shards: loader_of(stream(shards, CROP, never), 4), "maps labels to others"),
    "transforms of one's own": (lambda shards: loader_of(stream(shards, never), 4), "its transforms: "),
    "a pipe": (lambda shards: loader_of(wds.WebDataset("pipe:cat x.tar", shardshuffle=False)), "which is not a local file"),
    "batches by nobody": (lambda shards: loader_of(stream(shards, CROP)), "neither by the loader nor by the pipeline"),
    "a collate_fn": (lambda shards: loader_of(stream(shards, CROP), 4, collate_fn=never), "its collate_fn is custom Python code"),
}


@pytest.mark.parametrize("name", REASONS)
def test_why_nothing_is_tried(shards: Path, name: str) -> None:
    make, reason = REASONS[name]
    found = sample_of(make(shards))
    assert isinstance(found, str)
    assert reason in found
