"""What every test can rely on: one torch thread per worker, and no settings from outside."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from thinning import spread

if TYPE_CHECKING:
    from decoders import Decoder

gc.disable()  # until all tests are collected: many objects are made, and none is garbage

pytest.register_assert_rewrite("datapipe.testing.loaders")  # a failure there shows the values that it compared

# The same examples at every run: a failure in CI is a failure at home. No limit of time for each: others may have the cores.
settings.register_profile(
    "datapipe", derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
settings.load_profile("datapipe")

# The suite runs in parallel processes on few cores; torch would start a thread per core in each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell ignores Ctrl-C in what it starts in the background, and processes started from there would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A process that is killed loses nothing that the kernel has. Syncing to a disk, thousands of times, only takes time.
os.fsync = lambda descriptor: None  # type: ignore[assignment]

# Tests of worker processes say so themselves; in all others threads make the batches, whatever the number of workers.
os.environ["DATAPIPE_WORKERS"] = "threads"

_FROM_OUTSIDE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_CPUS_PER_TASK")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ranks and caches of the machine that runs the tests must not reach them."""
    for name in _FROM_OUTSIDE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader without a device argument uses the CPU, also on machines with a GPU, except in the tests of that GPU."""
    if "torch" in sys.modules and not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture(autouse=True)
def _patient() -> None:
    """A test that waits for stores for a moment only leaves the tests after it as patient as they are by default."""
    module = sys.modules.get("datapipe.stores.requests")
    if module is not None and module._shared is not None:
        module.apply_settings(sys.modules["datapipe.stores.settings"].Remote())


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """A loader without a seed takes torch's; it is the same in every run, so that a failing test fails again."""
    if "torch" in sys.modules:
        # torch.manual_seed would format the stack at every call too, for GPUs that nothing has used yet.
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    """A `datapipe serve` for what lies below its `top`. Not to be ended."""
    from decoders import Decoder

    service = Decoder(tmp_path_factory.mktemp("served"))
    yield service
    service.stop()


def pytest_collection_finish() -> None:
    """Take what was imported out of every garbage collection to come; a test that collects would walk all of it."""
    gc.enable()
    gc.collect()
    gc.freeze()


# Modules whose tests wait long for other processes: they come first, so that no worker is left alone with them at the end.
_LONG = ("test_engine_ray.py", "test_gpu_check.py", "test_pages.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave cases to the night, put long tests first, and skip those marked `gpu`, with a reason, where torch sees no device.

    It runs before pytest's own hook, which then selects by marks.
    """
    of_tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("daily") and not item.get_closest_marker("nightly"):
            assert isinstance(item, pytest.Function)
            of_tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in of_tests.values():
        (number,) = cases[0].get_closest_marker("daily").args
        by_day = spread([{name: repr(value) for name, value in case.callspec.params.items()} for case in cases], number)
        for place in set(range(len(cases))).difference(by_day):
            cases[place].add_marker("nightly")
    items.sort(key=lambda item: _LONG.index(item.path.name) if item.path.name in _LONG else len(_LONG))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU that torch can use"))
