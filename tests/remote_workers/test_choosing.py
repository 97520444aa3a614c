"""`workers="auto"`: workers that there are are used if they pay, and never change a batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batches import equal
from decoders import TOKEN, Decoder
from fixtures import make_folder

import datapipe as dp
from datapipe import transforms as T
from datapipe.errors import OptionError
from datapipe.remote_workers import choosing
from datapipe.remote_workers.choosing import find, judged

ARGUMENTS: dict[str, Any] = {
    "batch_size": 4, "shuffle": True, "seed": 1, "num_workers": 1, "output": "dict", "transform": [T.RandomResizedCrop(24)],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATAPIPE_WORKERS_AT", "DATAPIPE_CERTIFICATE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATAPIPE_TOKEN", TOKEN)


@pytest.fixture(scope="module")
def folder(decoder: Decoder) -> Path:
    return make_folder(decoder.top / "auto", num=20, size=(40, 48))


def rates(monkeypatch: pytest.MonkeyPatch, *found: float) -> None:
    """As if these had been measured: without, twice with, and again without workers."""
    left = iter(found)
    monkeypatch.setattr(choosing, "measure", lambda batches: next(left) if next(batches) else 0)


@pytest.mark.parametrize(("with_workers", "pays"), [(200.0, True), (104.0, False), (50.0, False)])
def test_workers_are_used_if_they_pay(
    folder: Path, decoder: Decoder, with_workers: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATAPIPE_WORKERS_AT", decoder.url)
    rates(monkeypatch, 90, with_workers - 1, with_workers, 100)
    loader = dp.DataLoader(folder, **ARGUMENTS, workers="auto")
    text = str(dp.explain(loader))
    if pays:
        assert f"elsewhere 127.0.0.1:{decoder.port} (1 core): 2 blocks at once (measured 200 samples/s with workers" in text
    else:
        assert f"elsewhere none (they do not pay: measured {with_workers:.0f} samples/s with workers, 100 without)" in text
    assert equal(list(loader), list(dp.DataLoader(folder, **ARGUMENTS)))


@pytest.mark.nightly
def test_it_measures(folder: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPIPE_WORKERS_AT", decoder.url)
    loader = dp.DataLoader(folder, **ARGUMENTS, workers="auto")
    assert "samples/s with workers, " in str(dp.explain(loader))
    assert equal(list(loader), list(dp.DataLoader(folder, **ARGUMENTS)))


def test_without_workers_nothing_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates(monkeypatch)
    loader = dp.DataLoader(folder, **ARGUMENTS, workers="auto")
    assert "elsewhere none (DATAPIPE_WORKERS_AT names none, and this process belongs to no Ray cluster)" in str(
        dp.explain(loader)
    )


def test_workers_that_cannot_be_used_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None answers; and data that they do not make."""
    monkeypatch.setenv("DATAPIPE_WORKERS_AT", "grpc://127.0.0.1:1")
    assert "elsewhere none (workers cannot be used: workers: the worker at 127.0.0.1:1" in str(
        dp.explain(dp.DataLoader(folder, **ARGUMENTS, workers="auto"))
    )
    whole = dp.DataLoader(folder, 1, transform=[T.Resize(24)], workers="auto")
    assert "elsewhere none (workers cannot be used: " in str(dp.explain(whole))


def test_what_the_environment_names_must_be_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPIPE_WORKERS_AT", "decoder")
    with pytest.raises(OptionError, match="workers are at 'decoder'"):
        dp.DataLoader(folder, **ARGUMENTS, workers="auto")


def test_the_cores_of_a_ray_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are free, on other nodes."""
    nodes = [{"NodeID": name, "Alive": True, "Resources": {"CPU": cores}} for name, cores in (("here", 8.0), ("there", 32.0))]
    free = {"CPU": 20.0}
    context = SimpleNamespace(get_node_id=lambda: "here", gcs_address="here:1")
    ray = SimpleNamespace(
        is_initialized=lambda: True, nodes=lambda: nodes, available_resources=lambda: free, get_runtime_context=lambda: context
    )
    monkeypatch.setitem(choosing.sys.modules, "ray", ray)  # type: ignore[arg-type]
    assert find() == dp.Workers("ray", num_cpus=20)
    free["CPU"] = 40.0
    assert find() == dp.Workers("ray", num_cpus=32)
    del nodes[1]
    assert find() == "no other node of the Ray cluster has free cores"


def test_a_gain_below_a_twentieth_is_none() -> None:
    workers = dp.Workers("grpc://127.0.0.1:1", token=TOKEN)
    assert judged(workers, 100, 105).workers == workers
    assert judged(workers, 100, 104.9).workers is None
