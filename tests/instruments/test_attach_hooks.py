"""What is put into torch and into the import system: it does what it is for, and nothing where it does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import attach_datasets as data
import pytest
import torch
from attach_watch import Calls, attached
from torch.utils.data import DataLoader, dataloader

from datapipe.instruments.attach import cuda_hooks, loaders
from datapipe.instruments.attach.cuda_hooks import BusySampler, read_busy
from datapipe.instruments.attach.launching import child_environment
from datapipe.instruments.attach.machine import rank_here, surroundings
from datapipe.instruments.torch_stages import install as seam
from datapipe.instruments.torch_stages.patching import after_import
from datapipe.instruments.torch_stages.timing import ThreadCounters, between, thread_counters


class FakeTensor:
    """Knows where it is, and says what is done to it."""

    def __init__(self, device: str) -> None:
        self.device = types.SimpleNamespace(type=device)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def to(self, device: Any = None, **kwargs: Any) -> FakeTensor:
        kind = getattr(device, "device", device)
        return FakeTensor(self.device.type if kind in ("dtype", None) else str(getattr(kind, "type", kind)))

    def cpu(self) -> FakeTensor:
        return FakeTensor("cpu")

    def cuda(self) -> FakeTensor:
        return FakeTensor("cuda")

    def copy_(self, src: FakeTensor) -> FakeTensor:
        return self

    def item(self) -> float:
        if self.device.type == "broken":
            raise ValueError("planted")
        return 1.0

    tolist = numpy = nonzero = __float__ = item

    def __bool__(self) -> bool:
        return True

    def __int__(self) -> int:
        return 1

    __index__ = __int__


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(cuda_hooks, "_find_meter", lambda: calls)
    return calls


@pytest.fixture
def tensor() -> Any:
    kind = type("Hooked", (FakeTensor,), {})
    cuda_hooks.replace_methods(kind)
    return kind


def test_waits_for_the_device_are_named(seen: Calls, tensor: Any) -> None:
    on_device = tensor("cuda")
    on_device.item(), on_device.tolist(), bool(on_device), float(on_device), on_device.cpu(), on_device.to("cpu")
    on_device.to("cpu", non_blocking=True), on_device.to("dtype"), on_device.to("cuda")
    names = ["item", "tolist", "__bool__", "__float__", "cpu", "to"]
    assert seen.syncs == [f"Tensor.{name}" for name in names]
    assert seen.num_copies == 0


def test_copies_to_the_device_are_seen(seen: Calls, tensor: Any) -> None:
    on_host, on_device = tensor("cpu"), tensor("cuda")
    for copy in (
        lambda: on_host.cuda(),
        lambda: on_host.to("cuda"),
        lambda: on_host.to(device="cuda"),
        lambda: on_host.to(on_device),
        lambda: on_device.copy_(on_host),
    ):
        before = seen.num_copies
        copy()
        assert seen.num_copies == before + 1
    assert seen.syncs == []


def test_what_stays_on_the_host_is_not_told(seen: Calls, tensor: Any) -> None:
    on_host = tensor("cpu")
    on_host.item(), on_host.tolist(), bool(on_host), on_host.cpu(), on_host.to("dtype"), on_host.to("cpu"), on_host.copy_(on_host)
    assert (seen.syncs, seen.num_copies) == ([], 0)
    with pytest.raises(ValueError, match="planted") as caught:
        tensor("broken").item()
    assert [entry.name for entry in caught.traceback] == ["test_what_stays_on_the_host_is_not_told", "item"]


def test_a_broken_meter_does_not_reach_the_script(monkeypatch: pytest.MonkeyPatch, tensor: Any) -> None:
    monkeypatch.setattr(cuda_hooks, "_find_meter", lambda: 1 / 0)
    assert tensor("cuda").item() == 1.0
    assert tensor("cpu").cuda().is_cuda


@pytest.mark.parametrize(("is_cuda", "told"), [(True, 3), (False, None)])
def test_an_update_tells_the_gpu_of_the_first_parameter(monkeypatch: pytest.MonkeyPatch, is_cuda: bool, told: int | None) -> None:
    devices: list[int | None] = []
    monkeypatch.setattr(cuda_hooks, "_find_meter", lambda: types.SimpleNamespace(note_update=devices.append))
    parameter = types.SimpleNamespace(is_cuda=is_cuda, device=torch.device("cuda", 3) if is_cuda else torch.device("cpu"))
    cuda_hooks._note_update(types.SimpleNamespace(param_groups=[{"params": []}, {"params": [parameter]}]))
    cuda_hooks._note_update(types.SimpleNamespace(param_groups=[]))
    assert devices == [told, None]


def test_methods_are_replaced_once(tensor: Any) -> None:
    before = dict(vars(tensor))
    cuda_hooks.replace_methods(tensor)
    assert vars(tensor) == before


def unknown(**changes: Any) -> types.ModuleType:
    """torch's module, with something else in it."""
    module = types.ModuleType("torch.utils.data.dataloader")
    module.__dict__.update({name: getattr(dataloader, name) for name in ("_BaseDataLoaderIter", "_utils")} | changes)
    return module


