"""`prefetch`: other loaders' batches on the device, their contract kept."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, assert_released_at_the_end
from fixtures import NUM_SAMPLES, make_folder, quick
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import datapipe as dp
from datapipe import transforms as T
from datapipe.core.observe import Stage, StageEvent
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.prefetching import PrefetchedLoader

CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder") / "set", size=(40, 48))


def on_fake(inner: Iterable[Any], fake: FakeDevice, depth: int = 2, static: int = 0) -> PrefetchedLoader:
    return PrefetchedLoader(inner, fake.device, depth=depth, static=static, open_runtime=lambda device: fake)


def values(fake: FakeDevice, batches: Iterable[Any]) -> list[Any]:
    """The first tensor of each batch, read by the consumer's stream while the batches come."""
    reads = []
    for batch in batches:
        reads.append(fake.read(batch[0]))
        del batch
    fake.drain()
    return [read().flatten().tolist() for read in reads]


def numbered(num: int) -> Iterator[list[torch.Tensor]]:
    for number in range(num):
        yield [torch.tensor([number, number])]


class Stateful:
    """A loader that counts its batches."""

    batch_size = 2

    def __init__(self, num: int) -> None:
        self.num, self.done, self.epochs = num, 0, list[int]()

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        first, self.done = self.done % self.num, self.done % self.num
        for number in range(first, self.num):
            self.done += 1
            yield [torch.tensor([number])]

    def __len__(self) -> int:
        return self.num

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"done": [self.done]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"][0]


@quick
@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(1, 4))
def test_every_batch_in_order(seed: int, num: int, depth: int) -> None:
    fake = FakeDevice(seed)
    assert values(fake, on_fake(numbered(num), fake, depth)) == [[number, number] for number in range(num)]
    assert fake.forbidden == []


