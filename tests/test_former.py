"""What was public in 0.1 goes on working, and a warning says what to write."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fixtures import make_folder
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe import transforms as T
from datapipe.core.deprecation import FORMER_NAMES
from datapipe.testing.loaders.kind import copies, same

CROP = [T.RandomResizedCrop(24)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("former") / "set", num=23, size=(40, 48))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("former") / "t.parquet"
    pq.write_table(pa.table({"a": np.arange(90.0), "b": np.arange(90.0)[::-1].copy()}), path, row_group_size=10)
    return path


def test_there_are_few_names_and_arguments() -> None:
    assert len(dp.__all__) <= 30
    assert len(inspect.signature(dp.DataLoader).parameters) == 26
    torchs = inspect.signature(torch.utils.data.DataLoader).parameters
    assert list(torchs)[1:] == [name for name in inspect.signature(dp.DataLoader).parameters if name in torchs][1:]


@pytest.mark.parametrize("name", FORMER_NAMES)
def test_a_name_says_where_it_is_now(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^From .* no datapipe\.{name}; write datapipe\.") as told:
        found = getattr(dp, name)
    now = re.sub(r".*; write datapipe\.", "", str(told[0].message))
    room, _, last = now.rpartition(".")
    assert found is getattr(getattr(dp, room) if room else dp, last)
    assert told[0].filename == __file__


def test_the_names_of_now_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in dp.__all__:
            assert getattr(dp, name) is not None
    assert not hasattr(dp, "Recipe")
    assert not hasattr(dp, "MissingSampleError")


# Arguments of 0.1, what they are now, and what the warning says.
OF_IMAGES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "fields": ({"fields": ["image"]}, {"fields": ["image"]}, {}, r"fields=; write DataLoader\(datapipe.Images\(source, fields="),
    "boxes": ({"boxes": "padded"}, {"boxes": "padded"}, {}, "boxes='padded'"),
    "memory_format": (
        {"memory_format": torch.contiguous_format}, {"memory_format": torch.contiguous_format}, {}, "memory_format=torch.contig",
    ),
    "cache": ({"cache": "ram"}, {"cache": "ram"}, {}, "cache='ram'"),
    "cache_nbytes": (
        {"cache": "ram", "cache_nbytes": 1 << 20}, {"cache": dp.Cache("ram", 1 << 20)}, {}, r"cache=, cache_nbytes=; .*=1048576",
    ),
    "remote": ({"remote": dp.Remote(requests=8)}, {"remote": dp.Remote(requests=8)}, {}, r"remote=; write .*remote=\.\.\."),
    "rename": (
        {"output": "dict", "rename": {"image": "x"}}, {}, {"output": {"image": "x"}}, r"rename=; write output=\{'image'",
    ),
    "ranks": ({"rank": 1, "world_size": 3}, {}, {"ranks": (1, 3)}, r"rank=, world_size=; write ranks=\(rank, world_size\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_IMAGES)
def test_arguments_of_a_loader_of_images(folder: Path, case: str) -> None:
    former, settings, options, said = OF_IMAGES[case]
    common: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 2, "num_workers": 1, "transform": CROP}
    with pytest.warns(DeprecationWarning, match=said) as told:
        ours = dp.DataLoader(folder, **common, **former)
    assert {warning.filename for warning in told} == {__file__}
    now = dp.DataLoader(dp.Images(folder, **settings), **common, **options)
    assert ours.dataset.settings == now.dataset.settings
    assert same(copies(ours), copies(now))
    assert ours.state_dict() == now.state_dict()
    assert same(copies(pickle.loads(pickle.dumps(ours))), copies(dp.DataLoader(now.dataset, **common, **options)))


@pytest.mark.parametrize(("arguments", "problem"), [
    ({"cache_nbytes": 5}, r"cache_nbytes=5 without a cache; pass cache=datapipe.Cache\('ram', nbytes=5\)"),
    ({"rename": "x", "output": "dict"}, r"rename is 'x'; pass output=\{"),
    ({"rename": {"image": "x"}}, "rename needs output='dict'"),
    ({"rank": 1}, r"rank=1, world_size=None: pass ranks=\(rank, world_size\)"),
])  # fmt: skip
def test_what_made_no_sense_makes_none(folder: Path, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(dp.errors.OptionError, match=problem):
        dp.DataLoader(folder, **arguments)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shuffled'"):
        dp.DataLoader(folder, shuffled=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values for argument 'batch_size'"):
        dp.DataLoader(folder, 8, batch_size=4, rank=0, world_size=1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="missing a required argument: 'dataset'"):
        dp.DataLoader(cache="ram")  # type: ignore[arg-type]
    loader = dp.DataLoader(folder)
    with pytest.raises(dp.errors.OptionError, match="cache cannot be set on a loader that exists"):
        loader.cache = "disk"


def test_a_table_loader_and_the_attributes_of_loaders(folder: Path, table: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"no rank=, world_size=;") as told:
        ours = dp.TableLoader(table, 8, True, columns=["a"], seed=1, device="cpu", rank=0, world_size=2)
    assert told[0].filename == __file__
    now = dp.DataLoader(dp.Table(table, columns=["a"]), 8, True, seed=1, device="cpu", ranks=(0, 2))
    assert same(copies(ours), copies(now))
    assert type(pickle.loads(pickle.dumps(ours))) is dp.TableLoader
    for name, what in (("layout", "loader.dataset.layout"), ("plan", "datapipe.explain"), ("choice", "loader.choice")):
        with pytest.warns(DeprecationWarning, match=rf"no loader\.{name}.*; write {re.escape(what)}") as told:
            found = getattr(ours, name) if name == "layout" else getattr(ours, name)()
        assert found is not None
        assert told[0].filename == __file__
    images = dp.DataLoader(folder, transform=CROP, device="cpu")
    for name in ("fields", "recipe", "decoder_device", "store_facts"):
        with pytest.warns(DeprecationWarning, match=rf"no loader\.{name}; write"):
            getattr(images, name)
    assert not hasattr(images, "no_such_attribute")


def test_arguments_of_from_torch(folder: Path) -> None:
    torchvision_v2()
    from torchvision import transforms as v1
    from torchvision.datasets import ImageFolder

    def theirs() -> Any:
        dataset = ImageFolder(folder, v1.Compose([v1.CenterCrop(24), v1.ToTensor()]))
        return torch.utils.data.DataLoader(dataset, 4)

    contiguous = {"memory_format": torch.contiguous_format}
    for former, settings in (
        ({"cache": "ram"}, {"cache": "ram"}),
        ({"cache": "ram", "cache_nbytes": 1 << 20}, {"cache": dp.Cache("ram", 1 << 20)}),
        (contiguous, contiguous),
    ):
        with pytest.warns(DeprecationWarning, match=r"write data=datapipe\.Images\(loader\.dataset, cache=") as told:
            ours: Any = dp.from_torch(theirs(), **former)
        assert told[0].filename == __file__
        loader = theirs()
        now: Any = dp.from_torch(loader, data=dp.Images(loader.dataset, **settings))  # type: ignore[arg-type]
        assert ours.dataset.settings == now.dataset.settings
        assert same(copies(ours), copies(now))
    with pytest.warns(DeprecationWarning, match=r"no reseed=; write faithful=True"):
        assert isinstance(dp.from_torch(theirs(), reseed=False), dp.DataLoader)
    own = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(6)), 2)
    with pytest.warns(DeprecationWarning, match="no memory_format=; write data="):
        assert len(list(dp.from_torch(own, memory_format=torch.contiguous_format))) == 3
    faithful = dp.from_torch(theirs(), faithful=True)
    assert "left to torch's workers: faithful=True leaves" in str(dp.explain(faithful))
    assert same(copies(faithful), copies(theirs()))


SCRIPT = """
import sys
import torch, datapipe as dp

if __name__ == "__main__":
    loader = dp.DataLoader(sys.argv[1], batch_size=4, shuffle=True, seed=0, num_workers=2, output="dict", rename={"image": "x"},
                           transform=[dp.RandomResizedCrop(24), dp.RandomHorizontalFlip(),
                                      dp.ToDtype(torch.float32, scale=True), dp.Normalize(dp.IMAGENET_MEAN, dp.IMAGENET_STD)])
    try:
        dp.DataLoader("no such folder")
    except dp.MissingDataError:
        print(sum(len(batch["x"]) for batch in loader))
    mixed = dp.mix([sys.argv[1], loader.dataset.take(4)])
    print(len(dp.DataLoader(mixed, batch_size=4, cache="ram", transform=[dp.Resize((9, 9))])))
"""


@pytest.mark.nightly
def test_a_script_of_0_1_runs(folder: Path) -> None:
    for options, says in ((["-W", "default"], "there is no datapipe.RandomResizedCrop"), (["-W", "ignore"], "")):
        done = subprocess.run(
            [sys.executable, *options, "-c", SCRIPT, str(folder)], capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout.split() == ["23", "7"]
        assert says in done.stderr
        assert bool(says) == ("Deprecation" in done.stderr)
