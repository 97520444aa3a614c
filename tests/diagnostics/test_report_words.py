"""Numbers and sentences that all reports share."""

from __future__ import annotations

import math

import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st
from report_documents import HOSTILE, document

from datapipe.analysis.judge.bootstrap import Interval
from datapipe.analysis.judge.fault import Fault, StageOfWait
from datapipe.diagnostics.document import Span, read_document
from datapipe.diagnostics.report import words
from datapipe.diagnostics.report.drawings import Axis, ticks
from datapipe.diagnostics.report.trace import lanes_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not measured"), (0.0, "0 ms"), (3e-6, "3 us"), (0.000123, "0.12 ms"), (0.0123, "12.3 ms"), (0.123, "123 ms"),
        (1.234, "1.23 s"), (12.34, "12.3 s"), (123.4, "123 s"), (7200.0, "2.0 h"),
    ],
)  # fmt: skip
def test_seconds(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


def test_a_range_has_one_unit() -> None:
    assert words.seconds_range(Interval(0.120, 0.0951, 1.2)) == "120 ms [95, 1200]"


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (Interval(0.37, 0.35, 0.40), "37% shorter [35%, 40%]"),
        (Interval(-0.99, -1.01, -0.98), "99% longer [98%, 101%]"),
        (Interval(0.001, -0.02, 0.01), "no change [-2%, +1%]"),
        (Interval(-0.0001, -0.0001, -0.0001), "no change [0%, 0%]"),
    ],
)
def test_changes(gain: Interval, text: str) -> None:
    assert words.change(gain) == text


def test_plain_text_holds_nothing_that_a_terminal_or_a_file_would_choke_on() -> None:
    text = words.plain(f"{HOSTILE}\n\tä\x00")
    assert text.startswith("<script>")
    assert text.endswith("  ä\ufffd")
    assert "\x1b" not in text
    text.encode()


HEADLINES = {
    "data-bound": r"The GPU waits for data 37\.\d% of the time\.",
    "compute-bound": r"Data is not the bottleneck: the GPU waits for it only 0\.9% of the time\.",
    "host clock": r"The training loop waits for data 41\.\d% of the time \(host clock\)\.",
    "two ranks": r"The GPU waits for data 37\.\d% of the time \(rank 1, the slowest of 2\)\.",
    "nothing": r"There were too few steady steps to tell whether the training loop waits for data \(host clock\)\.",
}


@pytest.mark.parametrize("kind", HEADLINES)
def test_headlines(kind: str) -> None:
    import re

    assert re.fullmatch(HEADLINES[kind], words.headline(read_document(document(kind))))


