"""Uploads on a real device: the same rules as on the fake one, and copies continue while the GPU is busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import make_folder, until

import datapipe as dp
from datapipe import transforms as T
from datapipe.kernel.accelerators import checked_device
from datapipe.kernel.cuda_runtime import CudaRuntime, cuda_runtime
from datapipe.kernel.device import Uploader
from datapipe.kernel.pools import SlabPool

pytestmark = pytest.mark.gpu

LONG = 1_000_000_000  # cycles: about half a second
SHAPE = (32, 3, 224, 224)


def runtime() -> CudaRuntime:
    return cuda_runtime(checked_device("cuda"))


def host_images(number: int) -> torch.Tensor:
    return torch.full(SHAPE, number % 251, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)


def keep_busy(cycles: int = LONG) -> torch.cuda.Event:
    """A kernel that holds the current stream; the event comes after it."""
    torch.cuda._sleep(cycles)
    event = torch.cuda.Event()
    event.record()
    return event


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """torch raises where an operation of its waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def warm(uploader: Uploader) -> None:
    """Let allocators have their memory and the driver the kernels: getting either may wait for the device."""
    torch.cuda._sleep(1)
    for number in range(4):
        nest = {"image": host_images(number), "label": torch.arange(32)}
        found = uploader.upload(nest, then=lambda nest: nest | {"sum": nest["image"] + 1}).hand_over()
        found["image"].sum(dtype=torch.int64), found["image"].eq(9).all()
    torch.cuda.synchronize()


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_copy_goes_on_beside_a_busy_compute_stream(is_pinned: bool) -> None:
    uploader = Uploader(runtime())
    warm(uploader)
    images = host_images(7)
    images = images.pin_memory() if is_pinned else images
    busy = keep_busy()
    with no_synchronisation():
        arrival = uploader.upload(
            {"image": images, "label": torch.arange(32)}, then=lambda nest: nest | {"sum": nest["image"] + 1}
        )
        copied = arrival._event
        assert until(copied.query)
        assert not busy.query(), "the copy waited for the compute stream"
        found = arrival.hand_over()
        assert not busy.query(), "the hand-over waited for the compute stream"
        total = found["image"].sum(dtype=torch.int64)
    assert found["image"].stride() == images.stride()
    assert int(total) == 7 * images.numel()
    assert torch.equal(found["sum"].cpu(), images + 1)


def test_the_consumer_waits_for_a_late_copy() -> None:
    uploader = Uploader(runtime())
    warm(uploader)
    with torch.cuda.stream(uploader.stream):
        late = keep_busy()
    arrival = uploader.upload(host_images(9))
    images = arrival.hand_over()
    same = images.eq(9).all()
    assert not late.query(), "the host waited for the copy stream"
    assert bool(same)


