"""What a plan and a saved state ask of any order.

A new order joins by one entry in ORDERS: a function of the number of samples and the seed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from datapipe.order.sample_order import Order, Permutation, SequentialOrder, ShuffledOrder, StoredWindowsOrder, WindowedOrder


def row_groups(num_samples: int) -> NDArray[np.int64]:
    """Where nine row groups of different sizes begin, and the end."""
    return np.array([num_samples * number**2 // 81 for number in range(10)], np.int64)


ORDERS: dict[str, Callable[[int, int], Order]] = {
    "sequential": lambda num_samples, seed: SequentialOrder(num_samples),
    "shuffled": ShuffledOrder,
    "windowed": lambda num_samples, seed: WindowedOrder(row_groups(num_samples), seed, global_batch=24),
    "windows as stored": lambda num_samples, seed: StoredWindowsOrder(
        WindowedOrder(row_groups(num_samples), seed, global_batch=24), Permutation(num_samples, 7)
    ),
    "windowed, prime steps": lambda num_samples, seed: WindowedOrder(row_groups(num_samples), seed, global_batch=17),
}
EPOCHS = (0, 1, 10**9)


@pytest.fixture(params=ORDERS)
def make(request: pytest.FixtureRequest) -> Callable[[int, int], Order]:
    return ORDERS[request.param]


@pytest.mark.parametrize("num_samples", [0, 1, 2, 37, 65_535, 65_537])
def test_every_epoch_holds_every_sample_once(make: Callable[[int, int], Order], num_samples: int) -> None:
    order = make(num_samples, 4)
    assert len(order) == num_samples
    for epoch in EPOCHS:
        values = order(epoch, np.arange(num_samples))
        assert values.dtype == np.int64
        assert np.array_equal(np.sort(values), np.arange(num_samples))


@pytest.mark.parametrize("num_samples", [37, 70_000])
def test_any_positions_may_be_asked_for(make: Callable[[int, int], Order], num_samples: int) -> None:
    """In any order, repeatedly, in parts; and what is asked with is left as it was."""
    order, positions = make(num_samples, 4), np.arange(num_samples)
    whole = order(3, positions)
    for some in (positions[::-1], np.array([5, 5, 0]), positions[10:20], positions[:0], np.array([num_samples - 1])):
        kept = some.copy()
        assert np.array_equal(order(3, some), whole[some])
        assert np.array_equal(some, kept)


@pytest.mark.parametrize("num_samples", [37, 70_000])
def test_an_order_holds_no_state(make: Callable[[int, int], Order], num_samples: int) -> None:
    """Another of the same arguments, a pickled copy, and one asked about other epochs before give the same."""
    order, positions = make(num_samples, 4), np.arange(num_samples)
    expected = order(1, positions).copy()
    order(0, positions), order(7, positions[:3])
    for other in (order, make(num_samples, 4), pickle.loads(pickle.dumps(order))):
        assert np.array_equal(other(1, positions), expected)
    assert len(pickle.dumps(make(10**12, 4))) < 400


def test_what_is_given_may_be_written_to_without_harm(make: Callable[[int, int], Order]) -> None:
    """A caller that changes its answer must not change the next one's."""
    order, positions = make(37, 4), np.arange(37)
    expected = order(0, positions.copy()).copy()
    order(0, positions.copy())[:] = -1
    assert np.array_equal(order(0, positions), expected)


def test_kinds_differ() -> None:
    """Saved states tell orders apart by them."""
    kinds = {type(order): order.kind for order in (make(3, 0) for make in ORDERS.values())}
    assert len(set(kinds.values())) == len(kinds)
