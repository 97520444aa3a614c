"""What each argument of torch's DataLoader means here: the published table, held against torch and against the code.

An argument that a new torch adds makes a test fail until it has its row in `arguments_table`.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from arguments_table import ARGUMENTS, DOCUMENTS, Status, with_table
from recipes import CROP

import datapipe as dp
from datapipe.testing.loaders.kind import copies, same

# Arguments without effect, each with values that must change nothing.
WITHOUT_EFFECT: dict[str, list[Any]] = {
    "multiprocessing_context": ["spawn", "fork"],
    "persistent_workers": [True], "pin_memory_device": ["cuda:0"], "in_order": [False, True],
}  # fmt: skip


def torch_parameters() -> list[inspect.Parameter]:
    parameters = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    return [parameter for name, parameter in parameters.items() if name != "self"]


def test_every_argument_of_torch_has_a_row() -> None:
    assert list(ARGUMENTS) == [parameter.name for parameter in torch_parameters()]


def test_arguments_stand_in_torchs_places() -> None:
    """Positional calls written for torch mean the same here."""
    ours = [parameter for name, parameter in inspect.signature(dp.DataLoader.__init__).parameters.items() if name != "self"]
    theirs = torch_parameters()
    assert [parameter.name for parameter in ours[: len(theirs)]] == [parameter.name for parameter in theirs]
    for mine, their in zip(ours, theirs, strict=False):
        assert mine.kind == their.kind, mine.name
        if mine.name not in ("num_workers", "dataset"):  # decode threads: 0 would mean none
            assert mine.default == their.default, mine.name
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in ours[len(theirs) :])


def test_arguments_without_effect_are_those_of_the_table() -> None:
    assert sorted(WITHOUT_EFFECT) == sorted(name for name, row in ARGUMENTS.items() if row.status is Status.BY_CONSTRUCTION)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WITHOUT_EFFECT.items() for value in values])
def test_arguments_satisfied_by_construction_change_nothing(folder: Path, name: str, value: Any) -> None:
    common: dict[str, Any] = {"batch_size": 5, "shuffle": True, "transform": CROP, "num_workers": 2}
    assert same(copies(dp.DataLoader(folder, **common, **{name: value})), copies(dp.DataLoader(folder, **common)))


def test_the_documents_show_the_table() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        assert with_table(text) == text, f"{document} is out of date; run: python tests/kinds/images/arguments_table.py"
