"""Each promise has a test by day, and the table says which; the tests' faults are faults of the code as it is."""

from __future__ import annotations

import pytest

from tests import promises
from tests.mutations import MUTATIONS, ROOT


@pytest.fixture(scope="module")
def held() -> dict[str, list[promises.Test]]:
    return promises.held()


def test_each_promise_has_a_test_by_day(held: dict[str, list[promises.Test]]) -> None:
    assert [name for name, tests in held.items() if all(test.is_nightly for test in tests)] == []


def test_the_table_is_that_of_the_tests() -> None:
    assert promises.table() in promises.README.read_text(), "run `python -m tests.promises`"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_mutation_finds_its_place(mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.good) == 1
    assert mutation.bad != mutation.good