def test_bytes_are_right_while_both_streams_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slabs are overwritten as they are returned, batches dropped as soon as they are used, memory used again."""
    lease = SlabPool.lease

    def poisoned(pool: SlabPool) -> Any:
        slab = lease(pool)
        slab[:] = 0xDB
        return slab

    monkeypatch.setattr(SlabPool, "lease", poisoned)
    uploader = Uploader(runtime())
    warm(uploader)
    sums = []
    for number in range(60):
        images = host_images(number)
        arrival = uploader.upload(images.pin_memory() if number % 2 else images, then=lambda batch: batch.to(torch.int32) * 3)
        del images
        if number % 7 == 0:
            with torch.cuda.stream(uploader.stream):
                torch.cuda._sleep(LONG // 50)
        batch = arrival.hand_over()
        if number % 5 == 0:
            torch.cuda._sleep(LONG // 50)
        sums.append((batch == 3 * number).all())
        del batch, arrival
    assert all(bool(same) for same in sums)
    torch.cuda.synchronize()
    runtime().pending.reap()
    assert len(runtime().pending) == 0


def test_threads_share_an_uploader() -> None:
    uploader = Uploader(runtime())
    arrivals: dict[int, Any] = {}

    def load(first: int) -> None:
        for number in range(first, 40, 4):
            arrivals[number] = uploader.upload({"image": host_images(number), "name": str(number)})

    threads = [threading.Thread(target=load, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, arrival in arrivals.items():
        found = arrival.hand_over()
        assert found["name"] == str(number)
        assert torch.equal(found["image"].cpu(), host_images(number))


@pytest.mark.parametrize("tensor", [
    torch.arange(6).view(2, 3).t(), torch.arange(12)[::3], torch.ones(3).expand(4, 3), torch.empty(0, 3), torch.tensor(2.5),
    torch.tensor([True, False]), torch.ones(3, dtype=torch.bfloat16), torch.tensor([1 + 2j, 3j]).conj(),
], ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}-{tensor.stride()}")  # fmt: skip
def test_a_tensor_looks_as_after_to(tensor: torch.Tensor) -> None:
    found = Uploader(runtime()).upload(tensor).hand_over()
    plain = tensor.to("cuda")
    assert (found.shape, found.stride(), found.dtype, found.device) == (plain.shape, plain.stride(), plain.dtype, plain.device)
    assert torch.equal(found, plain)


def test_subclasses_stay_what_they_are() -> None:
    class Named(torch.Tensor):
        pass

    uploader = Uploader(runtime())
    found = uploader.upload([torch.arange(3).as_subclass(Named), torch.nn.Parameter(torch.ones(2))]).hand_over()
    assert isinstance(found[0], Named)
    assert found[0].tolist() == [0, 1, 2]
    assert found[1].requires_grad
    assert found[1].tolist() == [1, 1]


def test_a_lease_of_pinned_memory_is_copied_from_where_it_lies() -> None:
    pool = SlabPool(4096, max_free=2, pinned=True)
    tensor = torch.from_numpy(pool.lease()).view(torch.int64)
    tensor.copy_(torch.arange(512))
    uploader = Uploader(runtime())
    assert uploader._runtime.is_pinned(tensor)
    with torch.cuda.stream(uploader.stream):
        torch.cuda._sleep(LONG)
    found = uploader.upload(tensor).hand_over()
    del tensor
    assert pool.num_free == 0, "the copy is under way"
    assert torch.equal(found.cpu(), torch.arange(512))
    runtime().pending.reap()
    assert pool.num_free == 1
    assert uploader._pool is None, "nothing was staged"


def test_prefetched_batches_train() -> None:
    batches = [(torch.full((8, 4), float(number)), torch.tensor([number] * 8), "name") for number in range(20)]
    found = []
    for images, labels, name in dp.prefetch(batches, depth=3):
        assert images.device.type == labels.device.type == "cuda"
        torch.cuda._sleep(LONG // 200)
        found.append((images.sum(), labels[0], name))
        del images, labels
    assert [(float(total), int(label), name) for total, label, name in found] == [(32.0 * n, n, "name") for n in range(20)]


def test_a_captured_graph_reads_each_static_batch() -> None:
    batches = [torch.full((8, 4), float(number)) for number in range(12)]
    total = torch.zeros((), device="cuda")
    loader = iter(dp.prefetch(batches, static=1))
    static = next(loader)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        total.add_(static.sum())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        total.add_(static.sum())
    for batch in loader:
        assert batch.data_ptr() == static.data_ptr()
        graph.replay()
    assert float(total) == 32.0 * sum(range(12))


@pytest.mark.parametrize("backend", ["images_cpu", "dali"])
def test_images_kept_on_the_gpu_are_those_that_are_decoded(tmp_path: Path, backend: str) -> None:
    if backend == "dali":
        pytest.importorskip("nvidia.dali")
    source = make_folder(tmp_path / "set", size=(40, 48))
    transform = [T.Resize((32, 36)), T.RandomCrop(28, padding=2), T.RandomHorizontalFlip()]
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 1, "transform": transform, "backend": backend}
    kept, plain = (
        dp.DataLoader(dp.Images(source, cache="gpu"), device="cuda", **options),
        dp.DataLoader(source, device="cuda", **options),
    )
    for epoch in range(3):
        for (ours, labels), (theirs, expected) in zip(kept, plain, strict=True):
            assert torch.equal(labels, expected)
            difference = (ours.int() - theirs.int()).abs()
            assert int(difference.max()) <= (0 if backend == "images_cpu" else 3)
        assert kept.cache_stats is not None
        assert kept.cache_stats.hits == epoch * len(kept.dataset)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(dp.errors.OptionError, match="pass 'cuda:N' with N below"):
        dp.prefetch([1], f"cuda:{torch.cuda.device_count()}")


def test_numpy_leaves_are_left_alone() -> None:
    array = np.ones(3)
    assert Uploader(runtime()).upload({"a": array, "x": torch.ones(1)}).hand_over()["a"] is array
