"""Datasets that read a table row by row, tried against whole batches from memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from diagnosis_processes import process
from torch.utils.data import DataLoader, Dataset, TensorDataset

from datapipe.diagnostics.judge.analysis import analyze
from datapipe.diagnostics.predict.candidates import candidates_for
from datapipe.diagnostics.predict.measured_workload import workload_from
from datapipe.diagnostics.predict.workload import Workload, production_parts
from datapipe.diagnostics.trials.dataset import held_for_trial
from datapipe.diagnostics.trials.rows import table_behind, try_rows
from datapipe.diagnostics.trials.trying import Trials

NUM = 2000
RNG = np.random.default_rng(0)
NAME = "whole batches gathered from memory"


class Tensors(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = torch.rand(NUM, 8), torch.arange(NUM)
        self.weights = torch.rand(NUM)  # which no sample has

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.y[row]


class Frame(Tensors):
    def __init__(self) -> None:
        self.frame = pd.DataFrame({f"f{number}": RNG.random(NUM) for number in range(5)})
        self.frame["name"] = "x"
        self.frame["label"] = np.arange(NUM)

    def __getitem__(self, row: int) -> Any:
        found = self.frame.iloc[row]
        return torch.tensor(found[["f0", "f1", "f3"]].to_numpy(np.float32)), int(found["label"])


class Files(Tensors):
    """Labels in memory, and something else from elsewhere."""

    def __getitem__(self, row: int) -> Any:
        return torch.full((3, 4), 0.5), self.y[row]


class Changed(Tensors):
    def __getitem__(self, row: int) -> Any:
        return self.x[row] * 2, self.y[row]


def test_tensors_behind_a_dataset_are_found() -> None:
    found = table_behind(Tensors())
    assert found is not None
    gather, code = found
    assert "TensorDataset(torch.as_tensor(dataset.x), torch.as_tensor(dataset.y))" in code
    assert [tuple(tensor.shape) for tensor in gather(np.array([1, 5]))] == [(2, 8), (2,)]


def test_columns_of_a_frame_are_found() -> None:
    found = table_behind(Frame())
    assert found is not None
    assert "dataset.frame[['f0', 'f1', 'f3', 'label']].to_numpy()" in found[1]


def test_a_tensor_dataset_needs_no_edit() -> None:
    found = table_behind(TensorDataset(torch.rand(NUM, 3)))
    assert found is not None
    assert found[1] == ""


@pytest.mark.parametrize("kind", [Files, Changed])
def test_what_is_no_table_is_left_alone(kind: type[Dataset[Any]]) -> None:
    assert table_behind(kind()) is None
    assert try_rows(DataLoader(kind(), batch_size=64), seconds=0.1) == {}


@pytest.mark.parametrize("data", [Tensors, Frame, lambda: TensorDataset(torch.rand(NUM, 3))])
def test_gathering_is_measured_in_a_fork(data: Any) -> None:
    held = held_for_trial(DataLoader(data(), batch_size=256))
    found = try_rows(held, seconds=0.2)["rows"]
    assert 0 < found["ratio"] < 0.5
    assert found["spread"] >= 0.05


@pytest.mark.parametrize("code", ["", "data = TensorDataset(...)"])
def test_a_diagnosis_predicts_what_was_measured(code: str) -> None:
    found = analyze(process(make_s=0.03, work_s=0.005))
    workload = workload_from(found)
    assert isinstance(workload, Workload)
    tried = {"rows": {"ratio": 0.02, "spread": 0.05, "code": code}}
    candidates = candidates_for(found, workload, Trials(reasons={"": "datapipe sees no files"}, deferral=tried))
    (remedy,) = [one for one in candidates.remedies if one.name == NAME]
    stall, cpu = production_parts(workload)
    assert remedy.change.production_factor == pytest.approx(max(1e-9, cpu.mean() * 0.02 / (stall + cpu).mean()))
    assert remedy.change.setup is not None
    assert remedy.change.setup.num_workers == 0
    assert any("from_torch" in snippet.text for snippet in remedy.how.code)
    assert (NAME in candidates.applied) == (not code)
