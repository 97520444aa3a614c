"""Remedies that are the same argument with another number, and make the same step, take one row."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from report_documents import starved

from datapipe.analysis.judge.bootstrap import Interval
from datapipe.diagnostics.document import Outlook, Remedies, read_document
from datapipe.diagnostics.report.drawings import remedy_rows
from datapipe.diagnostics.report.grouping import grouped
from datapipe.diagnostics.report.page import page
from datapipe.diagnostics.report.screen import screen

MS = 1e-3


def outlook(name: str, step_ms: float = 12.0, **others: Any) -> Outlook:
    step_s = step_ms * MS
    gain = 1 - step_ms / 20
    return Outlook(
        name=name,
        how=name,
        step_s=Interval(step_s, 0.9 * step_s, 1.1 * step_s),
        gain=Interval(gain, gain - 0.05, gain + 0.05),
        starvation=Interval(0.1, 0.1, 0.1),
        **others,
    )


def names(*outlooks: Outlook, apart: str | None = None) -> list[str]:
    return [group.name for group in grouped(outlooks, apart=apart)]


def test_numbers_with_the_same_step_are_a_range() -> None:
    found = grouped([outlook("num_workers=2"), outlook("in_order=False"), outlook("num_workers=8"), outlook("num_workers=1")])
    assert [group.name for group in found] == ["num_workers=1 to 8", "in_order=False"]
    assert found[0].first.name == "num_workers=2", "the best of them, whose instruction is given"


@pytest.mark.parametrize(
    "other",
    [
        outlook("num_workers=4", 12.5),
        outlook("prefetch_factor=4"),
        outlook("num_workers=4", changes_results=True),
        outlook("num_workers=4", refuted="it gained nothing when it was applied"),
    ],
    ids=["step", "argument", "results", "refuted"],
)
def test_what_differs_keeps_its_row(other: Outlook) -> None:
    assert names(outlook("num_workers=2"), other) == ["num_workers=2", other.name]


def test_a_step_within_two_per_cent_is_the_same() -> None:
    assert names(outlook("num_workers=2"), outlook("num_workers=4", 12.1)) == ["num_workers=2 to 4"]


def test_the_one_that_was_applied_keeps_its_row() -> None:
    two, four, eight = (outlook(f"num_workers={num}") for num in (2, 4, 8))
    assert names(two, four, eight, apart="num_workers=2") == ["num_workers=2", "num_workers=4 to 8"]
    assert names(two, four, eight, apart="num_workers=4") == ["num_workers=2 to 8", "num_workers=4"]


def test_screen_and_page_have_one_row_for_them() -> None:
    alike = tuple(outlook(f"num_workers={num}") for num in (2, 1, 4, 8))
    useless = tuple(outlook(f"prefetch_factor={num}", 20.0) for num in (4, 8))
    remedies = Remedies(best="num_workers=2", predictions=alike, within_noise=useless, measured_step_s=20 * MS)
    read = msgspec.structs.replace(read_document(starved(gap_s=0.026)), remedies=remedies, applied=None)
    shown = screen(read)
    assert "  1. num_workers=1 to 8 " in shown
    assert "\n     num_workers=2\n" in shown, "what to write"
    assert shown.count("num_workers=") == 2
    assert "Not recommended: prefetch_factor=4 to 8 (no change)" in shown
    rows = remedy_rows(remedies, None, None)
    assert [(row.name, row.is_best) for row in rows] == [
        ("as it is", False), ("num_workers=1 to 8", True), ("prefetch_factor=4 to 8", False),
    ]  # fmt: skip
    assert page(read).count("num_workers=1 to 8") == 1
