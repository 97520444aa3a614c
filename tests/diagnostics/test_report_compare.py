"""Two diagnoses side by side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from report_documents import KINDS, document

from datapipe.diagnostics.report.compare import compare, differences
from datapipe.errors import FormatError


def test_better_is_called_better() -> None:
    found = differences(document("data-bound"), document("compute-bound"))
    assert found["verdict"] == {"before": "data-bound", "after": "compute-bound"}
    assert found["starvation"]["change"] == pytest.approx(-0.364, abs=0.002)
    assert found["starvation"]["is_clear"] is True
    assert found["step_s"]["change"] == pytest.approx(-0.37, abs=0.002)
    assert found["samples_per_s"]["change"] == pytest.approx(0.588, abs=0.002)
    assert found["cautions"] == []
    assert found["sentence"] == (
        "The GPU waits for data 0.9% of the time, less than the 37.4% before. It trains 59% faster: 1,512 samples/s, were 953."
    )


def test_worse_is_called_worse() -> None:
    sentence = differences(document("compute-bound"), document("data-bound"))["sentence"]
    assert "more than the 0.9% before" in sentence
    assert "It trains 37% slower" in sentence


def test_what_chance_may_be_is_no_change() -> None:
    found = document("data-bound")
    found["verdict"]["figures"]["starvation"] = {"value": 0.38, "low": 0.37, "high": 0.39}
    result = differences(document("data-bound"), found)
    assert result["starvation"]["is_clear"] is False
    assert result["sentence"].startswith("No clear change: the GPU waits for data 38.0% of the time, was 37.4%")
    assert "It trains as fast as before" in result["sentence"]


def test_another_batch_size_is_compared_by_rate_and_named() -> None:
    found = document("data-bound")
    found["loaders"][0]["batch_size"] = 128
    result = differences(document("data-bound"), found)
    assert result["cautions"] == ["the batch size differs: 64 before, 128 after"]
    assert "It trains 100% faster" in result["sentence"]
    found["loaders"] = []
    assert "Steps take as long as before, 67.2 ms." in differences(document("data-bound"), found)["sentence"]


def test_what_does_not_mean_the_same_is_said() -> None:
    cautions = differences(document("data-bound"), document("host clock"))["cautions"]
    assert any("the other by the host's clock" in text for text in cautions)
    cautions = differences(document("data-bound"), document("two ranks"))["cautions"]
    assert [text.split(":")[0] for text in cautions] == ["the command differs", "the number of ranks differs"]


def test_unmeasured_stays_unmeasured() -> None:
    found = differences(document("nothing"), document("data-bound"))
    assert found["step_s"] == {"before": None, "after": pytest.approx(0.0672, abs=1e-4), "change": None}
    assert found["starvation"]["is_clear"] is None
    assert found["stages"][0]["before"] is None
    assert found["sentence"].startswith("The time spent waiting for data was not measured in the first run")
    assert "not measured ->" in compare(document("nothing"), document("data-bound"))
    assert "the run before ended with exit status 1" in found["cautions"]
    assert "in either run" in differences(document("nothing"), document("nothing"))["sentence"]


def test_stages_are_ordered_by_what_changed() -> None:
    found = document("data-bound")
    stages: list[dict[str, Any]] = found["attribution"]["stages"]
    stages[0]["share"], stages[2]["share"] = 0.07, 0.49
    del stages[-1]
    result = differences(document("data-bound"), found)["stages"]
    assert [stage["name"] for stage in result[:2]] == ["transform RandomResizedCrop", "read"]
    assert [stage["change"] for stage in result[:2]] == pytest.approx([-0.4, 0.39])
    assert next(stage for stage in result if stage["name"] == "cores")["after"] == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_text_has_the_sentence_first_and_lines_of_a_terminals_width(kind: str) -> None:
    before, after = document("data-bound"), document(kind)
    text = compare(before, after)
    assert text.splitlines()[0] == differences(before, after)["sentence"]
    assert all(len(line) <= 100 for line in text.splitlines()[1:] if not line.startswith("Caution"))
    json.dumps(differences(before, after), allow_nan=False)


def test_different_versions_are_refused() -> None:
    later = {**document("data-bound"), "version": 2}
    with pytest.raises(FormatError, match="the first diagnosis is of version 1, the second of version 2"):
        compare(document("data-bound"), later)
    with pytest.raises(FormatError, match="reads version 1"):
        compare(later, later)
