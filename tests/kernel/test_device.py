"""Uploads: what is moved, how it looks afterwards, whose memory lives how long."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_device import DeviceTensor, FakeDevice, pretend_gpus
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from uploads import Reads, doubled, expected_after, host_batch, wrong_reads

from datapipe.core.observe import Stage, StageEvent
from datapipe.errors import LifecycleError, OptionError
from datapipe.kernel.accelerators import accelerator, checked_device, devices, runtime_of, torch_build
from datapipe.kernel.device import DeviceTransfer, Uploader
from datapipe.kernel.device_runtime import AcceleratorRuntime
from datapipe.kernel.pytree import tensors_of
from datapipe.order.draws import Draws
from datapipe.transforms import IMAGENET_MEAN, IMAGENET_STD, CutMix, MixUp, Normalize, Recipe, ToDtype
from datapipe.transforms.pixels.auto_augment import rotation_matrix, warp


class Operations(TorchDispatchMode):
    """Notes the names of the operators that run within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


# -- memory --------------------------------------------------------------------------------------------


def test_host_memory_lives_until_its_copy_and_no_longer() -> None:
    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    pinned = fake.pin(torch.arange(5))
    alive = weakref.ref(pinned.untyped_storage())
    arrival = uploader.upload(pinned)
    del pinned
    assert alive() is not None
    fake.drain()
    assert alive() is not None
    uploader.upload(torch.ones(3))
    assert alive() is None
    read = fake.read(arrival.hand_over())
    assert wrong_reads(fake, [(torch.arange(5), read)]) == 0


def test_the_last_batches_let_go_of_host_memory_as_they_are_taken() -> None:
    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    arrivals = [uploader.upload(host_batch(number)) for number in range(3)]
    fake.drain()
    arrivals.pop().hand_over()
    assert len(fake.pending) == 0


@pytest.mark.nightly
def test_two_thousand_batches_take_few_slabs() -> None:
    fake = FakeDevice(0, is_fair=True)
    uploader = Uploader(fake, max_free=4)
    batch = {"image": torch.ones(2, 3, 8, 8), "label": torch.arange(2)}
    most = 0
    ahead: list[DeviceTransfer] = []
    for step in range(2000):
        ahead.append(uploader.upload(batch))
        most = max(most, len(fake.pending))
        if step >= 2:
            ahead.pop(0).hand_over()
        if step == 200:
            early = fake.num_slabs
    assert most < 20
    assert fake.num_slabs == early, "slabs are used again"
    assert early <= most + 2, "one a batch under way; the very first batch fills two"
    assert sum(len(pieces) for pieces in fake._free.values()) < 100, "and so is the device's memory"


def test_a_batch_takes_one_slab_whatever_it_holds() -> None:
    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake, max_free=0)
    uploader.upload(host_batch(0))
    before = fake.num_slabs
    uploader.upload(host_batch(1))
    assert fake.num_slabs == before + 1
    uploader.upload([fake.pin(torch.ones(7)), torch.empty(0)])
    assert fake.num_slabs == before + 2, "fake.pin's own, and none for what is pinned or empty"


def test_growing_batches_need_few_pools() -> None:
    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    sizes = set()
    for num in range(1000, 2000):
        uploader.upload(torch.ones(num))
        fake.advance()
        assert uploader._pool is not None
        sizes.add(uploader._pool.nbytes)
    assert len(sizes) <= 10
    assert max(sizes) <= 2000 * 4 * 9 / 8


def test_an_arrival_may_be_dropped() -> None:
    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    uploader.upload(host_batch(0))
    fake.drain()
    fake.pending.reap()
    assert len(fake.pending) == 0


def test_what_a_copy_kept_is_released_on_its_device() -> None:
    """RMM frees memory on the calling thread's device, which need not be this one, and would create a context there."""
    fake = FakeDevice()
    released: list[bool] = []

    class Memory:
        def __del__(self) -> None:
            released.append(fake.is_current)

    for _ in range(2):
        fake.pending.add(fake.record_event(fake.default_stream), [Memory()])
    fake.drain()
    fake.pending.reap()
    assert released == [True, True]


def test_copies_under_way_end_well_without_their_uploader() -> None:
    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    arrival = uploader.upload(host_batch(3))
    del uploader
    found = arrival.hand_over()
    reads = [(tensor, fake.read(found[name])) for name, tensor in host_batch(3).items()]
    assert wrong_reads(fake, reads) == 0
    Uploader(fake).upload(torch.ones(1))
    assert len(fake.pending) == 1, "the later uploader let go of the earlier one's memory"


