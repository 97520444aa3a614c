"""Put what a step costs the device into words: what it reaches of its peaks, what bounds it, and other batch sizes. Pure."""

from __future__ import annotations

from datapipe.diagnostics.document import BatchSizeRow, Document
from datapipe.diagnostics.report.words import plain, seconds
from datapipe.instruments.measure.observed import ModelCost

_BOUND = 0.4  # of a step: what takes less at its best does not bound it
_FLOPS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1, "FLOP"))


def model_lines(diagnosis: Document) -> list[str]:
    """Return what a step costs the device, and what bounds it; none if its operations were not counted."""
    cost, figures = diagnosis.model, diagnosis.verdict.figures
    if cost is None or not figures.step_s:
        return []
    device, dtype = plain(cost.device), plain(cost.dtype)
    shares = _shares(cost, figures.step_s, figures.data_s)
    parts = ", ".join(f"{what} {share:.0%}" for what, share in shares.items())
    left_out = f" {', '.join(map(plain, cost.uncounted))} not counted." if cost.uncounted else ""
    return [
        f"A step has {_flops(cost.flops)}: {_used(cost, figures.step_s):.1%} of what large {dtype} products reach on {device} "
        f"({_flops(cost.peak_flops_per_s)}/s), and {cost.intensity:.3g} per byte. At the device's best, of a step: {parts}. "
        f"It is {_bound(shares)}.{left_out}"
    ]


def batch_size_lines(diagnosis: Document) -> list[str]:
    """Return what other batch sizes do to a step that never waits for data, after the present one; none if none was tried."""
    if not diagnosis.batch_sizes:
        return []
    figures, now = diagnosis.verdict.figures, diagnosis.batch_size
    rows = list(diagnosis.batch_sizes)
    if now is not None:
        rows.insert(0, BatchSizeRow(batch_size=now, step_s=figures.step_s, data_s=figures.data_s, model=diagnosis.model))
    return [f"batch_size={_of_size(row)}." for row in rows]


def _of_size(row: BatchSizeRow) -> str:
    if row.step_s is None or row.data_s is None:
        return f"{row.batch_size} was not measured: {plain(row.reason or 'too few steps')}"
    work_s = row.step_s - row.data_s
    text = f"{row.batch_size}: {seconds(work_s)} a step without waiting, {row.batch_size / work_s:,.0f} samples/s"
    if row.model is None:
        return text
    bound = _bound(_shares(row.model, work_s))
    return f"{text}, {bound}; {_used(row.model, work_s):.1%} of the peak, {row.model.intensity:.3g} operations per byte"


def _shares(cost: ModelCost, step_s: float, data_s: float | None = None) -> dict[str, float]:
    """Return the least time of what may bound a step, as shares of it."""
    shares = {what: least_s / step_s for what, least_s in cost.limits_s.items()}
    return shares if data_s is None else shares | {"waiting for data": data_s / step_s}


def _bound(shares: dict[str, float]) -> str:
    most = max(shares, key=lambda what: shares[what])
    return f"bound by {most}" if shares[most] >= _BOUND else "bound by none of these, but by Python or other waiting"


def _used(cost: ModelCost, step_s: float) -> float:
    return cost.flops / (cost.peak_flops_per_s * step_s)


def _flops(number: float) -> str:
    value, unit = next((number / scale, unit) for scale, unit in _FLOPS if number >= scale or scale == 1)
    return f"{value:.3g} {unit}"
