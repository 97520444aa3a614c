"""Which cases of a test run by day: a few that show many pairs of values of its parameters."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations

_OF_A_VALUE = 8  # what a value that no case had yet counts, beside a pair that none had


def spread(cases: Sequence[Mapping[str, Hashable]], number: int) -> list[int]:
    """Return the places of `number` cases, or of all: each adds the most new values of parameters, then the most new pairs.

    The first case comes first, and so do earlier ones where several add as much.
    """
    shown = [_values_and_pairs(case) for case in cases]
    left, seen, chosen = list(range(len(cases))), set[Hashable](), list[int]()
    while left and len(chosen) < number:
        best = max(left, key=lambda place: sum(shown[place][new] for new in shown[place].keys() - seen))
        left.remove(best)
        seen |= shown[best].keys()
        chosen.append(best)
    return chosen


def _values_and_pairs(case: Mapping[str, Hashable]) -> dict[Hashable, int]:
    """Return what a case shows, and how much each of that counts."""
    values = list(case.items())
    return {(value,): _OF_A_VALUE for value in values} | dict.fromkeys(combinations(values, 2), 1)
