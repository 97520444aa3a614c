"""Ceilings: what a sample costs, what the machine could do, and what is said of both."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import make_folder

from datapipe.cli.main import main
from datapipe.core.observe import Observer, Stage, StageEvent
from datapipe.diagnostics.ceilings import of_loader
from datapipe.diagnostics.ceilings.costs import Costs, costs_of
from datapipe.diagnostics.ceilings.of_loader import copy_rate, disk_rate, memory_rate, roofline_of
from datapipe.diagnostics.ceilings.roofline import Ceiling, Roofline, as_json, as_text

_NO_LOCK = [sys.executable, "-c", "1"]  # a process that ends before it can be watched


class Loader:
    """Two batches of three samples of 40 bytes an epoch, each read from 100 bytes; decoding keeps a core busy."""

    num_workers, device = 2, torch.device("cpu")

    def __init__(self) -> None:
        self.num_epochs = 0
        self._observers: list[Observer] = []

    def observe(self, observer: Observer) -> None:
        self._observers.append(observer)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.num_epochs += 1
        for step in range(2):
            np.linalg.norm(np.ones((200, 200)))
            for observer in self._observers:
                observer(StageEvent(Stage.READ, step, 0, 3_000, 3, 300))
                observer(StageEvent(Stage.DECODE, step, 0, 9_000, 3))
                observer(StageEvent(Stage.WAIT, step, 0, 50_000, 3))
            yield torch.zeros(3, 10)


def costs(**changed: object) -> Costs:
    known = {"num_samples": 100, "wall_s": 0.001, "cpu_s": 0.0018, "stage_s": {"read": 0.0002, "decode": 0.0016}}
    return Costs(**(known | {"read_nbytes": 100_000.0, "batch_nbytes": 600_000.0} | changed))  # type: ignore[arg-type]


def test_costs_are_those_of_a_sample() -> None:
    found = costs_of(Loader(), least_samples=20, least_s=0.1)
    assert found.num_samples >= 20
    assert found.num_samples % 3 == 0
    assert found.stage_s == {"read": pytest.approx(1e-6), "decode": pytest.approx(3e-6)}
    assert (found.read_nbytes, found.batch_nbytes) == (100, 40)
    assert found.cpu_s > 0
    assert found.wall_s * found.num_samples >= 0.1


def test_the_machine_is_measured(tmp_path: Path) -> None:
    assert memory_rate(2, seconds=0.1) > 1e7
    assert copy_rate(torch.device("cpu")) is None
    assert disk_rate(tmp_path, 2, seconds=0.1) is None
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "small").write_bytes(b"12345")
    (tmp_path / "large").write_bytes(os.urandom(3_000_000))
    rate = disk_rate(tmp_path, 2, seconds=0.1)
    assert rate is not None
    assert rate > 1e5
    assert disk_rate(tmp_path / "large", 1, seconds=0.1) is not None


def test_reading_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"12345")

    def fail(*_: object) -> bytes:
        raise OSError("the disk is on fire")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(OSError, match="on fire"):
        disk_rate(tmp_path, 2, seconds=0.1)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, 1 GB/s of storage, 7 GB/s of memory; a lock that is held for a tenth of a sample's millisecond."""
    monkeypatch.setattr(of_loader, "num_usable_cores", lambda: 2)
    monkeypatch.setattr(of_loader, "disk_rate", lambda path, threads: 1e9)
    monkeypatch.setattr(of_loader, "memory_rate", lambda threads: 7e9)
    monkeypatch.setattr(of_loader, "watch", lambda *_, **__: [{"held": 0.1, "wall_s": 0.001}])
    monkeypatch.setattr(of_loader, "costs_of", lambda loader, least_samples: costs())


@pytest.mark.usefixtures("machine")
def test_ceilings_are_what_there_is_over_what_a_sample_takes(tmp_path: Path) -> None:
    found = roofline_of(Loader(), str(tmp_path), [], least_samples=10)
    assert {one.part: one.per_s and round(one.per_s) for one in found.ceilings} == {
        "cores": 1111,
        "storage": 10_000,
        "memory": 10_000,
        "Python's lock": 10_000,
    }
    assert found.ceilings[0].part == "cores"
    assert "1.8 ms of CPU time on 2 cores: decode 89%, read 11%" in found.ceilings[0].why


@pytest.mark.usefixtures("machine")
def test_the_lowest_is_said_and_the_next(tmp_path: Path) -> None:
    text = as_text(roofline_of(Loader(), str(tmp_path), [], least_samples=10, demand_per_s=2000))
    assert "The lowest ceiling is cores, 90% used; with more of that, the next is storage, 9 times as high." in text
    assert "The model takes 2,000 samples/s: it waits for data 50% of the time; too low for it: cores." in text
    assert "the loader keeps up" in as_text(roofline_of(Loader(), str(tmp_path), [], least_samples=10, demand_per_s=500))
    assert all(len(line) <= 130 for line in text.splitlines())


@pytest.mark.nightly
def test_what_cannot_be_measured_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(of_loader, "costs_of", lambda loader, least_samples: costs(read_nbytes=0.0))
    found = roofline_of(Loader(), str(tmp_path), _NO_LOCK, least_samples=10)
    assert {one.part: one.why for one in found.ceilings if one.per_s is None} == {
        "storage": "this loader does not say how many bytes it reads",
        "Python's lock": "the watched process ended before it began",
    }
    assert [one.part for one in found.ceilings[-2:]] == ["storage", "Python's lock"]
    assert "not measured  this loader" in as_text(found)
    assert as_json(found)["ceilings"][-1]["per_s"] is None
    monkeypatch.setattr(of_loader, "costs_of", lambda loader, least_samples: costs())
    assert roofline_of(Loader(), "s3://bucket/data", _NO_LOCK, least_samples=10).ceilings[-2].per_s is None


def test_one_ceiling_has_no_next() -> None:
    only = Roofline(measured_per_s=10, ceilings=(Ceiling(part="cores", per_s=20, why="all"),))
    assert as_text(only).endswith("The lowest ceiling is cores, 50% used.")


@pytest.mark.nightly
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "data", num=40)
    command = ["bench", str(tmp_path / "data"), "--ceilings", "--images", "40", "--batch-size", "8", "--size", "16", "--json"]
    assert main([*command, "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    parts = {one["part"]: one["per_s"] for one in found["ceilings"]}
    assert set(parts) == {"cores", "storage", "Python's lock", "memory"}
    assert all(per_s is None or per_s > 0 for per_s in parts.values())
    assert parts["cores"] is not None
    assert parts["storage"] is not None
    assert main(["bench", str(tmp_path / "data"), "--demand", "100"]) == 2
    assert "with --ceilings" in capsys.readouterr().err
