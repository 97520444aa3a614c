"""The code that a remedy prints, carried out as it stands: the same samples in the same batches as before."""

from __future__ import annotations

import importlib
import itertools
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diagnosis_processes import process
from fixtures import NUM_SAMPLES, make_folder
from torch.utils.data import BatchSampler, DataLoader, Subset, WeightedRandomSampler
from torchvision_reference import torchvision_v2

import datapipe
from datapipe import transforms as T
from datapipe.analysis.judge.analysis import analyze
from datapipe.analysis.predict.candidates import candidates_for
from datapipe.analysis.predict.instructions import Instruction, assigned_name
from datapipe.analysis.predict.measured_workload import workload_from
from datapipe.analysis.predict.workload import Workload
from datapipe.cli.main import main
from datapipe.instruments.trials.results import Trials

torchvision_v2()
folders = importlib.import_module("torchvision.datasets")
RATE = {"sample_s": 1e-3, "spread": 0.05, "num_threads": 2, "num_samples": 100}
NAMES = ("datapipe's loader", "datapipe's loader on converted data", "datapipe's loader, images in memory")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("my photos") / "set", size=(40, 48))


def weighted(generator_seed: int) -> WeightedRandomSampler:
    weights = torch.tensor([1.0 + number % 3 for number in range(NUM_SAMPLES)], dtype=torch.float64)
    return WeightedRandomSampler(weights, 23, generator=torch.Generator().manual_seed(generator_seed))


CASES: dict[str, Any] = {
    "in order": lambda data: DataLoader(data, batch_size=5),
    "in order, the rest dropped": lambda data: DataLoader(data, batch_size=5, drop_last=True),
    "shuffled": lambda data: DataLoader(data, batch_size=5, shuffle=True),
    "by weights": lambda data: DataLoader(data, batch_size=5, sampler=weighted(3)),
    "in batches of one's own": lambda data: DataLoader(data, batch_sampler=BatchSampler(range(30, 3, -2), 4, False)),
    "of a part": lambda data: DataLoader(Subset(data, [*range(30, 3, -2)]), batch_size=5),
    "pinned, with workers": lambda data: DataLoader(data, batch_size=5, num_workers=2, timeout=30),
}


def remedies(root: Path, *, site: str | None = None) -> dict[str, Instruction]:
    found = analyze(process(make_s=0.03, work_s=0.005))
    assert found.loader is not None
    found = replace(found, loader=replace(found.loader, site=site or found.loader.site))
    workload = workload_from(found)
    assert isinstance(workload, Workload)
    trials = Trials({"ours": RATE, "converted": RATE, "cached": RATE}, where=str(root))
    return {remedy.name: remedy.how for remedy in candidates_for(found, workload, trials).remedies}


def carry_out(how: Instruction, loader: Any) -> Any:
    """What a user does: the commands at a shell, the Python below the loader's line."""
    names = {"loader": loader, "datapipe": datapipe}
    for snippet in how.code:
        if snippet.language == "shell":
            program, *arguments = shlex.split(snippet.text)
            assert program == "datapipe"
            assert main(arguments) == 0
        else:
            exec(snippet.text, names)
    return names["loader"]


@pytest.mark.parametrize(
    ("source", "line", "name"),
    [
        ("dl = DataLoader(data)", 1, "dl"),
        ("def main():\n    train_loader: DataLoader = DataLoader(\n        data,\n    )", 3, "train_loader"),
        ("class A:\n    def f(self):\n        self.loader = torch.utils.data.DataLoader(data)", 3, "self.loader"),
        ("loader = make(DataLoader(data))", 1, None),
        ("history = trainer.fit(model, DataLoader(data))", 1, None),
        ("loader = Other(data)", 1, None),
        ("dl = DataLoader(data)", 2, None),
        ("a = b = DataLoader(data)", 1, None),
        ("a, b = DataLoader(data), DataLoader(other)", 1, None),
        ("loaders = {'train': DataLoader(data)}", 1, None),
        ("return DataLoader(data)", 1, None),
        ("def f(:", 1, None),
        ("\0", 1, None),
    ],
)
def test_the_name_that_a_script_gives_its_loader(source: str, line: int, name: str | None, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    assert assigned_name(f"{path}:{line}", "torch.utils.data.dataloader.DataLoader") == name


@pytest.mark.parametrize("site", [None, "", "/nowhere/train.py:3", "train.py", "<string>:1"])
def test_without_a_source_the_name_is_unknown(site: str | None) -> None:
    assert assigned_name(site, "DataLoader") is None


def test_the_code_has_the_name_of_the_script(root: Path, tmp_path: Path) -> None:
    """Where it is unknown, the code says `loader`, and the note that this stands for it."""
    how = remedies(root)["datapipe's loader, images in memory"]
    assert how.code[0].text.startswith("loader = datapipe.from_torch(loader, data=datapipe.Images(loader.dataset, ")
    assert "`loader` stands for the name that the script gives it" in how.note
    script = tmp_path / "train.py"
    script.write_text("dl = DataLoader(data)")
    how = remedies(root, site=f"{script}:1")["datapipe's loader, images in memory"]
    assert " ".join(how.code[0].text.split()) == (
        'dl = datapipe.from_torch(dl, data=datapipe.Images(dl.dataset, cache="ram"), device="cpu")'
    )
    assert "stands for" not in how.note


def no_pixels(image: Any) -> torch.Tensor:
    return torch.zeros(1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_samples_in_the_same_batches(
    case: str, name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = folders.ImageFolder(root, transform=[T.CenterCrop(24)])
    ours = carry_out(remedies(root)[name], CASES[case](data))
    found = [labels.tolist() for _, labels in ours]
    data.transform = no_pixels
    theirs = [labels.tolist() for _, labels in CASES[case](data)]
    assert [len(batch) for batch in found] == [len(batch) for batch in theirs]
    if case == "shuffled":
        assert sorted(itertools.chain(*found)) == sorted(itertools.chain(*theirs))
    else:
        assert found == theirs