def test_an_error_in_then_leaves_copies_their_memory() -> None:
    def fail(nest: Any) -> Any:
        raise ZeroDivisionError("in then")

    fake = FakeDevice(is_lazy=True)
    uploader = Uploader(fake)
    with pytest.raises(ZeroDivisionError, match="in then"):
        uploader.upload(host_batch(0), then=fail)
    assert len(fake.pending) == 1
    assert fake.current_stream() is fake.default_stream
    found = uploader.upload(host_batch(1)).hand_over()
    reads = [(tensor, fake.read(found[name])) for name, tensor in host_batch(1).items()]
    assert wrong_reads(fake, reads) == 0


def test_an_arrival_is_handed_over_once() -> None:
    fake = FakeDevice()
    arrival = Uploader(fake).upload(torch.ones(2))
    arrival.hand_over()
    with pytest.raises(LifecycleError, match="already handed over"):
        arrival.hand_over()


# -- threads -------------------------------------------------------------------------------------------


def test_no_thread_waits_for_another_that_lets_go_of_memory() -> None:
    """What is let go of may be an iterator, which waits for its threads."""

    class Waiting(FakeDevice):
        def is_done(self, event: Any) -> bool:
            thread = threading.Thread(target=self.pending.add, args=(event, []), daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            return super().is_done(event)

    fake = Waiting(is_lazy=True)
    fake.pending.add(fake.record_event(fake.default_stream), [])
    fake.pending.reap()
    assert len(fake.pending) == 2


def test_threads_share_an_uploader() -> None:
    fake = FakeDevice(5)
    uploader = Uploader(fake, max_free=3)
    arrivals: list[dict[int, DeviceTransfer]] = [{} for _ in range(4)]

    def load(own: dict[int, DeviceTransfer], first: int) -> None:
        for number in range(first, 80, 4):
            batch = host_batch(number)
            given = batch if number % 3 else {name: fake.pin(tensor) for name, tensor in batch.items()}
            own[number] = uploader.upload(given, then=doubled)

    threads = [threading.Thread(target=load, args=(own, number)) for number, own in enumerate(arrivals)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reads: Reads = []
    for own in arrivals:
        for number, arrival in own.items():
            found = arrival.hand_over()
            reads += [(tensor, fake.read(found[name])) for name, tensor in expected_after(host_batch(number)).items()]
    assert len(reads) == 80 * 5
    assert wrong_reads(fake, reads) == 0
    assert fake.forbidden == []


# -- what is moved, and how it looks after -----------------------------------------------------------


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("tensor", [
    torch.arange(24, dtype=torch.uint8).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    torch.arange(6).view(2, 3).t(), torch.arange(6).view(2, 3)[:, 1:], torch.arange(12)[::3], torch.tensor(3.5),
    torch.ones(3).expand(4, 3), torch.empty(0, 3, dtype=torch.float16), torch.tensor([True, False]),
    torch.ones(3, dtype=torch.bfloat16), torch.tensor([1 + 2j, 3j]), torch.tensor([1 + 2j, 3j]).conj(),
    torch.ones(2, requires_grad=True), torch.ones(5).to(torch.float8_e4m3fn),
], ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}-{tensor.stride()}")  # fmt: skip
def test_a_tensor_looks_as_after_to(tensor: torch.Tensor, is_pinned: bool) -> None:
    fake = FakeDevice()
    given = tensor
    if is_pinned:
        whole = fake.pin(torch.empty(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype))
        given = whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        if 0 not in tensor.stride():
            given.copy_(tensor.detach())
        elif tensor.numel():
            whole.fill_(tensor.flatten()[0])
        if tensor.is_conj():
            given = given.conj_physical_().conj()
        given.requires_grad_(tensor.requires_grad)
    like = torch.empty_like(tensor)
    found = Uploader(fake).upload(given).hand_over()
    assert isinstance(found, DeviceTensor)
    assert (found.shape, found.stride(), found.dtype) == (like.shape, like.stride(), like.dtype)
    assert found.requires_grad == tensor.requires_grad
    assert wrong_reads(fake, [(tensor, fake.read(found))]) == 0
    assert fake.forbidden == []


@dataclasses.dataclass(frozen=True)
class _Graph:
    """Moves itself, and computes while it does."""

    nodes: torch.Tensor
    hidden: tuple[torch.Tensor, ...]

    def to(self, device: torch.device, *, non_blocking: bool = False) -> _Graph:
        assert non_blocking
        nodes = self.nodes.to(device, torch.float64, non_blocking=True)
        return _Graph(nodes, tuple(tensor.to(device, non_blocking=True).add(1) for tensor in self.hidden))


def test_objects_that_move_themselves_do_so_by_our_copies() -> None:
    for seed in range(20):
        fake = FakeDevice(seed)
        uploader = Uploader(fake)
        graph = _Graph(torch.arange(5), (torch.ones(2), fake.pin(torch.ones(3)), torch.ones(4)[::2]))
        found = uploader.upload({"graph": graph}).hand_over()["graph"]
        reads: Reads = [(torch.arange(5.0, dtype=torch.float64), fake.read(found.nodes))]
        reads += [(torch.full((num,), 2.0), fake.read(tensor)) for num, tensor in zip((2, 3, 2), found.hidden, strict=True)]
        del graph, found
        uploader.upload([torch.zeros(5)] * 3).hand_over()
        assert wrong_reads(fake, reads) == 0
        assert fake.forbidden == []


def test_a_packed_sequence_keeps_its_sizes_in_host_memory() -> None:
    fake = FakeDevice()
    packed = pack_sequence([torch.ones(3, 2), torch.zeros(2, 2)])
    found = Uploader(fake).upload(packed).hand_over()
    assert isinstance(found, PackedSequence)
    assert torch.equal(found.batch_sizes, packed.batch_sizes)
    assert wrong_reads(fake, [(packed.data, fake.read(found.data))]) == 0


def test_parameters_move_themselves() -> None:
    fake = FakeDevice()
    found = Uploader(fake).upload([torch.nn.Parameter(torch.ones(2))]).hand_over()
    assert found[0].requires_grad
    assert wrong_reads(fake, [(torch.ones(2), fake.read(found[0].detach()))]) == 0
    assert fake.forbidden == []


def test_what_is_no_tensor_passes_through() -> None:
    fake = FakeDevice()
    nest = {"name": "a", "array": np.ones(3), "none": None, 3: {1, 2}, "nested": [(), [{}]]}
    found = Uploader(fake).upload(nest).hand_over()
    assert found is nest


@pytest.mark.filterwarnings("ignore::UserWarning")  # these kinds of tensors are in beta, or on their way out
@pytest.mark.parametrize(("make", "message"), [
    (lambda: torch.eye(2).to_sparse(), "sparse_coo"), (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr"),
    (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "quantised"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
])  # fmt: skip
def test_what_cannot_be_moved_is_refused(make: Callable[[], torch.Tensor], message: str) -> None:
    with pytest.raises(OptionError, match=f"{message}.*to_dense"):
        Uploader(FakeDevice()).upload({"x": [make()]})


def test_another_devices_tensor_is_refused() -> None:
    class OnCuda(FakeDevice):
        def __init__(self) -> None:
            super().__init__()
            self.device = torch.device("cuda", 0)

    with pytest.raises(OptionError, match=r"\(2,\) tensor on meta, but only tensors in host memory can be moved to cuda:0"):
        Uploader(OnCuda()).upload(torch.ones(2, device="meta"))


def test_pixel_operations_run_on_the_copy_stream() -> None:
    """The real ones, as a `then`: nothing in them waits for the device."""
    recipe = Recipe.of([ToDtype(torch.float32, scale=True), Normalize(IMAGENET_MEAN, IMAGENET_STD)])
    images = torch.randint(0, 256, (4, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    draws = Draws(0, 0, np.arange(4))
    expected = torch.empty(images.shape)
    recipe.run_pixels(images.clone(), draws, expected)

    def pixels(block: torch.Tensor) -> torch.Tensor:
        out = torch.empty(block.shape, dtype=torch.float32, device=block.device)
        recipe.run_pixels(block, draws, out)
        return out

    for seed in range(10):
        fake = FakeDevice(seed)
        uploader = Uploader(fake)
        reads = [(expected, fake.read(uploader.upload(images, then=pixels).hand_over())) for _ in range(3)]
        assert wrong_reads(fake, reads) == 0
        assert fake.forbidden == ["copy from pageable memory"] * 6, "mean and std, for each batch"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_normalising_on_a_device_is_one_kernel(dtype: torch.dtype) -> None:
    fake = FakeDevice(is_lazy=True)
    recipe = Recipe.of([ToDtype(dtype, scale=True), Normalize(IMAGENET_MEAN, IMAGENET_STD)])
    block = torch.randint(0, 256, (4, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    draws, expected = Draws(0, 0, np.arange(4)), torch.empty(block.shape, dtype=dtype)
    recipe.run_pixels(block.clone(), draws, expected)
    with fake.under(fake.default_stream):
        on_device, out = fake.put(block), torch.empty(block.shape, dtype=dtype, device=fake.device)
        with Operations() as seen:
            recipe.run_pixels(on_device, draws, out)
        read = fake.read(out)
    kernels = [name for name in seen.names if name not in ("view", "permute", "_to_copy", "detach", "alias")]
    assert kernels == ["addcmul"]
    assert seen.names.count("_to_copy") == 2, "factor and shift, from the host"
    fake.drain()
    torch.testing.assert_close(read(), expected, rtol=0, atol=1e-6 if dtype.itemsize > 2 else 0)


def test_a_mix_leaves_rows_in_their_memory_format() -> None:
    """`roll` on a CUDA tensor in channels_last gives planes."""
    images = torch.rand(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with Operations() as seen:
        MixUp(num_classes=3).apply(images.clone(), torch.arange(3), {"lam": np.array([0.3])})
        CutMix(num_classes=3).apply(images.clone(), torch.arange(3), {"lam": np.array([0.3]), "box": np.array([[1, 2, 5, 4]])})
    assert "cat" in seen.names
    assert "roll" not in seen.names


def test_what_pixel_operations_share_is_on_no_stream() -> None:
    """Two loaders, each with a copy stream; one stream lags when the other's batch is warped."""
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = images.contiguous(memory_format=torch.channels_last)
    turned, expected = rotation_matrix(np.array([30.0, -20.0])), images.clone(memory_format=torch.preserve_format)
    warp(expected, turned, (0, 0, 0))
    fake = FakeDevice(is_lazy=True)
    first, second = fake.new_stream(), fake.new_stream()
    resume = fake.block(first)
    reads = []
    for stream in (first, second):
        with fake.under(stream):
            batch = fake.put(images)
            warp(batch, turned, (0, 0, 0))
            reads.append(fake.read(batch))
    fake.advance()
    assert torch.equal(reads[1](), expected)
    resume()
    fake.drain()
    assert torch.equal(reads[0](), expected)


# -- observing, devices --------------------------------------------------------------------------------


def test_an_observer_is_told_of_each_copy() -> None:
    events: list[StageEvent] = []
    fake = FakeDevice()
    uploader = Uploader(fake, observer=events.append)
    uploader.upload(
        {"x": fake.pin(torch.ones(4)), "y": torch.ones(3, dtype=torch.uint8), "z": fake.put(torch.ones(9))}, step=7, num_samples=4
    )
    assert len(events) == 1
    event = events[0]
    assert (event.stage, event.step, event.num_samples, event.nbytes) == (Stage.COPY, 7, 4, 16 + 3)
    assert event.duration_ns > 0


def test_the_cpu_is_a_device_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_device("cpu") == torch.device("cpu")
    with pytest.raises(OptionError, match="'gpu', which torch does not accept"):
        checked_device("gpu")
    for device in ("meta", "cuda"):
        with pytest.raises(
            OptionError, match=rf"'{device}', but torch .* \(built for CUDA: .*\) finds no device .* device='cpu'"
        ):
            checked_device(device)
    pretend_gpus(monkeypatch, 2)
    assert checked_device("cuda:1").index == 1
    assert checked_device("cuda").index is None
    with pytest.raises(OptionError, match=r"'cuda:2', but there are 2 devices of that type; pass 'cuda:N' with N below 2"):
        checked_device(torch.device("cuda", 2))
    with pytest.raises(OptionError, match=r"'meta', but torch .* moves batches to 'cuda'; pass device='cuda' or 'cpu'"):
        checked_device("meta")


def test_another_accelerator_is_taken_where_torch_has_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 2, current=1, kind="xpu")
    monkeypatch.setattr(torch, "__version__", "2.11.0+xpu")
    assert checked_device("xpu") == torch.device("xpu")
    assert devices() == [torch.device("xpu", 0), torch.device("xpu", 1)]
    assert type(runtime_of(torch.device("xpu"))) is AcceleratorRuntime
    assert runtime_of(torch.device("xpu")).device == torch.device("xpu", 1)
    assert torch_build() == "built for xpu"
    with pytest.raises(OptionError, match=r"'cuda', but torch .* moves batches to 'xpu'"):
        checked_device("cuda")
    monkeypatch.setattr(torch, "__version__", "2.10.1+xpu")
    assert accelerator() is None
    with pytest.raises(
        OptionError, match=r"moved to 'xpu' by torch 2\.11 or later, and this is torch 2\.10\.1\+xpu \(built for xpu"
    ):
        checked_device("xpu")


def test_a_device_without_streams_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 1, kind="mps")
    assert accelerator() is None
    assert devices() == []
    with pytest.raises(OptionError, match=r"'mps', but torch .* finds no device that batches can be moved to"):
        checked_device("mps")


def test_the_fake_device_forgets() -> None:
    """What the tests above rest on."""
    fake = FakeDevice(is_lazy=True)
    pinned = fake.pin(torch.arange(4))
    raw = fake.as_read(pinned)
    tensor = fake.copy_in(pinned)
    del pinned
    assert raw.tolist() != [0, 1, 2, 3], "pinned memory is overwritten when its last view dies"
    before = fake.read(tensor)
    home = tensor.content
    del tensor
    again = fake.allocate((4,), (1,), torch.int64)
    assert again.content.data_ptr() == home.data_ptr(), "freed memory is lent again at once"
    fake.drain()
    assert before().tolist() == raw.tolist()
    assert home.view(torch.uint8).unique().tolist() == [0xDB]
    assert tensors_of([again, {"x": again}]) == [again, again]
