"""Numbers and names that callers pass: in their plain form, or refused by the argument's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from datapipe.core.checks import names_or_none, real_number, whole_number
from datapipe.errors import OptionError


def test_values_come_in_their_plain_form() -> None:
    found = [whole_number(value, "n", least=0, most=5) for value in (0, np.int32(5), True)]
    assert [(type(one), one) for one in found] == [(int, 0), (int, 5), (int, 1)]
    assert [real_number(value, "x") for value in (2, np.float32(0.5))] == [2.0, 0.5]
    assert (names_or_none(["a", "b"], "fields"), names_or_none(None, "fields")) == (("a", "b"), None)


@pytest.mark.parametrize("value", [2**70, 6, -1, 1e300, "5", b"5", None, [2], 2.5, 3 + 2j, float("nan")])
def test_what_is_no_whole_number_in_bounds(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^n is .*; it must be (a whole number|at least 0|at most 5)$"):
        whole_number(value, "n", least=0, most=5)


@pytest.mark.parametrize("value", [10**400, 1e300, float("inf"), float("nan"), "5", b"5", None, [2], 3 + 2j])
def test_what_is_no_real_number_in_bounds(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^x is .*; it must be (a number|finite|at most 1e\+09)$"):
        real_number(value, "x", most=1e9)


@pytest.mark.parametrize("value", ["image", b"image", 5, 1e300, True, [1, 2], {3: 4}])
def test_what_is_no_list_of_names(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^fields is .*; it must be a list of names$"):
        names_or_none(value, "fields")
