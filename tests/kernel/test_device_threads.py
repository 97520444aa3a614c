"""Threads on GPUs other than 0, CUDA graphs captured by others, and the JPEG engines: the rules, on a stand-in for torch.cuda."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from datapipe.errors import BackendError
from datapipe.kernel import cuda_runtime
from datapipe.kernel.cuda_runtime import CudaRuntime
from datapipe.kinds.images.dali.gate import CutForm
from datapipe.kinds.images.dali.pipeline import DaliPipeline, RunError
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.transforms.protocols import Cuts

CUTS = Cuts(np.array([[0, 0, 8, 8]]), np.array([[8, 8]]), np.array([[0, 0, 8, 8]]), np.zeros((1, 2), np.bool_))


class Stream:
    """A stream of GPU 3 that notes when the host waits for it."""

    device = torch.device("cuda", 3)
    cuda_stream = 77

    def __init__(self, events: list[str], name: str) -> None:
        self._events, self._name = events, name

    def synchronize(self) -> None:
        self._events.append(f"drained {self._name}")


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The devices that are set, in order, by what torch.cuda's contexts do when they are entered and left.

    A thread begins on device 0. `torch.cuda.device` goes back only to where a context is; `torch.cuda.stream` sets the
    stream's device, and then, whatever it is, the one before it.
    """
    current, seen = threading.local(), []

    def set_device(device: Any) -> None:
        current.index = torch.device(device).index
        seen.append(current.index)

    @contextlib.contextmanager
    def on_device(device: Any) -> Iterator[None]:
        before = getattr(current, "index", 0)
        set_device(device)
        yield
        current.index = before

    @contextlib.contextmanager
    def on_stream(stream: Any) -> Iterator[None]:
        before = getattr(current, "index", 0)
        set_device(stream.device)
        yield
        set_device(torch.device("cuda", before))

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(torch.cuda, "device", on_device)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    return seen


@pytest.fixture(autouse=True)
def _memory_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of GPU 3 is this process's, and torch is built for CUDA."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, device=None, **kwargs: empty(*args, **kwargs))
    monkeypatch.setattr("torch.version.cuda", "13.2")


class Graph:
    """DALI's pipeline as far as a run goes; `outcome` is what its outputs are, or raise."""

    def __init__(self, events: list[str], name: str, outcome: Exception | None = None) -> None:
        self._events, self._name, self._outcome = events, name, outcome

    def feed_input(self, name: str, values: Any) -> None: ...

    def schedule_run(self) -> None:
        self._events.append(f"run {self._name}")

    def outputs(self, *, cuda_stream: Any) -> Any:
        if self._outcome is not None:
            raise self._outcome
        return (self,)

    def as_tensor(self) -> Graph:
        return self

    def shape(self) -> list[int]:
        return [1, 8, 8, 3]

    def copy_to_external(self, ptr: ctypes.c_void_p, cuda_stream: ctypes.c_void_p, *, non_blocking: bool) -> None:
        assert cuda_stream.value == Stream.cuda_stream, "the pixels are to be complete for work on the stream of the run"
        assert non_blocking
        ctypes.memset(ptr, 0, 8 * 8 * 3)


def pipeline_of(graph: Graph, *, load: float) -> DaliPipeline:
    pipeline = DaliPipeline(GraphOptions(8, 8, 4, 3, CutForm(False, (0, 0, 0)), True, 2, load))
    pipeline._pipeline = graph
    return pipeline


# -- the device of a thread ---------------------------------------------------------------------------


def test_nothing_sets_device_0_on_rank_3(devices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_runtime, "tolerate_captures", lambda: None)
    runtime, events = CudaRuntime(torch.device("cuda", 3)), list[str]()

    def work() -> None:
        runtime.enter_thread()
        with runtime.under(Stream(events, "a")):
            pass
        pipeline_of(Graph(events, "a"), load=0.0).run([b""], CUTS, Stream(events, "a"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert set(devices) == {3}


def test_a_torch_for_rocm_has_no_driver_of_cudas(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", load)
    with pytest.raises(OSError, match="libcuda"):
        cuda_runtime.tolerate_captures()
    monkeypatch.setattr("torch.version.cuda", None)
    cuda_runtime.tolerate_captures()


def test_a_batch_made_in_the_callers_thread_leaves_device_0_alone(devices: list[int]) -> None:
    events: list[str] = []
    pipeline_of(Graph(events, "a"), load=0.0).run([b""], CUTS, Stream(events, "a"))
    assert 0 not in devices


# -- captures of CUDA graphs --------------------------------------------------------------------------


class Driver:
    """libcuda with one function."""

    def __init__(self, error: int) -> None:
        self.modes: list[int] = []
        self._error = error

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        self.modes.append(mode._obj.value)
        return self._error


def test_a_thread_of_ours_breaks_no_capture(devices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: {"libcuda.so.1": driver}[name])
    CudaRuntime(torch.device("cuda", 1)).enter_thread()
    assert driver.modes == [1], "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"
    assert devices == [1]


def test_a_driver_that_refuses_is_said(devices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(201))
    with pytest.raises(BackendError, match=r"capture mode \(error 201\); see `datapipe doctor`"):
        CudaRuntime(torch.device("cuda", 1)).enter_thread()


# -- the JPEG engines ---------------------------------------------------------------------------------


def test_runs_on_the_engines_follow_each_other(devices: list[int]) -> None:
    events: list[str] = []

    def work(name: str) -> None:
        pipeline, stream = pipeline_of(Graph(events, name), load=0.5), Stream(events, name)
        for _ in range(200):
            pipeline.run([b""], CUTS, stream)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(events) == 800
    for run, drained in zip(events[::2], events[1::2], strict=True):
        assert drained == run.replace("run", "drained"), "no run begins before the GPU is done with the one before"


def test_without_the_engines_the_host_does_not_wait(devices: list[int]) -> None:
    events: list[str] = []
    pipeline_of(Graph(events, "a"), load=0.0).run([b""], CUTS, Stream(events, "a"))
    assert events == ["run a"]


def test_after_a_failed_run_on_the_engines_the_whole_gpu_is_drained(devices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: events.append(f"drained GPU {index}"))
    pipeline = pipeline_of(Graph(events, "a", RuntimeError("no")), load=0.5)
    with pytest.raises(RunError):
        pipeline.run([b""], CUTS, Stream(events, "a"))
    assert events == ["run a", "drained GPU 3"]
