"""The lines of `explain` about tokens: how documents are packed, ordered and delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datapipe.core.printable import counted
from datapipe.kernel.explanation import TRANSFER, device_line, threads_text
from datapipe.kernel.passes import Passes
from datapipe.order.plan import Plan

if TYPE_CHECKING:
    from datapipe.kinds.tokens.kind import TokenKind

_PACKING = {
    "best-fit": "documents are kept whole and fitted into rows, in windows of 65,536 documents",
    "concat": "documents one after the other, cut every row; the first cut is drawn each epoch",
    "pad": "a document a row, padded to the longest of its batch",
}
_LONG = {
    "split": "longer ones are split", "truncate": "longer ones are cut off", "drop": "longer ones are left out",
    "error": "longer ones are an error",
}  # fmt: skip


def explain(kind: TokenKind, passes: Passes) -> list[str]:
    """Return the lines about the passes over such data."""
    index, settings, options, plan = kind.index, kind.settings, passes.options, passes.source()
    assert isinstance(plan, Plan)
    packs, is_grouped = settings.packs[0], settings.has_documents
    packing, lengths = _PACKING[packs.packing], " and ".join(f"{one.length:,}" for one in settings.packs)
    if is_grouped:
        packing = f"documents of like lengths, as many as fill {packs.max_tokens:,} tokens, padding included"
    unit = "batch" if is_grouped else "row"
    long = "" if packs.packing == "concat" else f"; {_LONG[packs.long]}"
    order = "in stored order" if not options.shuffle else f"shuffled in full: any {unit} is as near as any other"
    if options.shuffle and packs.packing == "pad" and not is_grouped:
        order = "shuffled, steps of like lengths"
    if settings.balance:
        order += f"; dealt so that ranks cost alike, over {counted(settings.accumulate, 'micro-batch')}"
    lines = [
        f"data      {counted(len(index), 'document')} in {counted(index.num_shards, 'shard')}, {index.facts.dtype} ids",
        f"rows      {counted(kind.num_samples, unit)} of {'up to ' * is_grouped}{lengths} tokens: {packing}{long}",
        f"order     {order}",
        f"seed      {passes.progress.seed.describe()}",
        f"batch     {', '.join(settings.fields)}; labels are {packs.labels}, layout {settings.layout}",
        device_line(kind.device),
        f"backend   tokens read and put together on {threads_text(options)}",
    ]
    if kind.device.type != "cpu":
        lines.append(TRANSFER)
    ranks = plan.rank.world_size
    lines.append(
        f"steps     {plan.num_steps} of {counted(plan.batch_size, unit)} on each of {ranks} ranks, tail={options.tail.value}"
    )
    return lines
