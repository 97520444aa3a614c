"""Workers that Ray begins on the second node of a cluster: the same batches, whatever becomes of them."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batches import Batches, equal
from decoders import images_made_here, is_alive, wait_until
from fixtures import make_folder
from ray_nodes import TwoNodes, two_nodes

import datapipe as dp
from datapipe import transforms as T
from datapipe.core import ray_cluster
from datapipe.core.environment import importing_as_here
from datapipe.errors import DependencyError, OptionError
from datapipe.remote_workers import fleet as fleets
from datapipe.remote_workers import ray_workers

ray = pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")

NUM = 96
WORKERS = dp.Workers("ray", num_cpus=1)
ARGUMENTS: dict[str, Any] = {
    "batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 0, "output": "dict",
    "transform": [T.RandomResizedCrop(24)],
}  # fmt: skip


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes() as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers of a test have given back their core when the next one begins, for which it waits on a busy machine, too."""
    monkeypatch.setattr(fleets, "_BEGIN_S", 180.0)
    yield
    gc.collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("ray") / "folder", num=NUM, size=(40, 48))


@pytest.fixture(scope="module")
def expected(folder: Path) -> Batches:
    return list(dp.DataLoader(folder, **ARGUMENTS))


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that this process decodes."""
    monkeypatch.setattr(fleets, "_AGAIN_S", 0.1)
    return images_made_here(monkeypatch)


def worker_of(loader: Any) -> Any:
    (worker,) = loader._passes.kind.elsewhere.fleet.workers
    return worker


def pids() -> list[int]:
    """The processes of actors that are workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::Decoder"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.nightly
def test_the_second_node_decodes(nodes: TwoNodes, folder: Path, expected: Batches, made_here: list[int]) -> None:
    """Two loaders share the worker."""
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=WORKERS)
    assert "elsewhere Ray's worker 1 (1 core): 2 blocks at once" in str(dp.explain(loader))
    made_here.clear()
    assert equal(list(loader), expected)
    assert equal(list(dp.DataLoader(folder, **ARGUMENTS, workers=dp.Workers("ray", num_cpus=1))), expected)
    assert not made_here
    assert len(pids()) == 1


@pytest.mark.nightly
def test_a_worker_that_dies_is_begun_anew(
    nodes: TwoNodes, folder: Path, expected: Batches, made_here: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=WORKERS)
    iterator = iter(loader)
    found = [next(iterator) for _ in range(2)]
    made_here.clear()
    (pid,) = pids()
    os.kill(pid, signal.SIGKILL)
    found += list(iterator)
    assert equal(found, expected)
    assert sum(made_here) > NUM // 3, "decoded here"
    assert caplog.text.count("no worker is left: threads make the batches until one answers again") == 1
    wait_until(lambda: worker_of(loader).is_here, what="the worker is not begun anew")
    made_here.clear()
    list(loader)
    assert not made_here, "decoded there"
    assert pids() != [pid]


@pytest.mark.nightly
def test_workers_end_with_the_last_loader(nodes: TwoNodes, folder: Path) -> None:
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=WORKERS)
    other = dp.DataLoader(folder, **ARGUMENTS, workers=WORKERS)
    next(iter(loader))
    next(iter(other))
    (pid,) = pids()
    del loader
    gc.collect()
    list(other)
    assert pids() == [pid]
    del other
    gc.collect()
    wait_until(lambda: not pids(), what="the worker outlives its loaders")


