"""The cases that stand for a test by day show every value, then as many pairs as they can."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from thinning import spread

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def product(sizes: list[int]) -> list[dict[str, int]]:
    names = [f"p{number}" for number in range(len(sizes))]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*map(range, sizes))]


def pairs(cases: list[dict[str, int]]) -> set[object]:
    return {pair for case in cases for pair in itertools.combinations(case.items(), 2)}


@given(SIZES)
def test_as_many_cases_as_a_parameter_has_values_show_all_values(sizes: list[int]) -> None:
    cases = product(sizes)
    chosen = [cases[place] for place in spread(cases, max(sizes))]
    assert chosen[0] == cases[0]
    for number, size in enumerate(sizes):
        assert {case[f"p{number}"] for case in chosen} == set(range(size))


def test_pairs_need_fewer_cases_than_the_product() -> None:
    cases = product([7, 5, 2])
    chosen = spread(cases, 40)
    assert len(chosen) == len(set(chosen)) == 40
    assert pairs([cases[place] for place in chosen]) == pairs(cases)


def test_no_more_cases_than_there_are() -> None:
    assert sorted(spread(product([2, 3]), 100)) == list(range(6))
    assert spread([{}], 1) == [0]
