"""The document: the examples are what the schema says, and what is no diagnosis is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from report_documents import KINDS, document

from datapipe.diagnostics.document import Document, as_json, read_document, schema
from datapipe.diagnostics.report.compare import compare
from datapipe.diagnostics.report.page import page
from datapipe.diagnostics.report.screen import screen
from datapipe.diagnostics.report.trace import trace
from datapipe.errors import FormatError


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_is_read(kind: str) -> None:
    found = read_document(document(kind))
    assert read_document(json.loads(json.dumps(as_json(found), allow_nan=False))) == found


def test_the_schema_names_every_key() -> None:
    known = schema()["$defs"]
    assert set(known["Document"]["properties"]) == set(Document.__struct_fields__)
    assert known["Document"]["required"] == ["verdict"]
    assert {"value", "low", "high"} == set(known["Interval"]["required"])


@pytest.mark.parametrize("report", [screen, page, trace, lambda one: compare(one, one)])
def test_other_versions_and_other_files_are_refused(report: Any) -> None:
    with pytest.raises(FormatError, match=r"version 2, but this datapipe reads version 1"):
        report({**document("data-bound"), "version": 2})
    with pytest.raises(FormatError, match="is not a diagnosis"):
        report({"rounds": []})


@pytest.mark.parametrize(
    "damage",
    [
        {"verdict": {}},
        {"verdict": {"kind": "data-bound", "figures": {"starvation": {"value": 0.3}}}},
        {"attribution": {"stages": [{"share": 0.5}]}},
        {"attribution": {"stages": [{"name": "read", "share": float("nan")}]}},
        {"remedies": {"best": "4 workers", "predictions": [{"name": "4 workers"}]}},
        {"steps": {"start_s": [0.0, 1.0], "step_s": [1.0]}},
        {"spans": [{"stage": "read"}]},
        {"ranks": ["0"]},
    ],
)
def test_damaged_documents_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="the diagnosis is damaged"):
        read_document({**document("data-bound"), **damage})


def test_further_keys_and_lacking_ones_do_no_harm() -> None:
    """A document may grow within its version; of an older one only the verdict is needed."""
    whole = document("data-bound")
    assert read_document({**whole, "news": 1}) == read_document(whole)
    little = read_document({"version": 1, "verdict": whole["verdict"]})
    assert little.verdict == read_document(whole).verdict
    assert (little.steps, little.remedies, little.attribution) == (None, None, None)


def test_rates_are_of_the_judged_loader() -> None:
    found = document("two ranks")
    assert read_document(found).samples_per_s == pytest.approx(64 / found["verdict"]["figures"]["step_s"])
    found["loaders"][1] |= {"is_judged": True, "batch_size": 8}
    found["loaders"][0] |= {"is_judged": False}
    assert read_document(found).batch_size == 8
    assert read_document(document("nothing")).samples_per_s is None
