"""torch's contract: lengths, passes, epochs and threads."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import NUM_SAMPLES, copies, same
from recipes import CROP, EVAL, SIZE, TRAIN, ids_of, num_threads, own_threads

import datapipe as dp

pytestmark = pytest.mark.usefixtures("backend")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- what torch's DataLoader gives -----------------------------------------------------------------


@pytest.mark.parametrize("arguments", [
    {}, {"batch_size": 5}, {"batch_size": 5, "drop_last": True}, {"batch_size": 100}, {"batch_size": 37},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("num_workers", [0, 2])
def test_gives_what_torch_gives(converted: Path, arguments: dict[str, Any], num_workers: int) -> None:
    """Over the same samples: as many batches, of the same shapes, types and values."""
    loader = dp.DataLoader(converted, num_workers=num_workers, **arguments)
    reference = torch.utils.data.DataLoader(loader.dataset, **arguments)  # type: ignore[arg-type]
    assert len(loader) == len(reference)
    assert same(copies(loader), [tuple(batch) for batch in reference])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_hands_samples_to_collate_fn_as_torch_does(folder: Path, num_workers: int) -> None:
    seen: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        seen.append([(type(s), tuple(s[0].shape), type(s[1])) for s in samples])
        return torch.utils.data.default_collate(samples)

    loader = dp.DataLoader(folder, batch_size=5, collate_fn=collate, num_workers=num_workers)
    reference = torch.utils.data.DataLoader(loader.dataset, batch_size=5, collate_fn=collate)  # type: ignore[arg-type]
    assert same(copies(loader), [tuple(batch) for batch in reference])
    assert seen[: len(loader)] == seen[len(loader) :] or sorted(map(str, seen[: len(loader)])) == sorted(
        map(str, seen[len(loader) :])
    )


def test_batches_have_the_promised_form(folder: Path) -> None:
    images, labels = next(iter(dp.DataLoader(folder, batch_size=5, transform=CROP)))
    assert (images.dtype, images.shape, labels.dtype, labels.shape) == (torch.uint8, (5, 3, SIZE, SIZE), torch.int64, (5,))
    assert images.is_contiguous(memory_format=torch.channels_last)
    images, _ = next(iter(dp.DataLoader(folder, batch_size=5, transform=TRAIN)))
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    plain, _ = next(iter(dp.DataLoader(folder, batch_size=5, transform=TRAIN, memory_format=torch.contiguous_format)))
    assert plain.is_contiguous()
    assert torch.equal(plain, images)


@pytest.mark.parametrize(("arguments", "length"), [
    ({"batch_size": 5}, 8), ({"batch_size": 5, "drop_last": True}, 7), ({"batch_size": 5, "tail": "drop"}, 7),
    ({"batch_size": 5, "tail": "mask"}, 8), ({"batch_size": 5, "rank": 1, "world_size": 3, "seed": 0}, 3),
    ({"batch_size": 5, "rank": 2, "world_size": 3, "tail": "drop", "seed": 0}, 2), ({"batch_size": 38, "drop_last": True}, 0),
    ({"sampler": range(11), "batch_size": 4}, 3), ({"sampler": range(11), "batch_size": 4, "drop_last": True}, 2),
    ({"sampler": range(11), "batch_size": 4, "tail": "drop"}, 2), ({"batch_sampler": [[1], [2, 3], [4]]}, 3),
], ids=str)  # fmt: skip
def test_length_is_right_before_during_and_after(folder: Path, arguments: dict[str, Any], length: int) -> None:
    loader = dp.DataLoader(folder, transform=CROP, num_workers=1, **arguments)
    assert len(loader) == length
    for _ in range(2):
        iterator = iter(loader)
        assert len(iterator) == length
        num = 0
        for _ in iterator:
            num += 1
            assert len(loader) == len(iterator) == length
        assert num == len(loader) == length


def test_length_does_not_depend_on_the_place_in_the_epoch(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=5, transform=CROP, num_workers=0)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    again = dp.DataLoader(folder, batch_size=5, transform=CROP, num_workers=0)
    again.load_state_dict(state)
    assert len(again) == 8
    assert len(list(again)) == 7
    assert len(again) == 8


def test_a_sampler_without_a_length_gives_a_type_error(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=3, sampler=(n for n in range(7)), num_workers=0, transform=CROP)
    with pytest.raises(TypeError, match="no __len__"):
        len(loader)
    assert [len(labels) for _, labels in list(loader)] == [3, 3, 1]


# -- passes and epochs -----------------------------------------------------------------------------


@pytest.fixture
def loader(folder: Path) -> dp.DataLoader:
    return dp.DataLoader(folder, batch_size=5, shuffle=True, transform=CROP, output="dict", num_workers=2)


def test_each_iter_is_a_fresh_pass_over_another_epoch(loader: dp.DataLoader) -> None:
    epochs = [[number for ids in ids_of(loader) for number in ids] for _ in range(3)]
    assert all(sorted(ids) == list(range(NUM_SAMPLES)) for ids in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_an_iterator_is_spent_once(loader: dp.DataLoader) -> None:
    iterator = iter(loader)
    assert iter(iterator) is iterator
    assert len(list(iterator)) == 8
    assert list(iterator) == []
    with pytest.raises(StopIteration):
        next(iterator)


def test_without_shuffle_every_epoch_is_in_order_but_crops_differ(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=10, transform=CROP, output="dict", num_workers=0)
    first, second = list(loader), list(loader)
    assert (
        [b["id"].tolist() for b in first]
        == [b["id"].tolist() for b in second]
        == [list(range(start, min(start + 10, 37))) for start in range(0, 37, 10)]
    )
    assert not any(torch.equal(a["image"], b["image"]) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("through", ["loader", "sampler"])
def test_set_epoch_says_which_pass_comes_next(loader: dp.DataLoader, through: str) -> None:
    passes = [ids_of(loader) for _ in range(4)]
    target = loader if through == "loader" else loader.sampler
    for epoch in (2, 0, 3):
        target.set_epoch(epoch)
        assert ids_of(loader) == passes[epoch]
    target.set_epoch(1)
    assert [ids_of(loader), ids_of(loader)] == passes[1:3], "and from there they count on"


def test_an_epoch_is_claimed_at_the_first_next(loader: dp.DataLoader) -> None:
    """Frameworks call iter() just to see whether it works."""
    expected = [ids_of(loader), ids_of(loader)]
    loader.set_epoch(0)
    unused = [iter(loader) for _ in range(3)]
    assert ids_of(loader) == expected[0]
    assert [batch["id"].tolist() for batch in unused[1]] == expected[1]
    loader.set_epoch(0)
    late = iter(loader)
    loader.set_epoch(1)
    assert [batch["id"].tolist() for batch in late] == expected[1]


def test_nothing_starts_before_the_first_next(loader: dp.DataLoader) -> None:
    before, files = own_threads(), open_files()
    iterators = [iter(loader) for _ in range(5)]
    len(loader), len(iterators[0]), loader.state_dict()
    assert own_threads() == before
    assert open_files() == files
    next(iterators[0])
    assert len(own_threads()) == len(before) + num_threads(loader)


def test_two_open_iterators_do_not_disturb_each_other(loader: dp.DataLoader) -> None:
    expected = [ids_of(loader), ids_of(loader)]
    loader.set_epoch(0)
    first, second = iter(loader), iter(loader)
    seen: list[list[list[int]]] = [[], []]
    rng = random.Random(1)
    open_ones = [(first, 0), (second, 1)]
    next_first = next(first)  # claims epoch 0
    seen[0].append(next_first["id"].tolist())
    while open_ones:
        iterator, number = rng.choice(open_ones)
        batch = next(iterator, None)
        if batch is None:
            open_ones.remove((iterator, number))
        else:
            seen[number].append(batch["id"].tolist())
    assert seen == expected


def test_iterators_of_two_loaders(folder: Path) -> None:
    """Train and validation at once, as zip does it."""
    train = dp.DataLoader(folder, batch_size=5, shuffle=True, transform=TRAIN, num_workers=2)
    val = dp.DataLoader(folder, batch_size=5, transform=EVAL, num_workers=2)
    alone = copies(val)
    pairs = list(zip(train, val, strict=True))
    assert same([pair[1] for pair in pairs], alone)


# -- leaving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_leaving_early_leaves_nothing(folder: Path, num_workers: int) -> None:
    loader = dp.DataLoader(folder, batch_size=4, shuffle=True, transform=CROP, num_workers=num_workers)
    copies(loader)
    gc.collect()
    before = own_threads(), open_files(), threading.active_count()
    for turn in range(200):
        for step, _ in enumerate(loader):
            if step == turn % 3:
                break
    assert (own_threads(), open_files(), threading.active_count()) == before
    assert len(list(loader)) == len(loader)


def test_a_dropped_iterator_ends_its_threads(loader: dp.DataLoader) -> None:
    iterator = iter(loader)
    next(iterator)
    assert own_threads()
    del iterator
    assert own_threads() == []


def test_close_ends_a_pass(loader: dp.DataLoader) -> None:
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    iterator.close()
    assert own_threads() == []
    assert next(iterator, None) is None
    iter(loader).close()


def fail_in_the_loop(loader: dp.DataLoader) -> None:
    for _ in loader:
        _ = 1 / 0


def test_an_exception_in_the_loop_leaves_nothing(loader: dp.DataLoader) -> None:
    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            fail_in_the_loop(loader)
    gc.collect()
    assert own_threads() == []


@pytest.mark.parametrize("fails", ["batch", "sampler"])
def test_a_loop_that_an_error_ends_leaves_nothing(folder: Path, fails: str) -> None:
    """No collection is needed: the exception leads to the iterator, and nothing leads back."""

    def collate(_: Any) -> Any:
        raise KeyError("mine")

    def places() -> Iterator[int]:
        yield from range(7)
        raise KeyError("mine")

    changes: dict[str, Any] = {"collate_fn": collate} if fails == "batch" else {"sampler": Sampled(places)}
    loader = dp.DataLoader(folder, 5, transform=[dp.RandomResizedCrop(24)], num_workers=2, **changes)

    def run() -> None:
        for _ in loader:
            pass

    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(KeyError):
            run()
        assert own_threads() == []
    finally:
        gc.enable()


class Sampled:
    def __init__(self, places: Callable[[], Iterator[int]]) -> None:
        self._places = places

    def __iter__(self) -> Iterator[int]:
        return self._places()


def test_a_generator_that_is_abandoned(loader: dp.DataLoader) -> None:
    def numbers() -> Iterator[int]:
        for batch in loader:
            yield len(batch["id"])

    generator = numbers()
    assert next(generator) == 5
    del generator
    assert own_threads() == []


def test_finished_passes_leave_no_threads(loader: dp.DataLoader) -> None:
    for _ in loader:
        assert len(own_threads()) == num_threads(loader)
    assert own_threads() == []


def test_torchs_own_threads_are_as_before(loader: dp.DataLoader) -> None:
    """Decode threads run torch on one thread each; the caller's setting, and that of later threads, must not change."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in loader:
            assert torch.get_num_threads() == 2
            inside: list[int] = []
            thread = threading.Thread(target=lambda inside=inside: inside.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert inside == [2]
    finally:
        torch.set_num_threads(before)
