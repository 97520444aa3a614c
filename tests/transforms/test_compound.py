"""RandomApply, RandomChoice, RandomOrder, and the operations that happen with probability p."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import datapipe.transforms as T
from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.protocols import Locality

MANY = 8000
DRAWS = Draws(5, 1, np.arange(MANY))


def check_share(hits: int, share: float) -> None:
    """A count within five standard deviations of its expectation."""
    assert abs(hits - MANY * share) <= 5 * math.sqrt(MANY * share * (1 - share)) + 1e-9


def tiny(count: int) -> torch.Tensor:
    """(count, 3, 1, 1) images of value 100, NHWC in memory."""
    return torch.full((count, 1, 1, 3), 100, dtype=torch.uint8).permute(0, 3, 1, 2)


def values(op: Any, count: int = MANY) -> Any:
    """What becomes of the value 100 in each of so many samples."""
    return op.apply(tiny(count), op.draw(Draws(5, 1, np.arange(count)), 3, (1, 1)))[:, 0, 0, 0].numpy()


SURE = T.RandomInvert(1.0)  # 100 -> 155
CUT = T.RandomPosterize(1, 1.0)  # 100 -> 0, 155 -> 128


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "make",
    [T.RandomInvert, lambda p: T.RandomPosterize(2, p), lambda p: T.RandomSolarize(5, p), T.RandomAutocontrast, T.RandomEqualize,
     lambda p: T.RandomAdjustSharpness(2, p), lambda p: T.RandomApply([SURE], p)],
)  # fmt: skip
def test_things_happen_with_probability_p(make: Callable[[float], Any], p: float) -> None:
    check_share(int(make(p).draw(DRAWS, 0, (8, 8))["chosen"].sum()), p)


def test_apply_does_all_or_nothing() -> None:
    got = values(T.RandomApply([SURE, CUT], 0.3))
    assert set(got.tolist()) == {100, 128}
    check_share(int((got == 128).sum()), 0.3)


def test_choice_takes_one_by_its_share() -> None:
    got = values(T.RandomChoice([SURE, CUT, T.ColorJitter(), SURE], [2, 5, 3, 0]))
    for value, share in ((155, 0.2), (0, 0.5), (100, 0.3)):
        check_share(int((got == value).sum()), share)
    got = values(T.RandomChoice([SURE, CUT]))
    assert set(got.tolist()) == {155, 0}
    check_share(int((got == 0).sum()), 0.5)


def test_order_is_a_permutation_drawn_per_sample() -> None:
    got = values(T.RandomOrder([SURE, CUT]))  # invert first: 128; cut first: 255
    assert set(got.tolist()) == {128, 255}
    check_share(int((got == 128).sum()), 0.5)
    orders, counts = np.unique(T.RandomOrder([SURE] * 3).draw(DRAWS, 0, (1, 1))["order"], axis=0, return_counts=True)
    assert len(orders) == 6
    for count in counts:
        check_share(int(count), 1 / 6)


def test_what_is_inside_draws_by_itself() -> None:
    """Two of the same do not draw the same, nor as one outside, nor as one a level deeper."""
    inner = T.RandomInvert(0.5)
    drawn = T.RandomApply([inner, inner, T.RandomApply([inner])], 1.0).draw(DRAWS, 2, (1, 1))
    chosen = [
        drawn["0.chosen"],
        drawn["1.chosen"],
        drawn["2.0.chosen"],
        drawn["2.chosen"],
        inner.draw(DRAWS, 2, (1, 1))["chosen"],
    ]
    for one in range(len(chosen)):
        for other in range(one):
            check_share(int((chosen[one] == chosen[other]).sum()), 0.5)


def test_reach_is_the_farthest() -> None:
    point, image, place = T.RandomInvert(), T.ColorJitter(contrast=0.3), T.GaussianBlur(3)
    assert T.RandomApply([point, point]).locality is Locality.POINT
    assert T.RandomChoice([point, image]).locality is Locality.IMAGE
    assert T.RandomOrder([point, T.RandomApply([place]), image]).locality is Locality.PLACE
    assert not T.RandomApply([place]).moves_pixels
    assert T.RandomChoice([place, T.RandAugment()]).moves_pixels
    moved = T.Recipe.of([T.RandomApply([point]), T.RandomHorizontalFlip()])
    assert "moved before the pixel operations" in moved.explain()[0]
    with pytest.raises(OptionError, match="swapping them would change the result"):
        T.Recipe.of([T.RandomApply([place]), T.RandomHorizontalFlip()])


def test_a_result_that_is_not_in_place_arrives() -> None:
    class Doubled:
        """From outside; gives another tensor than it is given."""

        def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> dict[str, Any]:
            return {}

        def apply(self, images: torch.Tensor, params: Any, /) -> torch.Tensor:
            return images * 2

        def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
            return dtype

    assert set(values(T.RandomApply([Doubled()], 0.5)).tolist()) == {100, 200}
    assert set(values(T.RandomApply([Doubled()], 1.0)).tolist()) == {200}


ALL = [
    T.RandomInvert(0.2), T.RandomPosterize(3), T.RandomSolarize(99.5, 0.1), T.RandomAutocontrast(), T.RandomEqualize(0.7),
    T.RandomAdjustSharpness(2), T.RandomApply([T.RandomInvert()], 0.2), T.RandomApply([T.RandomInvert()]),
    T.RandomChoice([T.RandomInvert(), T.ColorJitter(0.3)]), T.RandomChoice([T.RandomInvert(), T.ColorJitter(0.3)], [1, 2]),
    T.RandomOrder([T.RandomInvert(), T.ColorJitter(0.3)]),
]  # fmt: skip


@pytest.mark.parametrize("op", ALL, ids=repr)
def test_repr_is_the_call_that_makes_it(op: Any) -> None:
    assert eval(repr(op), vars(T)) == op
    assert pickle.loads(pickle.dumps(op)) == op
    assert sum(other == op for other in ALL) == 1
    assert hash(op) == hash(eval(repr(op), vars(T)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: T.RandomInvert(2), r"p is 2; .*between 0 and 1"),
        (lambda: T.RandomPosterize(9), r"bits is 9; .*0 to 8"),
        (lambda: T.RandomSolarize(256), r"threshold is 256; .*0 to 255"),
        (lambda: T.RandomAdjustSharpness(-1), r"sharpness_factor is -1; .*at least 0"),
        (lambda: T.RandomApply([]), r"transforms is \[\]; .*at least one"),
        (lambda: T.RandomApply(T.RandomInvert()), r"it must be a list"),
        (
            lambda: T.RandomApply([T.RandomHorizontalFlip()]),
            r"RandomHorizontalFlip\(\) is not a pixel operation; put crops.*outside",
        ),
        (lambda: T.RandomOrder([T.RandomInvert]), r"is not a pixel operation"),
        (lambda: T.RandomChoice([T.RandomInvert()], [1, 2]), r"p is \[1, 2\]; it must be 1 numbers"),
        (lambda: T.RandomChoice([T.RandomInvert()], [0]), r"not all 0"),
        (lambda: T.Recipe.of([T.ToDtype(torch.float32), T.RandomInvert()]), r"RandomInvert\(\) works on uint8 images"),
        (lambda: T.Recipe.of([T.RandomApply([T.ToDtype(torch.float32)])]), r"changes the dtype"),
    ],
)
def test_refusals(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        make()