RUNS = {
    "starts": (
        {"share": 0.65, "of_starts": 0.63, "of_earlier": 0.0},
        "The GPU waits for data 65% of the run, most of it for the first batches of its epochs; "
        "0.9% of the time in steady steps.",
    ),
    "first epoch": (
        {"share": 0.44, "of_starts": 0.02, "of_earlier": 0.4},
        "The GPU waits for data 44% of the run, most of it in its first epoch; 0.9% of the time in steady steps.",
    ),
    "here and there": (
        {"share": 0.3, "of_starts": 0.1, "of_earlier": 0.1},
        "The GPU waits for data 30% of the run; 0.9% of the time in steady steps.",
    ),
    "hardly more": (
        {"share": 0.1, "of_starts": 0.09, "of_earlier": 0.0},
        "Data is not the bottleneck: the GPU waits for it only 0.9% of the time.",
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_the_headline_is_about_the_run_where_it_waits_more_than_its_steady_steps(case: str) -> None:
    found, (waiting, headline) = document("compute-bound"), RUNS[case]
    found["run"] = {"wall_s": 100.0, "parts": {}, "waiting": waiting}
    found["regimes"] = [
        {"first_pass": number, "last_pass": number + 4 * number, "num_steps": 50, "waiting": 0.5, "step_s": 0.1}
        for number in (0, 1)
    ]
    read = read_document(found)
    assert words.headline(read) == headline
    is_run = case != "hardly more"
    assert (words.badge(read), read.severity) == (("data-bound", "high") if is_run else ("compute-bound", "fine"))
    assert words.nothing_line(read).startswith("Steady steps need no change" if is_run else "Nothing needs to change")


def test_too_few_steady_steps_do_not_hide_what_the_run_waits() -> None:
    found = document("nothing")
    found["run"] = {"wall_s": 9.0, "parts": {}, "waiting": {"share": 0.7, "of_starts": 0.7, "of_earlier": 0.0}}
    assert words.headline(read_document(found)) == (
        "The training loop waits for data 70% of the run, most of it for the first batches of its epochs; "
        "there were too few steady steps to judge those (host clock)."
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sync-exposed", "because the loop waits for the GPU at every step"),
        ("host-bound", "the GPU waits for Python and for kernels to be launched"),
        ("not measured", "It was not measured whether the GPU waits for data"),
    ],
)
def test_headlines_of_further_verdicts(kind: str, text: str) -> None:
    found = document("data-bound")
    found["verdict"] |= {"kind": kind, "reason": "why"}
    assert text in words.headline(read_document(found))


def test_what_the_loop_itself_does_is_said() -> None:
    found = document("data-bound")
    found["verdict"]["figures"] |= {"copy_s": 0.020, "exposed_by_sync_s": 0.011}
    text = words.detail(read_document(found))
    assert "20.0 ms of it goes to copies" in text
    assert "Up to 11.0 ms of it would be hidden" in text


def test_what_was_not_measured_is_named() -> None:
    assert words.unmeasured(read_document(document("data-bound"))) == []
    found = document("data-bound")
    found["verdict"]["figures"] |= {"copy_s": None, "sync_share": None}
    found |= {"attribution": None, "why_no_attribution": "no profile came", "remedies": None, "why_no_remedies": None}
    found["left_out"] = [{"name": "another format", "reason": "no room on the disk"}]
    assert words.unmeasured(read_document(found)) == [
        "copies to the GPU that the loop requests",
        "where the loop waits for the GPU",
        "which stage is at fault (no profile came)",
        "the effect of remedies",
        "another format (no room on the disk)",
    ]
    assert words.unmeasured(read_document(document("host clock")))[0] == "the GPU's idle time"


@quick
@given(
    low=st.floats(-1e6, 1e6),
    length=st.floats(1e-6, 1e6),
    num=st.integers(2, 10),
)
def test_ticks_are_round_few_and_within(low: float, length: float, num: int) -> None:
    high = low + length
    marks = ticks(low, high, num=num)
    assert len(marks) <= num + 2
    slack = 1e-6 * length + 1e-15 * (abs(low) + length)  # the numbers have no more digits
    assert all(low - slack <= mark <= high + slack for mark in marks)
    if len(marks) > 1 and length > 1e-3 * abs(low):
        step = marks[1] - marks[0]
        assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 3) in (1, 2, 5)


def test_an_axis_without_length_is_no_division_by_zero() -> None:
    assert (Axis(1.0, 1.0, 100).at(1.0), Axis(1.0, 1.0, 100).share(1.0), ticks(1.0, 1.0, num=5)) == (0, 0.0, [1.0])


@quick
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.sampled_from([None, 0, 1]))))
def test_lanes_hold_every_span_once_and_none_over_another(rows: list[tuple[int, int, int | None]]) -> None:
    spans = [Span(start_s=start / 10, duration_s=length / 10, stage="read", worker=worker) for start, length, worker in rows]
    lanes = lanes_of(spans)
    assert sorted((span for lane in lanes for span in lane.spans), key=repr) == sorted(spans, key=repr)
    for lane in lanes:
        assert {span.worker for span in lane.spans} == {lane.worker}
        for before, after in zip(lane.spans, lane.spans[1:], strict=False):
            assert before.start_s + before.duration_s <= after.start_s + 2e-6
    assert [lane.worker is None for lane in lanes] == sorted((lane.worker is None for lane in lanes), reverse=True)


def test_a_lack_of_cores_names_what_they_compute() -> None:
    """Too many workers on few cores: that they wait for a core is the symptom."""
    cores = StageOfWait(name="cores", wait_s=6.8, share=0.68, work_share=0.3)
    stages = (
        cores,
        StageOfWait(name="collate", wait_s=0.3, share=0.28, work_share=0.1),
        StageOfWait(name="decode", wait_s=0.4, share=0.04, work_share=0.6),
    )
    line = words.fault_line(Fault(stages=stages, fault="cores"))
    assert line == "cores, 68% of waiting: more threads want to run than there are cores, and most of it is decode"
    assert words.fault_line(Fault(stages=(cores,), fault="cores")).startswith("cores, 68% of waiting (waiting for a CPU core")
