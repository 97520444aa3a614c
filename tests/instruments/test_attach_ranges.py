"""NVTX ranges, caught by a recorder; and the message if there is no NVTX."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path

import attach_datasets as data
import pytest
import torch
from attach_watch import Calls, attached
from torch.utils.data import DataLoader

from datapipe.cli.main import main
from datapipe.instruments.attach.step_hooks import HookedMeter
from datapipe.instruments.torch_stages.install import restore_probe
from datapipe.instruments.torch_stages.probe import CollateProbe
from datapipe.instruments.torch_stages.ranges import Recorder, open_recorder, recorder


class FakeRecorder:
    """Keeps the ranges, those of the process with their number."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def push(self, name: str) -> None:
        self.log.append(name)

    def pop(self) -> None:
        self.log.append("pop")

    def start(self, name: str) -> int:
        self.log.append(f"start {name}")
        return len(self.log)

    def end(self, started: int) -> None:
        self.log.append(f"end of {self.log[started - 1]}")


def test_ranges_are_put_around_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = FakeRecorder()
    monkeypatch.setattr("datapipe.instruments.torch_stages.ranges._recorder", ranges)
    calls = Calls()
    with attached(HookedMeter(calls, recorder=Recorder(ranges.push, ranges.pop, ranges.start, ranges.end))):
        for _ in DataLoader(data.Numbers(data.Chain(data.Add(1)), num=1)):
            ranges.log.append("the step")
        with pytest.raises(ZeroDivisionError), torch.no_grad():
            list(DataLoader(data.Numbers(data.fail_in_transform)))
    transforms = ["Chain", "Add", "pop", "pop"]
    step = ["start training step", "the step", "end of start training step"]
    assert ranges.log[:17] == [
        "next()",
        "dataset",
        *transforms,
        "pop",
        "collate",
        "pop",
        "pop",
        *step,
        "next()",
        "pop",
        "next()",
        "dataset",
    ]
    assert ranges.log[17:] == ["fail_in_transform", "pop", "pop", "pop"]
    assert (calls.num("begin"), calls.num("end")) == (3, 1)


def test_workers_that_are_not_forked_record_ranges_too(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "datapipe.instruments.torch_stages.ranges._recorder"
    monkeypatch.setattr(place, FakeRecorder())
    probe = pickle.dumps(CollateProbe(len, (1, 2), restore_probe))
    monkeypatch.setattr(place, None)
    monkeypatch.setattr("datapipe.instruments.torch_stages.install.open_recorder", lambda: "opened")
    assert pickle.loads(pickle.dumps(CollateProbe(len, (1, 2), restore_probe))).iterator == (1, 2)
    assert recorder() is None
    assert pickle.loads(probe).iterator == (1, 2)
    assert recorder() == "opened"  # type: ignore[comparison-overlap]


def test_which_ranges_there_are_and_what_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('has run')")
    installed = types.SimpleNamespace(push_range=1, pop_range=2, start_range=3, end_range=4)
    monkeypatch.setitem(sys.modules, "nvtx", installed)
    monkeypatch.setattr("torch.version.cuda", "12.8")
    assert open_recorder().push is torch.cuda.nvtx.range_push
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("datapipe.instruments.torch_stages.ranges.find_spec", lambda _: "found")
    assert open_recorder().end == 4  # type: ignore[comparison-overlap]
    monkeypatch.setattr("datapipe.instruments.torch_stages.ranges.find_spec", lambda _: None)
    assert main(["diagnose", "--nvtx", "train.py"]) == 1
    printed = capfd.readouterr()
    assert "pip install nvtx" in printed.err
    assert printed.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