def test_an_unknown_torch_is_left_alone() -> None:
    class Iterator:
        def __init__(self, loader: Any, more: Any) -> None: ...

    before = vars(Iterator)["__init__"]
    missing = seam.install(unknown(_BaseDataLoaderIter=Iterator))
    assert "_BaseDataLoaderIter.__init__ takes ['self', 'loader', 'more']" in missing[0]
    assert vars(Iterator)["__init__"] is before
    assert seam.install(unknown(_utils=types.SimpleNamespace()))
    assert seam.install(unknown()) == []


def test_loaders_of_an_unknown_torch_are_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a probe is never made, and batches come without profiles."""
    monkeypatch.setattr("datapipe.instruments.attach.loaders.probing", lambda _: False)
    with attached() as calls:
        assert len(list(DataLoader(data.Numbers(), batch_size=8, num_workers=1))) == 6
    assert (calls.num("end"), calls.profiles) == (6, [])


def test_pinning_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the thread that pins, as torch does it; here pinning only copies."""
    with attached() as calls:
        monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
        monkeypatch.setattr("torch.accelerator.current_accelerator", lambda *_: types.SimpleNamespace(type="cuda"))
        monkeypatch.setattr("torch.accelerator.current_device_index", lambda: 0)
        monkeypatch.setattr("torch.accelerator.set_device_index", lambda _: None)
        for name, value in (("is_available", True), ("current_device", 0), ("set_device", None)):  # torch asks it before 2.7
            monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, value=value: value)
        monkeypatch.setattr("torch.Tensor.pin_memory", lambda self, *_: self.clone())
        for num_workers in (0, 2):
            batches = list(DataLoader(data.Numbers(), batch_size=8, num_workers=num_workers, pin_memory=True))
            assert [int(batch[0, 0]) for batch in batches] == [0, 8, 16, 24, 32, 40]
    assert len(calls.profiles) == 12
    for profile in calls.profiles:
        assert profile.pinned is not None
        assert profile.made.ready_ns <= profile.pinned.start_ns <= profile.pinned.end_ns <= profile.taken_ns


def test_acts_after_an_import_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_to_await.py").write_text("import sys\nVALUE = __spec__.loader is __loader__\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[Any] = []
    finders = list(sys.meta_path)
    after_import("module_to_await", seen.append)
    after_import("no_such_module_to_await", seen.append)
    import json  # noqa: F401

    import module_to_await  # type: ignore[import-not-found]

    with pytest.raises(ImportError):
        import no_such_module_to_await  # type: ignore[import-not-found]  # noqa: F401
    assert seen == [module_to_await]
    assert module_to_await.VALUE
    assert type(module_to_await.__loader__).__name__ == "SourceFileLoader"
    after_import("module_to_await", seen.append)
    assert seen == [module_to_await] * 2
    assert len(sys.meta_path) == len(finders) + 1  # the one that still waits
    sys.meta_path[:] = finders
    del sys.modules["module_to_await"]