@pytest.mark.nightly
def test_a_worker_is_used_once_there_is_room_for_it(
    nodes: TwoNodes,
    folder: Path,
    expected: Batches,
    made_here: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No node has two cores; then one comes."""
    monkeypatch.setattr(fleets, "_BEGIN_S", 1.0)
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=dp.Workers("ray", num_cpus=2, cpus_per_worker=2))
    assert equal(list(loader), expected)
    assert "0 of 1 worker of Ray can be used (Ray's worker 1 waits for a node with 2 free cores, or begins" in caplog.text
    assert "elsewhere Ray's worker 1 (not there): 4 blocks at once" in str(dp.explain(loader))
    third = nodes.cluster.add_node(**{**nodes.settings, "num_cpus": 2})
    try:
        wait_until(lambda: worker_of(loader).is_here, what="the worker is not placed")
        made_here.clear()
        list(loader)
        assert not made_here, "decoded there"
    finally:
        nodes.cluster.remove_node(third)


@pytest.mark.nightly
def test_a_killed_training_leaves_no_worker(nodes: TwoNodes, folder: Path, tmp_path: Path) -> None:
    """Its own process connects to the cluster of RAY_ADDRESS."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import time
        import datapipe as dp
        from datapipe import transforms as T
        loader = dp.DataLoader({str(folder)!r}, 8, transform=[T.CenterCrop(24)], workers=dp.Workers("ray", num_cpus=1))
        next(iter(loader))
        print("trains", flush=True)
        time.sleep(100)
        """)
    )
    environment = importing_as_here() | {"RAY_ADDRESS": nodes.address}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trains\n"
        (pid,) = pids()
        process.kill()
    wait_until(lambda: not is_alive(pid), what="the worker outlives the training")


@pytest.mark.nightly
def test_the_example_trains(nodes: TwoNodes, folder: Path) -> None:
    environment = importing_as_here() | {"RAY_ADDRESS": nodes.address, "OMP_NUM_THREADS": "1"}
    example = Path(__file__).resolve().parents[2] / "examples" / "decode_elsewhere.py"
    command = [sys.executable, example, folder, "--ray-cpus", "1", "--threads", "0", "--batch-size", "16"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *epochs, workers = done.stdout.splitlines()
    losses = [float(line.split()[3].rstrip(",")) for line in epochs]
    assert losses[1] < losses[0]
    assert re.fullmatch(r"elsewhere Ray's worker 1 \(1 core\): 2 blocks at once; \d+ blocks so far", workers)


@pytest.mark.nightly
def test_a_dataset_of_the_script_runs_there(nodes: TwoNodes, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        textwrap.dedent("""
        import os
        import torch
        from torch.utils.data import DataLoader, Dataset
        import datapipe as dp

        class Numbers(Dataset):
            def __len__(self):
                return 12
            def __getitem__(self, number):
                return 10 * number, os.getpid()

        loader = dp.from_torch(DataLoader(Numbers(), batch_size=4), device="cpu", workers=dp.Workers("ray", num_cpus=1))
        numbers, processes = zip(*loader)
        assert os.getpid() not in torch.cat(processes)
        print(torch.cat(numbers).tolist())
        """)
    )
    environment = importing_as_here() | {"RAY_ADDRESS": nodes.address, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[*range(0, 120, 10)]}\n"


@pytest.mark.nightly
def test_other_versions_are_refused_by_name(nodes: TwoNodes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "_versions_here", lambda: {**fleets.versions(fleets.DECODING), "pillow": "1.2.3"})
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=WORKERS)
    with pytest.raises(DependencyError, match=r"the worker at \S+ has pillow \S+ instead of 1\.2\.3; install the same versions"):
        next(iter(loader))


@pytest.mark.nightly
def test_a_node_without_datapipe_is_named(nodes: TwoNodes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the module were there alone."""

    class Decoder:
        def __init__(self, *_: Any) -> None:
            raise ModuleNotFoundError("No module named 'datapipe'")

        def url(self) -> str:
            raise AssertionError

    monkeypatch.setattr("datapipe.serving.ray_actor.Decoder", Decoder)
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=dp.Workers("ray", num_cpus=1, cpus_per_worker=1))
    with pytest.raises(
        DependencyError,
        match=r"Ray's worker 1 cannot be begun \(ModuleNotFoundError: .*datapipe.\); every node needs",
    ):
        next(iter(loader))


@pytest.mark.nightly
def test_another_cluster_than_that_of_this_process(nodes: TwoNodes, folder: Path) -> None:
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=dp.Workers("ray", num_cpus=1, address="10.0.0.1:6379"))
    with pytest.raises(OptionError, match=r"Workers\('ray', address='10\.0\.0\.1:6379'\): this process is connected to "):
        next(iter(loader))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://127.0.0.1:10001", r"Workers\('ray', address='ray://127.0.0.1:10001'\): Ray's client \(ray://\) is no part"),
        ("127.0.0.1:1", r"no Ray cluster at Workers\('ray', address='127.0.0.1:1'\): .*; `ray status` on a machine"),
    ],
)
def test_where_no_cluster_answers(address: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "import_ray", lambda _: SimpleNamespace(is_initialized=lambda: False))
    loader = dp.DataLoader(folder, **ARGUMENTS, workers=dp.Workers("ray", num_cpus=1, address=address))
    with pytest.raises(OptionError, match=message):
        next(iter(loader))


@pytest.mark.parametrize(
    ("settings", "nodes", "sizes"),
    [
        ({"num_cpus": 64}, [64, 32], [8] * 8),
        ({"num_cpus": 20}, [64, 8], [8, 8, 4]),
        ({"num_cpus": 6}, [64, 4, 0], [4, 2]),
        ({"num_cpus": 6}, [2], [6]),
        ({"num_cpus": 10, "cpus_per_worker": 5}, [64, 2], [5, 5]),
    ],
)
def test_sizes_of_workers(settings: dict[str, int], nodes: list[int], sizes: list[int]) -> None:
    """The first node is the training's own."""
    known = [
        {"NodeID": str(number), "Alive": True, "Resources": {"CPU": float(cores)} if cores else {}}
        for number, cores in enumerate(nodes)
    ]
    ray = SimpleNamespace(
        nodes=lambda: [*known, {"NodeID": "9", "Alive": False, "Resources": {"CPU": 1.0}}],
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "0"),
    )
    assert ray_workers._sizes(ray, dp.Workers("ray", **settings)) == sizes
