"""The lines of `explain` about tables: how rows are read, packed, shuffled and delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datapipe.core.printable import counted
from datapipe.index.tables import TableIndex
from datapipe.kernel.explanation import TRANSFER, device_line, threads_text
from datapipe.kernel.passes import Passes
from datapipe.order.plan import Plan
from datapipe.order.row_order import PLACE_NBYTES, FirstWindowed, ShuffledRows, WindowedRows

if TYPE_CHECKING:
    from datapipe.kinds.tables.kind import TableKind

_ARROW = "backend   tables_arrow: row groups decoded by Arrow, packed row-major and gathered on "
_MAPPED = "backend   rows mapped and gathered on "
_CUDF = "backend   tables_cudf: row groups decoded by cuDF, packed row-major and gathered on the GPU, by "


def explain(kind: TableKind, passes: Passes) -> list[str]:
    """Return the lines about the passes over such data."""
    index, layout, options, plan, choice = kind.index, kind.layout, passes.options, passes.source(), kind.choice
    assert isinstance(plan, Plan)
    is_copied = kind.device.type != "cpu"
    about = index.describe()
    least, median, most = about["rows per group"]
    lines = [
        f"data      {counted(len(index), 'row')} in {counted(about['files'], 'file')},"
        f" {counted(about['row groups'], 'row group')} of "
        + (counted(most, "row") if least == most else f"{least:,} to {most:,} rows (median {median:,})"),
        *(f"          {line}" for line in index.widened),
        f"order     {_order(plan, index, row_nbytes=layout.row_nbytes + PLACE_NBYTES)}",
        f"seed      {passes.progress.seed.describe()}",
        *(f"matrix    {one.name}: {'(b,)' if one.is_vector else f'(b, {one.width})'} {one.dtype}" for one in layout.matrices),
        device_line(kind.device),
        (_MAPPED if index.is_row_major else _CUDF if choice.uses_cudf else _ARROW) + threads_text(options),
    ]
    if is_copied:
        lines.insert(-1, f"choice    {choice.backend}: {choice.reason}")
    if is_copied and not choice.uses_cudf:
        lines.append(TRANSFER)
    ranks = plan.rank.world_size
    lines.append(f"steps     {plan.num_steps} of {plan.batch_size} rows on each of {ranks} ranks, tail={options.tail.value}")
    return lines


def _order(plan: Plan, index: TableIndex, *, row_nbytes: int) -> str:
    order: Any = plan.order
    later = ""
    if isinstance(order, FirstWindowed):
        order, later = order.first, "; later epochs in full, from what the first one keeps"
    if isinstance(order, ShuffledRows):
        return "shuffled in full: any row is as near as any other"
    if not isinstance(order, WindowedRows):
        return "in stored order"
    window = order.max_window * row_nbytes
    text = (
        f"shuffled in windows of {counted(order.groups_per_window, 'row group')} in each of "
        f"{counted(order.num_lanes, 'lane')}: {window / 1e6:.3g} MB a window, two in each lane"
    )
    return text + later + (f"; {problem}" if (problem := sharing_problem(plan, index)) else "")


def sharing_problem(plan: Plan, index: TableIndex) -> str | None:
    """Return why ranks read the same row groups, with a remedy; None if each reads its own."""
    order, ranks = first_of(plan), plan.rank.world_size
    if not isinstance(order, WindowedRows) or ranks <= order.num_lanes:
        return None
    return (
        f"{index.num_groups} row groups make {order.num_lanes} lane(s) for {ranks} ranks, so that up to "
        f"{-(-ranks // order.num_lanes)} ranks read each row group; write the table with more and smaller row groups, at least "
        "four for each rank"
    )


def first_of(plan: Plan) -> Any:
    """Return the order of a plan's first epoch."""
    return plan.order.first if isinstance(plan.order, FirstWindowed) else plan.order
