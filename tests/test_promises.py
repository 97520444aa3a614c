"""Each promise has a test by day, and the table says which."""

from __future__ import annotations

from tests import promises


def test_each_promise_has_a_test_by_day() -> None:
    assert [name for name, tests in promises.held().items() if all(test.is_nightly for test in tests)] == []


def test_the_table_is_that_of_the_tests() -> None:
    assert promises.table() in promises.README.read_text(), "run `python -m tests.promises`"
