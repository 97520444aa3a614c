"""Scripts of other projects with a few lines changed: the same steps over the same samples."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import CLASSES, label_of
from host_ranks import in_a_process, needs, on_ranks
from PIL import Image

SCRIPT = Path(__file__).with_name("imagenet_script.py")
TRAIN, VAL = 33, 14
CHANGES = {
    "import torchvision.datasets as datasets": "import datapipe\nimport torchvision.datasets as datasets",
    "train_loader = torch.utils.data.DataLoader(": "train_loader = datapipe.DataLoader(",
    "val_loader = torch.utils.data.DataLoader(": "val_loader = datapipe.DataLoader(",
    "pin_memory=False, sampler=val_sampler)": "pin_memory=False)",  # a datapipe loader shares the samples out itself
}


def make_colours(root: Path, num: int) -> Path:
    """Images of one colour, whose red is their place in the sorted listing."""
    order = sorted(range(num), key=lambda number: (label_of(number), number))
    for place, number in enumerate(order):
        path = root / CLASSES[label_of(number)] / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((30, 40, 3), (place, 9, 200), np.uint8)).save(path)
    return root


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("colours")
    make_colours(root / "train", TRAIN)
    make_colours(root / "val", VAL)
    return root


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script with our loaders."""
    text = SCRIPT.read_text()
    for old, new in CHANGES.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = tmp_path_factory.mktemp("script") / "main.py"
    path.write_text(text)
    return path


def flat(steps: list[list[int]]) -> list[int]:
    return [number for step in steps for number in step]


def test_few_lines_change(changed: Path) -> None:
    lines = difflib.unified_diff(SCRIPT.read_text().splitlines(), changed.read_text().splitlines(), n=0)
    assert sum(line.startswith("+") and not line.startswith("+++") for line in lines) == 4


@pytest.mark.nightly
def test_the_imagenet_script_alone(colours: Path, changed: Path) -> None:
    needs("torchvision")
    theirs, ours = (json.loads(in_a_process("script_runs:run_script", path, [str(colours)])) for path in (SCRIPT, changed))
    for epoch in range(2):
        assert [len(step) for step in ours["train"][epoch]] == [len(step) for step in theirs["train"][epoch]] == [5] * 6 + [3]
        assert sorted(flat(ours["train"][epoch])) == sorted(flat(theirs["train"][epoch])) == list(range(TRAIN))
        assert ours["val"][epoch] == theirs["val"][epoch]
    assert ours["train"][0] != ours["train"][1]


@pytest.mark.nightly
def test_the_imagenet_script_on_two_ranks(colours: Path, changed: Path) -> None:
    """Its DistributedSampler still decides the training order; for validation ours shares out what its sampler left over."""
    needs("torchvision")
    theirs, ours = (
        [json.loads(found) for found in on_ranks("script_runs:run_script", 2, path, [str(colours)])] for path in (SCRIPT, changed)
    )
    for epoch in range(2):
        for rank in range(2):
            assert ours[rank]["train"][epoch] == theirs[rank]["train"][epoch]
        assert sorted(flat(ours[0]["val"][epoch]) + flat(ours[1]["val"][epoch])) == list(range(VAL))


@pytest.mark.nightly
def test_timms_loops(colours: Path) -> None:
    needs("timm")
    theirs, ours = (in_a_process("script_runs:timm_epochs", colours / "train", whose) for whose in (False, True))
    assert ours["length"] == theirs["length"] == TRAIN // 5
    assert ours["mixup"] is theirs["mixup"] is False
    assert ours["eval"] == theirs["eval"]
    assert [number for step, _ in ours["eval"][0] for number in step] == list(range(TRAIN))
    for epoch in range(2):
        numbers: list[Any] = flat(ours["train"][epoch])
        assert len(numbers) == len(set(numbers)) == len(flat(theirs["train"][epoch])) == TRAIN // 5 * 5
