"""Prometheus' text and TensorBoard's files."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import pytest
from report_documents import KINDS, document

from datapipe.diagnostics.report.sinks import TensorBoardSink, prometheus_text
from datapipe.errors import DependencyError

# A line of the exposition format: name, labels with escapes, a number.
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_LINE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{{{_LABEL}(?:,{_LABEL})*\}})? (-?[0-9.]+(?:e[-+]?[0-9]+)?)")


def parse(text: str) -> dict[str, float]:
    """Series -> value; fails on what is not the format."""
    found: dict[str, float] = {}
    described: list[str] = []
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            described.append(line.split()[2])
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {described[-1]} gauge"
        else:
            match = _LINE.fullmatch(line)
            assert match is not None, line
            assert match[1] == described[-1]  # lines of one metric stand together, after what describes it
            series = match[1] + (match[2] or "")
            assert series not in found
            found[series] = float(match[3])
    assert len(described) == len(set(described))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_prometheus_text_is_its_format(kind: str) -> None:
    assert parse(prometheus_text(document(kind)))


def test_prometheus_has_each_rank_stage_and_remedy() -> None:
    found = document("two ranks")
    lines = parse(prometheus_text(found))
    figures = [rank["verdict"]["figures"] for rank in found["ranks"]]
    for rank in (0, 1):
        labels = f'{{rank="{rank}",basis="device"}}'
        assert lines[f"datapipe_starvation_ratio{labels}"] == figures[rank]["starvation"]["value"]
        assert lines[f"datapipe_step_seconds{labels}"] == figures[rank]["step_s"]
    assert lines['datapipe_stage_wait_ratio{stage="decode",detail=""}'] == 0.3
    assert lines['datapipe_predicted_step_seconds{remedy="4 workers"}'] == pytest.approx(0.042, abs=1e-3)
    assert lines['datapipe_verdict{kind="data-bound"}'] == 1.0


def test_prometheus_leaves_out_what_was_not_measured() -> None:
    assert parse(prometheus_text(document("nothing"))) == {
        'datapipe_verdict{kind="not enough steps"}': 1.0,
        'datapipe_steady_steps{basis="host"}': 0.0,
    }
    assert "hidden" not in prometheus_text(document("host clock"))


def test_prometheus_escapes_labels() -> None:
    found = document("data-bound")
    found["attribution"]["stages"] = [{"name": 'a "b" \\ c\nd', "detail": None, "wait_s": 1.0, "share": 1.0}]
    assert r'stage="a \"b\" \\ c d"' in prometheus_text(found)


class _Writer:
    """In the place of TensorBoard's."""

    made: list[_Writer]

    def __init__(self, directory: str) -> None:
        self.directory, self.is_closed = directory, False
        self.scalars: dict[str, list[tuple[float, int]]] = {}
        self.texts: dict[str, str] = {}
        self.made.append(self)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.setdefault(tag, []).append((scalar_value, global_step))

    def add_text(self, tag: str, text_string: str, global_step: int) -> None:
        self.texts[tag] = text_string

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[_Writer]:
    """Those made by a tensorboardX that takes the real one's place; torch's own is not there."""
    _Writer.made = []
    module = ModuleType("tensorboardX")
    module.SummaryWriter = _Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    return _Writer.made


def test_tensorboard_gets_figures_and_curves(writers: list[_Writer]) -> None:
    found = document("two ranks")
    with TensorBoardSink("runs/x") as sink:
        sink.write(found, step=7)
    (writer,) = writers
    assert (writer.directory, writer.is_closed) == ("runs/x", True)
    share = found["ranks"][1]["verdict"]["figures"]["starvation"]["value"]
    assert writer.scalars["datapipe_starvation_ratio/1/device"] == [(share, 7)]
    assert writer.scalars["datapipe/step_ms"] == [(1e3 * step_s, row) for row, step_s in enumerate(found["steps"]["step_s"])]
    assert writer.texts["datapipe/verdict"].startswith("data-bound: rank 1 alone holds up the others")


def test_tensorboard_is_not_sent_what_was_not_measured(writers: list[_Writer]) -> None:
    with TensorBoardSink("runs/x") as sink:
        sink.write(document("host clock"))
    assert "datapipe/gap_ms" not in writers[0].scalars
    assert "datapipe/host_wait_ms" in writers[0].scalars


def test_without_tensorboard_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(DependencyError, match="pip install tensorboard"):
        TensorBoardSink("runs/x")


def test_real_tensorboard_reads_it(tmp_path: Any) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    with TensorBoardSink(str(tmp_path)) as sink:
        sink.write(document("data-bound"), step=3)
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    assert len(read.Scalars("datapipe/gap_ms")) == 480
    assert read.Scalars("datapipe_starvation_ratio/0/device")[0].step == 3
