"""A diagnosis for dashboards: Prometheus' text format, and TensorBoard's event files.

Of the verdict, its figures, the stages and the remedies; what was not measured is left out, never sent as 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, cast

from datapipe.diagnostics.report.document import Document, read_document
from datapipe.diagnostics.report.values import Diagnosis
from datapipe.diagnostics.report.words import plain
from datapipe.errors import DependencyError

# Our figures: (name of the metric, what it is). Times in seconds, shares as ratios.
_FIGURES = {
    "step_s": ("step_seconds", "Mean training step in the steady state."),
    "data_s": ("data_wait_seconds", "Of a step: waiting for data."),
    "hidden_s": ("hidden_wait_seconds", "Of a step: waiting of the host that the device's work hides."),
    "num_steps": ("steady_steps", "Steps that the figures rest on."),
}
_Sample = tuple[str, str, dict[str, str], float]  # metric, what it is, labels, value


def prometheus_text(diagnosis: Document) -> str:
    """Text exposition format 0.0.4, all gauges, one line per rank, stage or remedy; ends with a newline.

    For the textfile collector of node_exporter, or a push gateway. Raises FormatError where `diagnosis` is none of
    this version.
    """
    lines: dict[str, str] = {}  # by what may stand there once only: a metric's description, or its labels
    # All lines of one metric have to stand together.
    for name, meaning, labels, value in sorted(_samples(read_document(diagnosis)), key=lambda sample: sample[0]):
        lines.setdefault(name, f"# HELP {name} {meaning}\n# TYPE {name} gauge")
        text = ",".join(f'{label}="{_escape(of)}"' for label, of in labels.items())
        # Names that differ in characters that cannot be shown alone would be the same here: the first one counts.
        lines.setdefault(f"{name}{{{text}}}", f"{name}{{{text}}} {value!r}" if text else f"{name} {value!r}")
    return "\n".join(lines.values()) + "\n"


class _Writer(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...
    def add_text(self, tag: str, text_string: str, global_step: int) -> None: ...
    def close(self) -> None: ...


class TensorBoardSink:
    """Writes diagnoses into `directory` for TensorBoard. Not thread-safe; close it, or use it as a context manager.

    Needs tensorboard (with torch) or tensorboardX; raises DependencyError where neither is installed.
    """

    def __init__(self, directory: str) -> None:
        self._writer = _open_writer(directory)

    def write(self, diagnosis: Document, *, step: int = 0) -> None:
        """Scalars of the run at `step`, and a curve of its steps and gaps by number of the step kept.

        Raises FormatError where `diagnosis` is none of this version.
        """
        read = read_document(diagnosis)
        for name, _, labels, value in _samples(read):
            self._writer.add_scalar("/".join([name, *map(_tag, labels.values())]), value, step)
        self._writer.add_text("datapipe/verdict", plain(f"{read.verdict.kind}: {read.verdict.reason}"), step)
        for number, row in enumerate(read.steps):
            for name, value_s in (("step_ms", row.step_s), ("gap_ms", row.gap_s), ("host_wait_ms", row.host_wait_s)):
                if value_s is not None:
                    self._writer.add_scalar(f"datapipe/{name}", value_s * 1e3, number)

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _open_writer(directory: str) -> _Writer:
    for module in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            writer: Any = importlib.import_module(module)
        except ImportError:
            continue
        return cast(_Writer, writer.SummaryWriter(directory))
    raise DependencyError(
        "writing for TensorBoard needs tensorboard or tensorboardX, and neither is installed; pip install tensorboard"
    )


def _samples(read: Diagnosis) -> Iterator[_Sample]:
    yield "datapipe_verdict", "1 for the verdict of the run.", {"kind": read.verdict.kind}, 1.0
    if read.ranks:
        for row in read.ranks:
            yield from _figures({"rank": "" if row.rank is None else str(row.rank)}, row.verdict.figures)
    else:
        yield from _figures({}, read.verdict.figures)
    if read.samples_per_s is not None:
        yield "datapipe_samples_per_second", "Of the slowest rank, in the steady state.", {}, read.samples_per_s
    for stage in read.attribution.stages if read.attribution else ():
        if stage.share is not None:
            labels = {"stage": stage.name, "detail": stage.detail or ""}
            yield "datapipe_stage_wait_ratio", "Share of the waiting that a stage is charged with.", labels, stage.share
    for one in read.what_if.outlooks + read.what_if.within_noise if read.what_if else ():
        yield "datapipe_predicted_step_seconds", "Step that a remedy would bring.", {"remedy": one.name}, one.step_s.value


def _figures(labels: dict[str, str], figures: Mapping[str, Any]) -> Iterator[_Sample]:
    share = figures.get("starvation")
    labels = {**labels, "basis": str(figures.get("basis") or "")}
    if share is not None:
        for end, name in (("value", "starvation_ratio"), ("low", "starvation_low_ratio"), ("high", "starvation_high_ratio")):
            meaning = "Share of the time spent waiting for data" + ("." if end == "value" else f", {end} end of its range.")
            yield f"datapipe_{name}", meaning, labels, float(share[end])
    for figure, (name, meaning) in _FIGURES.items():
        if figures.get(figure) is not None:
            yield f"datapipe_{name}", meaning, labels, float(figures[figure])


def _escape(text: str) -> str:
    """A label's value: any text on one line, with backslash and quote escaped."""
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')


def _tag(text: str) -> str:
    """A part of TensorBoard's name, in which a slash would begin a group."""
    return plain(text).replace("/", "_") or "-"
