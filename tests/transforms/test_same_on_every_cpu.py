"""Orders, draws and the geometry made of them are the same numbers on every kind of CPU.

The hashes are of the numbers themselves, so a difference in the last digit of one is noticed. `make cpu-kinds` runs these
tests under several kinds of CPU on one machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import datapipe.transforms as T
from datapipe.order.draws import Draws, log_uniform
from datapipe.order.row_permutation import RowPermutation
from datapipe.order.sample_order import ShuffledOrder, WindowedOrder
from datapipe.order.sampling import WeightedOrder
from datapipe.transforms.pixels.auto_augment import OPERATIONS, rotation_matrix

Arrays = list[NDArray[Any]]

NUM = 100_000
ROWS = np.arange(NUM)
DRAWS = Draws(11, 3, ROWS)
SIZES = 100 + (DRAWS.uniform(99, 2) * 1900).astype(np.int64)


def drawn(op: Any, names: tuple[str, ...] = ()) -> Arrays:
    """The parameters of an operation on images of 224 x 181 pixels."""
    params = op.draw(DRAWS, 2, (224, 181))
    return [params[name] for name in names or sorted(params)]


def uniform(count: int) -> NDArray[np.float64]:
    return DRAWS.uniform(0, count)


def weighted() -> Arrays:
    order = WeightedOrder(np.cumsum(uniform(1)[:, 0]), NUM, seed=3)
    return [order(1, ROWS)]


def rotations() -> Arrays:
    """The matrices of all angles of TrivialAugmentWide, as images are warped with them."""
    choice, magnitude = drawn(T.TrivialAugmentWide(), ("choice", "magnitude"))
    matrices = rotation_matrix(np.unique(magnitude[choice == OPERATIONS.index("Rotate")])).astype(np.float32)
    return [matrices + np.float32(0)]  # the sine of -0 is 0 or -0, which is no difference


def mixed(op: Any, name: str) -> Arrays:
    """One parameter of `op`, of 2,000 batches."""
    return [np.concatenate([op.draw(Draws(5, 0, np.array([batch])), 0, (224, 224))[name] for batch in range(2000)])]


MADE: dict[str, Callable[[], Arrays]] = {
    "uniform": lambda: [DRAWS.words(0, 3), uniform(3)],
    "ShuffledOrder": lambda: [ShuffledOrder(NUM, seed=3)(1, ROWS), ShuffledOrder(1000, seed=3)(1, ROWS[:1000])],
    "WindowedOrder": lambda: [WindowedOrder(np.arange(0, NUM + 1, 1000), seed=3, global_batch=128)(1, ROWS)],
    "WeightedOrder": weighted,
    "RowPermutation": lambda: [RowPermutation(NUM, 3)(0, NUM)],
    "log_uniform": lambda: [log_uniform(uniform(1), 0.75, 4 / 3), log_uniform(uniform(1), 0.01, 90)],
    "RandomResizedCrop": lambda: [T.RandomResizedCrop(224).boxes(SIZES, DRAWS, 0)],
    "RandomResizedCrop, few": lambda: [T.RandomResizedCrop(224).boxes(SIZES[:24], DRAWS[:24], 0)],
    "RandomResizedCrop, extreme": lambda: [T.RandomResizedCrop(9, (0.001, 1), (0.01, 60)).boxes(SIZES, DRAWS, 0)],
    "RandomErasing": lambda: drawn(T.RandomErasing(0.7)),
    "ColorJitter": lambda: drawn(T.ColorJitter(0.4, 0.4, 0.4, 0.1)),
    "GaussianBlur": lambda: drawn(T.GaussianBlur(5)),
    "RandAugment": lambda: drawn(T.RandAugment(2, 9)),
    "RandAugment, 17 strengths": lambda: drawn(T.RandAugment(2, 11, 17)),
    "TrivialAugmentWide": lambda: drawn(T.TrivialAugmentWide()),
    "rotations": rotations,
    "CutMix": lambda: mixed(T.CutMix(alpha=0.4, num_classes=10), "box"),
}
HASHES = {
    "uniform": "cb08ce38d903f2f1",
    "ShuffledOrder": "02d26a6c7d6919c2",
    "WindowedOrder": "00f0bccc4dbe6691",
    "WeightedOrder": "c370a46098cd7319",
    "RowPermutation": "5d76143bc352d415",
    "log_uniform": "a5a0bc6030efb1a4",
    "RandomResizedCrop": "af28f9ca64072892",
    "RandomResizedCrop, few": "1dedab6a2e88738c",
    "RandomResizedCrop, extreme": "55874a4822d89b17",
    "RandomErasing": "39094892028eca9c",
    "ColorJitter": "d60a440a0900cf70",
    "GaussianBlur": "2764bd579a7a1114",
    "RandAugment": "00de0b3a523121b1",
    "RandAugment, 17 strengths": "4f963138c8944842",
    "TrivialAugmentWide": "33d1177efbc00771",
    "rotations": "e7969776c54ab7cf",
    "CutMix": "f599a129d8990bb3",
}


def hashed(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", MADE)
def test_draws_and_orders_are_those_of_other_cpus(name: str) -> None:
    assert hashed(MADE[name]()) == HASHES[name]


def test_the_shares_of_mixup_are_those_of_other_cpus_but_for_the_last_digits() -> None:
    """They come from the C library's log and cos, once a batch."""
    (shares,) = mixed(T.MixUp(alpha=0.4, num_classes=10), "lam")
    np.testing.assert_allclose(
        shares[:4], [0.46563301446325367, 0.9987455775539429, 0.11312759586052158, 0.5847179074721534], rtol=1e-13
    )
    assert shares.sum() == pytest.approx(1011.0840996803687, rel=1e-13)


def test_a_log_uniform_number_is_the_middle_of_a_step() -> None:
    places = np.array([0.0, 0.25, 0.5, 1 - 2.0**-53])
    for low, high in ((0.75, 4 / 3), (0.01, 90.0), (2.0, 2.0)):
        exact = low * (high / low) ** ((np.floor(places * 65536) + 0.5) / 65536)
        np.testing.assert_allclose(log_uniform(places, low, high), exact, rtol=1e-14)
