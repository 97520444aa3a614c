"""Datasets of rows in memory, tried against whole batches gathered from them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diagnosis_processes import process
from torch.utils.data import DataLoader, Dataset, TensorDataset

from datapipe.analysis.judge.analysis import analyze
from datapipe.analysis.predict.candidates import candidates_for
from datapipe.analysis.predict.measured_workload import workload_from
from datapipe.analysis.predict.workload import Workload, production_parts
from datapipe.instruments.trials.dataset import held_for_trial, try_rows
from datapipe.instruments.trials.results import Trials

NUM = 2000
NAME = "whole batches gathered from memory"


class Own(Dataset[Any]):
    def __init__(self) -> None:
        self.x = torch.rand(NUM, 8)

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, row: int) -> Any:
        return self.x[row]


class Noisy(Own):
    def __getitem__(self, row: int) -> Any:
        return self.x[row] + torch.rand(8)


def test_what_from_torch_does_not_gather_is_left_alone() -> None:
    assert try_rows(DataLoader(Noisy(), batch_size=64), seconds=0.1) == {}


def test_gathering_is_measured_in_a_fork() -> None:
    held = held_for_trial(DataLoader(TensorDataset(torch.rand(NUM, 3)), batch_size=256))
    found = try_rows(held, seconds=0.2)["rows"]
    assert 0 < found["ratio"] < 0.5
    assert found["spread"] >= 0.05


def test_a_dataset_that_takes_rows_of_a_tensor_is_measured() -> None:
    held = held_for_trial(DataLoader(Own(), batch_size=1024))
    assert 0 < try_rows(held, seconds=0.2)["rows"]["ratio"] < 0.9


def test_a_diagnosis_predicts_what_was_measured() -> None:
    found = analyze(process(make_s=0.03, work_s=0.005))
    workload = workload_from(found)
    assert isinstance(workload, Workload)
    tried = {"rows": {"ratio": 0.02, "spread": 0.05}}
    candidates = candidates_for(found, workload, Trials(reasons={"": "datapipe sees no files"}, deferral=tried))
    (remedy,) = [one for one in candidates.remedies if one.name == NAME]
    stall, cpu = production_parts(workload)
    assert remedy.change.production_factor == pytest.approx(max(1e-9, cpu.mean() * 0.02 / (stall + cpu).mean()))
    assert remedy.change.setup is not None
    assert remedy.change.setup.num_workers == 0
    assert any("from_torch" in snippet.text for snippet in remedy.how.code)
    assert NAME in candidates.applied
