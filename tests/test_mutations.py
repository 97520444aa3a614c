"""The faults by which the tests are tried fit the code as it is."""

from __future__ import annotations

import json

import pytest

from tests.mutations import MUTATIONS, RESULT, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_fault_finds_its_place_once(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.good) == 1
    assert mutation.bad != mutation.good


def test_the_tests_of_the_day_saw_nearly_all_of_them() -> None:
    found = json.loads(RESULT.read_text())["mutations"]
    assert found.keys() == {mutation.name for mutation in MUTATIONS}
    by_day = [name for name, outcome in found.items() if outcome["by day"]["by"] is not None]
    by_night = [name for name, outcome in found.items() if outcome.get("by night", {}).get("by") is not None]
    assert len(by_day) >= 18
    assert len({*by_day, *by_night}) == len(MUTATIONS) == 20