@pytest.mark.parametrize("is_closed", [False, True], ids=["at its end", "closed"])
def test_a_pass_that_ends_keeps_no_memory_that_the_device_is_done_with(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    fake = FakeDevice()
    assert_released_at_the_end(fake, on_fake(numbered(4), fake), 4, monkeypatch, is_closed=is_closed)


def test_torchs_dataloader() -> None:
    fake = FakeDevice(1)
    inner = DataLoader(TensorDataset(torch.arange(10), torch.arange(10) * 2), batch_size=4, shuffle=False)
    loader = on_fake(inner, fake)
    for _ in range(2):
        assert values(fake, loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    assert loader.dataset is inner.dataset
    assert loader.batch_size == 4
    assert loader.sampler is inner.sampler
    assert loader.drop_last is False
    assert not hasattr(loader, "state_dict")
    assert not hasattr(loader, "set_epoch")


def test_our_own(folder: Path) -> None:
    fake = FakeDevice(2)
    inner, plain = (dp.DataLoader(folder, batch_size=10, shuffle=True, transform=CROP, num_workers=2) for _ in range(2))
    loader = on_fake(inner, fake)
    for _ in range(2):
        assert values(fake, loader) == [images.flatten().tolist() for images, _ in plain]
    loader.set_epoch(5)
    plain.set_epoch(5)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["samples_done"]) == (5, 20), "of the batch handed out, not of those copied ahead"
    resumed = on_fake(dp.DataLoader(folder, batch_size=10, shuffle=True, transform=CROP, num_workers=0), fake)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert values(fake, resumed) == [images.flatten().tolist() for images, _ in plain][2:]
    assert loader.dataset.classes == ["ant", "bee", "cat"]


def test_depth_batches_are_copied_ahead() -> None:
    given: list[int] = []

    def counting() -> Iterator[list[torch.Tensor]]:
        for batch in numbered(10):
            given.append(int(batch[0][0]))
            yield batch

    iterator = iter(on_fake(counting(), FakeDevice(), depth=3))
    assert given == []
    for number in range(10):
        next(iterator)
        assert len(given) == min(number + 4, 10)


def test_nothing_happens_before_the_first_next() -> None:
    opened: list[torch.device] = []

    def open_runtime(device: torch.device) -> DeviceRuntime:
        opened.append(device)
        return FakeDevice()

    class Inner:
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("asked")

    loader = PrefetchedLoader(Inner(), torch.device("cuda"), depth=1, open_runtime=open_runtime)
    iterator = iter(loader)
    assert opened == []
    with pytest.raises(AssertionError, match="asked"):
        next(iterator)
    assert opened == [torch.device("cuda")]
    with pytest.raises(AssertionError, match="asked"):
        next(iter(loader))
    assert len(opened) == 1, "one copy stream for all passes"


def test_an_error_comes_after_the_batches_before_it() -> None:
    def failing() -> Iterator[list[torch.Tensor]]:
        yield from numbered(2)
        raise OSError("disk gone")

    fake = FakeDevice()
    iterator = iter(on_fake(failing(), fake, depth=5))
    reads = [fake.read(next(iterator)[0]) for _ in range(2)]
    with pytest.raises(OSError, match="disk gone"):
        next(iterator)
    assert next(iterator, None) is None
    fake.drain()
    assert [read().tolist() for read in reads] == [[0, 0], [1, 1]]


def test_a_batch_that_cannot_be_moved_is_such_an_error() -> None:
    iterator = iter(on_fake([[torch.ones(2)], [torch.eye(2).to_sparse()], [torch.ones(2)]], FakeDevice()))
    next(iterator)
    with pytest.raises(dp.errors.OptionError, match="sparse"):
        next(iterator)
    assert next(iterator) is not None
    assert next(iterator, None) is None


class Failing:
    """A loader like ours: its second batch fails and counts as done, and the pass continues."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Failing:
        self.done = 0
        return self

    def __next__(self) -> list[torch.Tensor]:
        if self.done == 4:
            raise StopIteration
        self.done += 1
        if self.done == 2:
            raise OSError("broken image")
        return [torch.full((2,), float(self.done))]

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}


@pytest.mark.parametrize("depth", [1, 3])
def test_a_pass_goes_on_after_a_batch_that_failed(depth: int) -> None:
    loader = on_fake(Failing(), FakeDevice(), depth=depth)
    iterator, found = iter(loader), []
    for _ in range(5):
        try:
            batch = next(iterator, None)
            found.append((None if batch is None else batch[0].shape[0], loader.state_dict()["done"]))
        except OSError:
            found.append(("failed", loader.state_dict()["done"]))
    assert found == [(2, 1), ("failed", 2), (2, 3), (2, 4), (None, 4)]


def test_leaving_early_drops_what_was_copied_ahead() -> None:
    ended: list[str] = []

    def inner() -> Iterator[list[torch.Tensor]]:
        try:
            while True:
                yield [torch.ones(3)]
        finally:
            ended.append("closed")

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            return inner()

    fake = FakeDevice(is_lazy=True)
    loader = on_fake(Loader(), fake)
    gc.disable()
    try:
        for _ in loader:
            break
        assert ended == ["closed"], "without a collection"
        iterator = iter(loader)
        kept = next(iterator)
        memory = weakref.ref(kept[0].memory)
        iterator.close()  # type: ignore[attr-defined]
        assert ended == ["closed"] * 2
        assert next(iterator, None) is None
        assert memory() is not None
        del kept
        assert memory() is None
    finally:
        gc.enable()
    fake.drain()
    fake.pending.reap()
    assert len(fake.pending) == 0


def test_a_generator_that_was_passed_in_stays_the_callers() -> None:
    generator = numbered(9)
    fake = FakeDevice()
    iterator = iter(on_fake(generator, fake, depth=1))
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert next(generator)[0].tolist() == [2, 2], "one was handed out, one was copied ahead"


def test_state_is_that_of_the_batch_handed_out() -> None:
    fake, inner = FakeDevice(), Stateful(6)
    loader = on_fake(inner, fake, depth=2)
    assert loader.state_dict() == {"done": [0]}
    states = [loader.state_dict() for _ in loader]
    assert states == [{"done": [number]} for number in range(1, 7)]
    assert loader.state_dict() == {"done": [6]}
    for state in states[:-1]:
        resumed = on_fake(Stateful(6), fake)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert values(fake, resumed) == [[number] for number in range(state["done"][0], 6)]


def test_a_pass_that_hands_nothing_out_leaves_the_state() -> None:
    class Failing(Stateful):
        def __iter__(self) -> Iterator[list[torch.Tensor]]:
            self.done += 1
            raise OSError("at once")

    loader = on_fake(Failing(3), FakeDevice())
    with pytest.raises(OSError, match="at once"):
        next(iter(loader))
    assert loader.state_dict() == {"done": [0]}


def test_a_state_does_not_change_with_the_loader() -> None:
    loader = on_fake(Stateful(6), FakeDevice())
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    state["done"][0] = 99
    assert loader.state_dict() == {"done": [1]}
    next(iterator)
    loader.load_state_dict({"done": [5]})
    assert loader.state_dict() == {"done": [5]}


def test_the_inner_loaders_attributes() -> None:
    inner = Stateful(3)
    loader = on_fake(inner, FakeDevice())
    loader.set_epoch(4)
    assert inner.epochs == [4]
    assert loader.batch_size == 2
    assert (loader.depth, loader.device) == (2, torch.device("meta"))
    with pytest.raises(AttributeError, match="nonsense"):
        loader.nonsense  # noqa: B018
    with pytest.raises(TypeError, match="len"):
        len(on_fake(numbered(2), FakeDevice()))


def test_observing(folder: Path) -> None:
    fake = FakeDevice(3)
    events: list[StageEvent] = []
    loader = on_fake(dp.DataLoader(folder, batch_size=10, transform=CROP, num_workers=0), fake)
    loader.observe(events.append)
    steps = len(values(fake, loader))
    assert {event.stage for event in events} == set(Stage) - {Stage.NETWORK}
    copies = [event for event in events if event.stage is Stage.COPY]
    assert [event.step for event in copies] == list(range(steps))
    assert sum(event.num_samples for event in copies) == NUM_SAMPLES
    assert sum(event.nbytes for event in copies) == NUM_SAMPLES * (24 * 24 * 3 + 8)
    later: list[StageEvent] = []
    loader.observe(later.append)
    values(fake, loader)
    assert len(events) == len(later)


def test_on_the_cpu_batches_come_as_they_are() -> None:
    batches = [[torch.ones(2)], "anything"]
    loader = dp.prefetch(batches, "cpu")
    assert [found is batch for found, batch in zip(loader, batches, strict=True)] == [True, True]
    assert len(loader) == 2
    assert list(loader) == batches
    inner = Stateful(4)
    iterator = iter(dp.prefetch(inner, "cpu", depth=3))
    next(iterator)
    assert inner.done == 1, "nothing runs ahead"


def test_it_pickles_as_its_arguments() -> None:
    loader = dp.prefetch([1, 2, 3], "cpu", depth=4)
    static = PrefetchedLoader([], torch.device("cpu"), depth=4, static=3)
    assert pickle.loads(pickle.dumps(static))._static == 3
    again = pickle.loads(pickle.dumps(loader))
    assert (list(again), again.depth, again.device) == ([1, 2, 3], 4, torch.device("cpu"))


def test_its_iterators_are_not_copied() -> None:
    with pytest.raises(dp.errors.LifecycleError, match=r"cannot be copied or pickled.*copy the loader itself"):
        copy.deepcopy(iter(on_fake(numbered(3), FakeDevice(0))))


@pytest.mark.parametrize(("arguments", "message"), [
    (([1], "cpu", 2, 1), r"static=1 is for batches on a device, and device is 'cpu'; leave it out"),
    (([1], "cpu", 0), "depth is 0; it must be at least 1"), (([1], "cpu", 1.5), r"depth is 1\.5; it must be a whole number"),
    ((5, "cpu", 2), "iterable is a int, which gives no batches"), (([1], "mps", 2), "'mps', but torch .* finds no device"),
])  # fmt: skip
def test_arguments_that_cannot_be_honoured(arguments: tuple[Any, ...], message: str) -> None:
    iterable, device, depth, *static = arguments
    with pytest.raises(dp.errors.OptionError, match=message):
        dp.prefetch(iterable, device, depth=depth, static=static[0] if static else 0)


# -- batches whose memory repeats -----------------------------------------------------------------------


@pytest.mark.nightly
@quick
@given(seed=st.integers(0, 10_000), num=st.integers(1, 3), depth=st.integers(1, 3))
def test_static_batches_use_the_same_memory_in_turn(seed: int, num: int, depth: int) -> None:
    fake = FakeDevice(seed)
    loader = on_fake([[torch.tensor([number, number]), {"y": torch.tensor(number)}] for number in range(7)], fake, depth, num)
    places, reads = [], []
    for _ in range(2):  # graphs outlive a pass
        for batch in loader:
            places.append((batch[0].data_ptr(), batch[1]["y"].data_ptr()))
            reads.append((fake.read(batch[0]), fake.read(batch[1]["y"])))
    fake.drain()
    assert [(x().tolist(), y().item()) for x, y in reads] == [([number, number], number) for number in [*range(7)] * 2]
    assert len(set(places)) == num
    assert places[num:] == places[:-num]


@quick
@given(seed=st.integers(0, 10_000))
def test_static_batches_are_not_overwritten_under_another_stream(seed: int) -> None:
    """What the stream before still reads of a batch comes first."""
    fake = FakeDevice(seed)
    streams, reads = [fake.new_stream(), fake.new_stream()], []
    iterator = iter(on_fake(numbered(8), fake, static=1))
    for number in range(8):
        with fake.under(streams[number % 2]):
            reads.append(fake.read(next(iterator)[0]))
    fake.drain()
    assert [read().tolist() for read in reads] == [[number, number] for number in range(8)]


def test_static_batches_have_one_form() -> None:
    fake = FakeDevice(0)
    iterator = iter(on_fake([torch.zeros(3, 2), torch.zeros(1, 2), torch.zeros(3, 2)], fake, static=2))
    next(iterator)
    with pytest.raises(
        dp.errors.OptionError, match=r"static=2: a batch has tensors .*\(1, 2\).* the first one had .*\(3, 2\).*tail='mask'"
    ):
        next(iterator)
    assert next(iterator).shape == (3, 2)
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])
    with pytest.raises(
        dp.errors.OptionError, match=r"static=1: a batch holds a PackedSequence, whose memory datapipe cannot choose"
    ):
        next(iter(on_fake([packed], fake, static=1)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_with_the_remedy() -> None:
    with pytest.raises(dp.errors.OptionError, match="finds no device that batches can be moved to; pass device='cpu'"):
        dp.prefetch([1])


def test_the_name_is_the_functions_whatever_is_imported_first() -> None:
    import datapipe.kernel.prefetching

    assert dp.prefetch is datapipe.kernel.prefetching.prefetch
