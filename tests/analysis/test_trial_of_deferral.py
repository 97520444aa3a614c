"""Deferred decoding tried on a Dataset of the script's own: what a diagnosis makes of it, and that the script goes on."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diagnosis_processes import process
from fixtures import encode, picture
from PIL import Image
from torch.utils.data import DataLoader

from datapipe.analysis.judge.analysis import analyze
from datapipe.analysis.predict.candidates import candidates_for
from datapipe.analysis.predict.measured_workload import workload_from
from datapipe.analysis.predict.workload import Workload, production_parts
from datapipe.instruments.trials import forking
from datapipe.instruments.trials.dataset import held_for_trial, try_deferral
from datapipe.instruments.trials.results import Trials

NAME = "datapipe.from_torch, the Dataset as it is"


class Photos(torch.utils.data.Dataset[Any]):
    def __init__(self, root: Path) -> None:
        self.paths = []
        for number in range(6):
            self.paths.append(root / f"{number}.jpg")
            self.paths[-1].write_bytes(encode(picture(number, 200, 300), "JPEG"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        return Image.open(self.paths[number]).convert("RGB").crop((20, 20, 60, 60)).resize((32, 32), 2)


def stacked(images: list[Any]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.asarray(image) for image in images]))


def tried(dataset: Any, *, seconds: float = 0.2, **options: Any) -> Any:
    held = held_for_trial(DataLoader(dataset, batch_size=4, collate_fn=stacked, **options))
    return {"reason": held} if isinstance(held, str) else try_deferral(held, seconds=seconds)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_is_tried_both_ways_in_a_child(tmp_path: Path, num_workers: int) -> None:
    found = tried(Photos(tmp_path), num_workers=num_workers)
    assert 0 < found["ratio"] < 3
    assert found["spread"] >= 0.05
    assert found["num_samples"] >= 20
    assert not multiprocessing.active_children()


def test_code_that_fails_hangs_or_ends_the_child_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Photos):
        def __getitem__(self, number: int) -> Any:
            raise KeyError("no such sample")

    class Ending(Photos):
        def __getitem__(self, number: int) -> Any:
            raise SystemExit(3)

    class Hanging(Photos):
        def __getitem__(self, number: int) -> Any:
            time.sleep(600)

    assert "its code failed when it was tried (KeyError: 'no such sample')" in tried(Failing(tmp_path))["reason"]
    assert "SystemExit" in tried(Ending(tmp_path))["reason"]
    monkeypatch.setattr(forking, "_GRACE_S", 0.0)
    assert tried(Hanging(tmp_path))["reason"] == "there was no time left to try it"


def test_loaders_that_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    assert "not read by keys" in held_for_trial(DataLoader(Stream()))
    assert "not read by keys" in tried_reason(held_for_trial(DataLoader(Photos(tmp_path), batch_size=None)))
    assert "its workers start by spawn" in tried(Photos(tmp_path), num_workers=1, multiprocessing_context="spawn")["reason"]
    monkeypatch.setenv("DATAPIPE_DEFER", "0")
    assert tried(Photos(tmp_path))["reason"] == "from_torch does not defer its images"


def tried_reason(held: Any) -> str:
    assert isinstance(held, str)
    return held


def test_a_diagnosis_predicts_what_was_measured() -> None:
    found = analyze(process(make_s=0.03, work_s=0.005))
    workload = workload_from(found)
    assert isinstance(workload, Workload)
    trials = Trials(reasons={"": "datapipe sees no files in Photos"}, deferral={"ratio": 0.5, "spread": 0.05, "num_samples": 99})
    candidates = candidates_for(found, workload, trials)
    (remedy,) = [one for one in candidates.remedies if one.name == NAME]
    stall, cpu = production_parts(workload)
    assert remedy.change.production_factor == pytest.approx((stall.mean() + cpu.mean() / 2) / (stall + cpu).mean())
    assert remedy.change.setup is None
    assert any("datapipe.from_torch(loader" in snippet.text for snippet in remedy.how.code)
    assert candidates.applied[NAME].from_torch
    left = candidates_for(found, workload, Trials(reasons={"": "no"}, deferral={"reason": "its code failed"})).left_out
    assert left[NAME] == "its code failed"
