"""The lines of `explain` about clips: which frames they have, how they are ordered, decoded and delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datapipe.kernel.explanation import TRANSFER, device_line, steps_line, threads_text
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.passes import Passes
from datapipe.kinds.clips.batches import fields_of, visit_order
from datapipe.kinds.clips.settings import LANES_NBYTES, MOST_ENGINE_THREADS
from datapipe.order.plan import Plan

if TYPE_CHECKING:
    from datapipe.kinds.clips.kind import ClipKind


def explain(kind: ClipKind, passes: Passes) -> list[str]:
    """Return the lines about the passes over such data."""
    index, settings, options, plan = kind.index, kind.settings, passes.options, passes.source()
    assert isinstance(plan, Plan)
    order, each = visit_order(plan), settings.per_visit
    lines = index.explain()
    if not order.is_shuffled:
        lines.append("order     in stored order")
    elif each == 1:
        lines.append("order     shuffled in full, each clip decoded by itself")
    else:
        lines.append(f"order     shuffled: visits of {each} clips that share their decoding, in {order.num_lanes} lanes")
    lines.append(_memory(kind, plan, options))
    if kind.mixture is not None:
        lines.append(f"mix       {kind.mixture.described()}")
    lines += [
        f"seed      {passes.progress.seed.describe()}",
        f"batch     {', '.join(fields_of(settings, index))}; layout {settings.layout}",
        device_line(kind.device),
        f"backend   {_backend(kind, options)}; a frame is decoded once for all clips of a visit",
        *(f"transform {line}" for line in kind.recipe.explain_own()),
    ]
    if kind.device.type != "cpu":
        lines.append(TRANSFER)
    return [*lines, steps_line(plan, "clip")]


def _backend(kind: ClipKind, options: LoaderOptions) -> str:
    """Return what decodes."""
    threads = threads_text(options) + ", each with a process" * kind.can_be_processes
    on_cpu = f"clips_cpu: PyAV on {threads}, one codec context each"
    if kind.backend == "clips_cpu" or kind.device.type == "cpu":
        return on_cpu
    choice = kind.choice
    if not choice.uses_nvdec:
        return f"{on_cpu} ({choice.reason})"
    return (
        f"clips_nvdec ({choice.reason}): the GPU's video engines for up to {MOST_ENGINE_THREADS} of {threads}, "
        "PyAV for the others, and for what engines do not decode alike"
    )


def _memory(kind: ClipKind, plan: Plan, options: LoaderOptions) -> str:
    """Return the line about the memory of decoded clips."""
    held, most = kind.most_held_nbytes(plan, options), visit_order(plan).largest_visit
    line = (
        f"memory    {kind.clip_nbytes / 1e6:,.2f} MB a clip; at most {held / 1e6:,.0f} MB of decoded clips on each of"
        f" {plan.rank.world_size} ranks, besides batches"
    )
    if held > LANES_NBYTES and most > 1:
        line += "; a smaller per_visit, or smaller frames, take less"
    return line