def test_boot_is_light() -> None:
    """Every Python process below imports nothing more, and waits for loaders."""
    code = "import sys; print(*sorted(sys.modules)); print(sum(type(finder).__name__ == '_Finder' for finder in sys.meta_path))"
    env = child_environment(os.environ, Path("."), open_watch="none:none")
    alone, hooked = (
        subprocess.run([sys.executable, "-c", code], env=e, capture_output=True, text=True, check=True).stdout.splitlines()
        for e in (dict(os.environ), env)
    )
    assert set(hooked[0].split()) - set(alone[0].split()) <= {"__future__"}
    assert (int(alone[1]), int(hooked[1])) == (0, len(loaders._LOADERS))


def test_counters_count_reading(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(300_000))
    counters = thread_counters()
    before = counters.before()
    nothing = between(before, counters.after())
    if before.read_nbytes is None:
        pytest.skip("/proc/thread-self/io cannot be read here")
    assert nothing.read_nbytes == 0
    before = counters.before()
    file.read_bytes()
    read = between(before, counters.after())
    assert read.read_nbytes is not None
    assert 300_000 <= read.read_nbytes <= 301_000
    assert between(counters.before(with_reading=False), counters.after(with_reading=False)).read_nbytes is None
    elsewhere: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere.append(thread_counters()))
    thread.start()
    thread.join()
    assert elsewhere[0] is not counters


def test_counters_that_cannot_be_read_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError

    monkeypatch.setattr("datapipe.instruments.torch_stages.timing.os.open", refuse)
    none = ThreadCounters().before()
    assert (none.read_nbytes, none.storage_nbytes, none.queued_ns) == (None, None, None)
    assert between(none, none) == none


def test_the_rank_is_that_of_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert rank_here() is None
    monkeypatch.setenv("RANK", "0")
    assert rank_here() == 0
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 3)
    assert rank_here() == 3  # accelerate's debug_launcher calls all of them 0


@pytest.mark.parametrize(
    ("kind", "is_available", "is_used", "gpu"),
    [
        (None, False, False, "none (this torch is built for the CPU alone)"),
        ("cuda", False, False, "none"),
        ("cuda", True, False, "none in use"),
        ("cuda", True, True, "H200"),
        ("xpu", True, True, "H200"),
    ],
)
def test_a_machine_without_a_gpu_is_told_from_one_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, is_available: bool, is_used: bool, gpu: str
) -> None:
    for name, value in (("is_available", is_available), ("is_initialized", is_used), ("get_device_name", "H200")):
        monkeypatch.setattr(f"torch.{kind or 'cuda'}.{name}", lambda value=value: value)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: None if kind is None else torch.device(kind))
    assert surroundings()["gpu"] == gpu
    monkeypatch.setattr(f"torch.{kind or 'cuda'}.is_available", lambda: 1 / 0)
    assert (surroundings()["gpu"] is None) == (kind is not None)


# -- NVML -------------------------------------------------------------------------------------------


def test_how_busy_nvml_calls_the_gpu_is_a_mean_of_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake: none of this has met NVML itself on a machine without a GPU."""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch._C._cuda_hasPrimaryContext", lambda number: True, raising=False)
    monkeypatch.setattr("torch.cuda.utilization", lambda number: said.pop())
    said, done = [40, 80, 60, 100], threading.Event()

    def read() -> float | None:
        share = read_busy()
        if not said:
            done.set()
            raise ModuleNotFoundError("nvidia-ml-py")
        return share

    sampler = BusySampler(read, period_s=0.001)
    assert done.wait(10)
    assert sampler.mean() == pytest.approx((1.0 + 0.6 + 0.8) / 3)
    silent = BusySampler(lambda: None, period_s=0.001)
    silent.stop()
    assert silent.mean() is None


def test_the_gpus_of_a_process_are_those_with_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the thread that asks the current device is the first GPU, whichever one the training thread has set."""
    contexts: list[int] = []
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch._C._cuda_hasPrimaryContext", contexts.__contains__, raising=False)
    monkeypatch.setattr("torch.cuda.utilization", {0: 100, 1: 20, 2: 60, 3: 0}.__getitem__)
    assert read_busy() is None
    contexts.append(2)
    assert read_busy() == pytest.approx(0.6)
    contexts.append(1)
    assert read_busy() == pytest.approx(0.4)
