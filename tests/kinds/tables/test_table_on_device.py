"""Loaders of tables that deliver to a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, pretend_gpus
from table_values import write_table

import datapipe as dp
from datapipe.kernel.pytree import map_nest, tensors_of

NUM_ROWS = 6000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "t.parquet", NUM_ROWS)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """A fake device in CUDA's place."""
    device = FakeDevice(seed=7)
    pretend_gpus(monkeypatch, current=2)
    monkeypatch.setattr("datapipe.kernel.delivery.runtime_of", lambda _: device)
    yield device
    device.drain()
    assert device.forbidden == []


@pytest.mark.parametrize("tail", ["pad", "mask"])
def test_batches_on_the_device_are_the_cpus(table: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, tail: str) -> None:
    options = {
        "batch_size": 500,
        "shuffle": True,
        "seed": 3,
        "columns": {"a": ["I*"], "b": ["C*"]},
        "label": "label",
        "tail": tail,
    }
    read = []
    for batch in dp.TableLoader(table, device="cuda", backend="tables_arrow", num_workers=2, **options):
        seen = {id(tensor): fake.read(tensor) for tensor in tensors_of(batch)}
        read.append((batch, seen))
    fake.drain()
    monkeypatch.undo()
    expected = list(dp.TableLoader(table, device="cpu", num_workers=0, **options))
    assert len(read) == len(expected) == 12
    for (batch, seen), theirs in zip(read, expected, strict=True):

        def look(tensor: Any, seen: Any = seen) -> Any:
            return seen[id(tensor)]()

        ours = map_nest(batch, look, look)
        for one, other in zip(tensors_of(ours), tensors_of(theirs), strict=True):
            assert torch.equal(one, other)
