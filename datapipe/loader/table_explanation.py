"""Describe what a loader of tables does where, and why, for people."""

from __future__ import annotations

import torch

from datapipe.core.printable import counted
from datapipe.loader.tables.facade import TableLoader
from datapipe.loader.tables.passes import sharing_problem
from datapipe.order.row_order import PLACE_NBYTES, FirstWindowed, ShuffledRows, WindowedRows

_ARROW = "backend   tables_arrow: row groups decoded by Arrow, packed row-major and gathered on "
_CUDF = "backend   tables_cudf: row groups decoded by cuDF, packed row-major and gathered on the GPU, by "


def table_explanation(loader: TableLoader) -> list[str]:
    """Return the lines that `explain` prints of a `TableLoader`."""
    index, layout, options, plan = loader.dataset.index, loader.layout, loader.options, loader.plan()
    on_gpu = loader.device.type == "cuda"
    about = index.describe()
    least, median, most = about["rows per group"]
    lines = [
        f"data      {len(index)} rows in {counted(about['files'], 'file')}, {about['row groups']} row groups of "
        f"{least} to {most} rows (median {median})",
        *(f"          {line}" for line in index.widened),
        f"order     {_order(loader)}",
        f"seed      {loader.describe_seed()}",
        *(_matrix(matrix.name, matrix.width, matrix.dtype, is_vector=matrix.is_vector) for matrix in layout.matrices),
        f"device    {loader.device}" + ("" if on_gpu else f" (torch is built for CUDA: {torch.version.cuda or 'no'})"),
        _backend(loader) + (f"{options.num_workers} threads" if options.num_workers else "the caller's thread"),
    ]
    if on_gpu:
        lines.insert(-1, f"choice    {loader.choice().backend}: {loader.choice().reason}")
    if on_gpu and not loader.choice().uses_cudf:
        lines.append("transfer  pinned memory, a copy stream of its own; your stream waits for events, the host does not")
    ranks = plan.rank.world_size
    lines.append(f"steps     {plan.num_steps} of {plan.batch_size} rows on each of {ranks} ranks, tail={options.tail.value}")
    return lines


def _backend(loader: TableLoader) -> str:
    if loader.dataset.index.is_row_major:
        return "backend   rows mapped and gathered on "
    return _CUDF if loader.choice().uses_cudf else _ARROW


def _matrix(name: str, width: int, dtype: str, *, is_vector: bool) -> str:
    shape = "(b,)" if is_vector else f"(b, {width})"
    return f"matrix    {name}: {shape} {dtype}"


def _order(loader: TableLoader) -> str:
    order = loader.plan().order
    later = ""
    if isinstance(order, FirstWindowed):
        order, later = order.first, "; later epochs in full, from what the first one keeps"
    if isinstance(order, ShuffledRows):
        return "shuffled in full: any row is as near as any other"
    if not isinstance(order, WindowedRows):
        return "in stored order"
    row_nbytes = loader.layout.row_nbytes + PLACE_NBYTES
    window = order.max_window * row_nbytes
    text = (
        f"shuffled in windows of {counted(order.groups_per_window, 'row group')} in each of "
        f"{counted(order.num_lanes, 'lane')}: {window / 1e6:.3g} MB a window, two in each lane"
    )
    return text + later + (f"; {problem}" if (problem := sharing_problem(loader.plan(), loader.dataset.index)) else "")
