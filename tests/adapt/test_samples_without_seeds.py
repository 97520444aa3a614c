"""Samples that draw no random numbers are made without seeds, and nothing shows it: not values, order, states or seeds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import mostly_nightly
from torch.utils.data import DataLoader, Dataset

import datapipe as dp
from datapipe.deferral.paying import TRIED_AGAIN
from datapipe.deferral.requests import MIN_WATCHED
from datapipe.kernel.random_state import RandomStates, random_mark
from datapipe.kernel.state_readers import may_read_state
from datapipe.testing.loaders.kind import copies, same

NUM, BATCH = 400, 4


class Rows(Dataset[Any]):
    """Code that is not recognised: a look-up in a table. `draw`: called with each position."""

    def __init__(self, draw: Callable[[int], float] = float, num: int = NUM) -> None:
        self.rows = torch.arange(num * 4.0).reshape(num, 4)
        self.table = list(range(num))[::-1]
        self.draw = draw

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Any:
        return self.rows[self.table[number]], self.draw(number)


def draws_always(number: int) -> float:
    return random.random() + np.random.rand() + torch.rand(()).item()


def draws_late(number: int) -> float:
    return draws_always(number) if number >= NUM - 70 and number % 3 == 0 else 0.0


def draws_a_normal_in_store(number: int) -> float:
    return float(np.random.randn()) + random.gauss(0, 1) if number % 100 == 99 else 0.0


def reads_the_seed(number: int) -> float:
    return float(torch.initial_seed() % 1_000_003)


def reads_the_state(number: int) -> float:
    return float(random.getstate()[1][0] % 1_000_003) + float(np.random.get_state()[1][0])  # type: ignore[index, operator]


def restores_the_state(number: int) -> float:
    before = np.random.get_state()
    drawn = np.random.rand()
    np.random.set_state(before)
    return float(drawn)


DRAWS = [float, draws_always, draws_late, draws_a_normal_in_store, reads_the_seed, reads_the_state, restores_the_state]


def loader(dataset: Any, **arguments: Any) -> Any:
    return dp.from_torch(DataLoader(dataset, **({"batch_size": BATCH} | arguments)), seed=7, device="cpu")


def all_seeded(dataset: Any, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> list[Any]:
    """The batches of a loader that seeds for each sample."""
    with monkeypatch.context() as patch:
        patch.setattr("datapipe.deferral.requests.may_read_state", lambda dataset: "everything")
        return [copies(made) for made in [loader(dataset, **arguments)] for _ in range(3)]


@pytest.mark.daily(2)
@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("shuffle", mostly_nightly([False, True], True), ids=["in order", "shuffled"])
def test_batches_are_as_if_every_sample_were_seeded(draw: Any, shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = all_seeded(Rows(draw), monkeypatch, shuffle=shuffle)
    found = loader(Rows(draw), shuffle=shuffle)
    assert all(same(copies(found), epoch) for epoch in expected)


@pytest.mark.daily(1)
@pytest.mark.parametrize("draw", [draws_late, draws_always, reads_the_seed], ids=lambda draw: draw.__name__)
def test_the_number_of_workers_does_not_matter(draw: Any) -> None:
    expected = copies(loader(Rows(draw)))
    for num_workers in (1, 2):
        assert same(copies(loader(Rows(draw), num_workers=num_workers, multiprocessing_context="fork")), expected)


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_a_place_is_resumed_exactly(draw: Any) -> None:
    walking = loader(Rows(draw), shuffle=True)
    expected = copies(walking)
    walking = loader(Rows(draw), shuffle=True)
    batches = iter(walking)
    for _ in range(90):
        next(batches)
    resumed = loader(Rows(draw), shuffle=True)
    resumed.load_state_dict(walking.state_dict())
    assert same(copies(resumed), expected[90:])


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_training_draws_what_it_would_draw_without(draw: Any) -> None:
    def drawn(batches: Any) -> list[Any]:
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        return [
            (torch.randn(()).item(), random.gauss(0, 1), np.random.randn()) if number % 3 else None
            for number, _ in enumerate(batches)
        ]

    assert drawn(loader(Rows(draw))) == drawn(DataLoader(range(NUM), BATCH))  # type: ignore[arg-type]


def test_seeds_are_left_out_where_nothing_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr("datapipe.deferral.own_code.reseed", seeded.append)
    ours = loader(Rows())
    copies(ours)
    assert MIN_WATCHED <= len(seeded) < NUM
    seeded.clear()
    copies(ours)
    assert len(seeded) <= -(-NUM // BATCH // TRIED_AGAIN) * BATCH, "but of batches that look for images again"


def test_a_batch_that_draws_at_last_is_made_again_and_all_after_it_are_seeded() -> None:
    made: list[int] = []

    def noted(number: int) -> float:
        made.append(number)
        return draws_late(number)

    ours = loader(Rows(noted))
    copies(ours)
    again = [number for number in set(made) if made.count(number) == 2]
    assert len(made) == NUM + BATCH
    assert len(again) == BATCH
    made.clear()
    copies(ours)
    assert len(made) == NUM


@pytest.mark.parametrize("draws", [False, True])
def test_an_error_is_that_of_the_users_code(draws: bool) -> None:
    def fails(number: int) -> float:
        if number == 301:
            raise ValueError(f"number {np.random.rand() if draws else 0}")
        return 0.0

    def message() -> str:
        ours = loader(Rows(fails))
        batches, found = iter(ours), ""
        for _ in range(NUM // BATCH):
            try:
                next(batches)
            except ValueError as error:
                found += str(error)
        return found

    before = random_mark()
    assert message() == message() != ""
    assert random_mark()[1:] == before[1:]  # type: ignore[index]  # torch's loader itself draws a number of torch's


def test_another_transform_is_looked_at() -> None:
    dataset = Rows()
    ours = loader(dataset)
    copies(ours)
    dataset.draw = reads_the_seed
    expected = loader(Rows(reads_the_seed))
    copies(expected)
    assert same(copies(ours), copies(expected))


def test_a_collate_fn_that_certainly_draws_nothing_needs_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr("datapipe.deferral.reports.reseed", seeded.append)
    copies(loader(Rows(), collate_fn=stacked))
    assert not seeded
    copies(loader(Rows(), collate_fn=mixed))
    assert len(seeded) == NUM // BATCH


def stacked(samples: list[Any]) -> Any:
    return torch.stack([rows for rows, _ in samples])


def mixed(samples: list[Any]) -> Any:
    return torch.stack([rows for rows, _ in samples]) * torch.rand(())


def test_the_cost_is_a_small_multiple_of_torchs() -> None:
    """Seeds for each sample take ten times as long as torch; what is left is some 50 us a batch."""
    dataset = Rows(num=64 * 100)

    def cost(batches: Any) -> float:
        start_s = time.process_time()
        for _ in batches:
            pass
        return time.process_time() - start_s

    theirs, ours = DataLoader(dataset, 64), loader(dataset, batch_size=64)
    cost(ours)
    pairs = [(cost(theirs), cost(ours)) for _ in range(5)]
    assert min(one for _, one in pairs) < 5 * min(one for one, _ in pairs)  # twice; it was twelve times with seeds


# -- what is told of code ------------------------------------------------------------------------------


class Holder:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


def calls_a_helper(number: int) -> float:
    return max(reads_the_seed(number) for _ in range(2))


@torch.no_grad()
def wrapped(number: int) -> float:
    return calls_a_helper(number)


@pytest.mark.parametrize(
    "held",
    [
        reads_the_seed, calls_a_helper, wrapped, [0] * 100 + [Holder(wrapped)], {"by": (reads_the_state,)},
        Holder(Rows(reads_the_seed)),
    ],
    ids=["itself", "a helper", "wrapped", "in a list", "in a dict", "of an object"],
)  # fmt: skip
def test_code_that_reads_the_state_is_found(held: Any) -> None:
    assert may_read_state(Rows(held)) in ("initial_seed", "getstate")
    assert may_read_state(torch.utils.data.Subset(Rows(held), [0])) is not None


def test_code_that_reads_no_state_is_known() -> None:
    for held in (float, draws_always, np.arange(5), {"a": [1] * 100}, torch.nn.Linear(2, 2), Rows(draws_late)):
        assert may_read_state(Rows(held)) is None  # type: ignore[arg-type]


def test_any_draw_changes_the_mark_and_nothing_else_does() -> None:
    states = RandomStates()
    draws: list[Callable[[], Any]] = [
        random.random, lambda: random.gauss(0, 1), lambda: random.gauss(0, 1), lambda: random.getrandbits(32 * 624),
        np.random.rand, np.random.randn, np.random.randn, lambda: np.random.bytes(4 * 624), lambda: np.random.seed(3),
        lambda: torch.rand(1), lambda: torch.manual_seed(3), lambda: random.seed(3),
    ]  # fmt: skip
    for draw in draws:
        before = random_mark()
        assert before is not None
        assert before == random_mark()
        draw()
        assert before != random_mark()
    states.restore()
    assert random_mark() == states.mark
    reads: list[Callable[[], Any]] = [random.getstate, np.random.get_state, torch.get_rng_state, torch.initial_seed]
    for read in reads:
        read()
        assert random_mark() == states.mark
