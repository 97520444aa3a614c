"""Memory of batches that workers use again: never while somebody holds the batch."""

from __future__ import annotations

import gc
import multiprocessing
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from deferral_datasets import loaded
from fixtures import mostly_nightly

from datapipe.deferral import lending

ROW = 8192  # values of a sample: 32 KB


class Numbered(torch.utils.data.Dataset[Any]):
    """Samples that hold their number, of lengths that differ by batch if asked for."""

    def __init__(self, num: int = 96, *, varies: bool = False) -> None:
        self.num, self.varies = num, varies

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, number: int) -> Any:
        length = ROW + (number // 4) * 1000 * self.varies
        return torch.full((length,), float(number)), {"low": np.full(ROW, number, np.int16), "text": str(number)}


def value_of(batch: Any) -> int:
    image, rest = batch
    first = int(rest["text"][0])
    expected = torch.arange(first, first + len(image), dtype=torch.float32)[:, None]
    assert type(image) is torch.Tensor
    assert image.is_contiguous()
    assert image._base is None
    assert bool((image == expected).all())
    assert rest["low"].dtype is torch.int16
    assert bool((rest["low"] == expected).all())
    return first


def numbers(loader: Any) -> list[int]:
    return [value_of(batch) for batch in loader]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_blocks_are_used_again(context: str) -> None:
    loader = loaded(Numbered(), num_workers=1, multiprocessing_context=context)
    places = []
    for number, batch in enumerate(loader):
        assert value_of(batch) == 4 * number
        places.append(batch[0].data_ptr())
    assert len(places) == 24
    assert len(set(places)) <= 6


@pytest.mark.parametrize("varies", [False, True])
def test_batches_that_are_all_kept_stay_what_they_are(varies: bool) -> None:
    loader = loaded(Numbered(160, varies=varies), num_workers=2, persistent_workers=True)
    kept = list(loader)
    assert len(kept) == 40  # more than workers lend
    assert [value_of(batch) for batch in kept] == list(range(0, 160, 4))
    del kept[::2]
    assert numbers(loader) == list(range(0, 160, 4))
    assert [value_of(batch) for batch in kept] == list(range(4, 160, 8))


@pytest.mark.parametrize("how", ["row", "numpy", "storage", "detached", "transposed"])
def test_whatever_looks_at_a_batch_keeps_it(how: str) -> None:
    views: list[Any] = []
    for image, _ in loaded(Numbered(), num_workers=1):
        looks = {
            "row": lambda image=image: image[1, 5:9],
            "numpy": lambda image=image: image.numpy()[1],
            "storage": lambda image=image: image.untyped_storage(),
            "detached": lambda image=image: image.detach(),
            "transposed": lambda image=image: image.T[7],
        }
        views.append(looks[how]())
    for number, view in enumerate(views):
        if how == "storage":
            view = torch.empty(0).set_(view, 0, (4, ROW))[1]
        found = float(np.asarray(view).ravel()[0])
        assert int(found) // 4 == number


def test_a_child_that_is_forked_keeps_what_it_sees() -> None:
    iterator = iter(loaded(Numbered(), num_workers=1, persistent_workers=True))
    held = [next(iterator)]
    context = multiprocessing.get_context("fork")
    told, telling = context.Pipe()

    def look() -> None:
        if telling.poll(60):
            telling.send(bool((held[0][0][1] == 1).all()))

    child = context.Process(target=look, daemon=True)
    child.start()
    place = held[0][0].data_ptr()
    held.clear()
    gc.collect()
    rest = [(value_of(batch), batch[0].data_ptr()) for batch in iterator]
    told.send("look")
    assert told.poll(60)
    assert told.recv()
    child.join(60)
    assert [number for number, _ in rest] == list(range(4, 96, 4))
    assert len({where for _, where in rest} - {place}) <= 6


def test_what_workers_lent_is_unmapped_when_they_end() -> None:
    for taken in (1, 24):
        iterator = iter(loaded(Numbered(), num_workers=1))
        last = [next(iterator) for _ in range(taken)][-1]
        assert lending._borrowed.workers
        del iterator
        gc.collect()
        assert not lending._borrowed.workers
        assert value_of(last) == 4 * (taken - 1)


def test_a_pass_that_is_left_gives_its_blocks_back() -> None:
    loader = loaded(Numbered(), num_workers=1, persistent_workers=True)
    places = set()
    for _ in range(8):
        iterator = iter(loader)
        places.add(next(iterator)[0].data_ptr())
        iterator.close()
        loader.set_epoch(0)
    assert len(places) <= 6


class Full(NamedTuple):
    """What statvfs says of a /dev/shm whose last quarter is all that is free."""

    f_blocks: int = 16 << 10
    f_bavail: int = 4 << 10
    f_frsize: int = 4096


def test_batches_go_through_the_pipe_where_shared_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.statvfs", lambda path: Full())
    loader = loaded(Numbered(), num_workers=2, multiprocessing_context="fork")
    with pytest.warns(UserWarning, match="shared memory .* has no room left for batches") as caught:
        kept = list(loader)
    assert [value_of(batch) for batch in kept] == list(range(0, 96, 4))
    assert len({warning.lineno for warning in caught if "shared memory" in str(warning.message)}) == 1
    kept[0][0].zero_()
    assert not lending._borrowed.workers


def test_a_loan_that_is_never_sent_is_free_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lender = lending.Lender()
    loan = lender.lend((4, ROW), torch.float32)
    assert isinstance(loan, lending.Loan)
    place = loan.tensor.data_ptr()
    other = lender.lend((4, ROW), torch.float32)
    assert other is not None
    assert other.tensor.data_ptr() != place
    del loan
    again = lender.lend((3, ROW), torch.float32)
    assert again is not None
    assert again.tensor.data_ptr() == place
    loans = [lender.lend((4, ROW), torch.float32) for _ in range(lending._MOST_BLOCKS)]
    assert sum(one is None for one in loans) == 2


# Where one raises, torch waits five seconds for its worker.
@pytest.mark.parametrize("odd", mostly_nightly(["other shape", "sparse", "requires grad", "subclass"], "subclass"))
def test_other_tensors_are_collated_as_torch_does(odd: str) -> None:
    class Odd(Numbered):
        def __getitem__(self, number: int) -> Any:
            tensor = torch.full((ROW,), float(number))
            if odd == "other shape" and number == 30:
                return tensor[:-1]
            if odd == "sparse":
                return tensor.to_sparse()
            if odd == "subclass":
                return torch.nn.Parameter(tensor, requires_grad=False)
            return tensor.requires_grad_(odd == "requires grad")

    def outcome(loader: Any) -> Any:
        try:
            return [batch.detach().to_dense().clone() for batch in loader]
        except Exception as exc:
            return type(exc)

    ours, theirs = (
        outcome(loader) for loader in (loaded(Odd(32), num_workers=1), torch.utils.data.DataLoader(Odd(32), 4, num_workers=1))
    )
    assert type(ours) is type(theirs)
    assert ours == theirs if isinstance(ours, type) else all(map(torch.equal, ours, theirs))
