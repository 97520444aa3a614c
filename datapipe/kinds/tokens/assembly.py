"""Put the rows of a batch of tokens together with their labels, positions and boundaries."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.index.tokens import TokenIndex
from datapipe.kinds.tokens.rows import Parts
from datapipe.kinds.tokens.settings import TokenSettings
from datapipe.packing.row_layout import RowLayout
from datapipe.packing.settings import IGNORED, Labels


def assembled(
    settings: TokenSettings,
    wanted: Collection[str],
    index: TokenIndex,
    ids: NDArray[np.int64],
    parts: Parts,
    ignored: NDArray[np.bool_] | None,
) -> dict[str, Any]:
    """Return what a batch has of one field's rows, by name: (b, width) ids and their parts, in the layout of the settings.

    `wanted`: the names. `ignored`: (b,) rows without labels.
    """
    num_rows, width = ids.shape
    shape = (1, num_rows * width) if settings.layout == "flat" else (num_rows, width)
    layout = RowLayout.of(parts.begin, parts.segments.num, num_rows=num_rows, width=width)
    made: dict[str, NDArray[Any]] = {"input_ids": ids}
    if "labels" in wanted:
        made["labels"] = _labels(settings.packs[0].labels, index, ids, parts, layout.padding())
        if ignored is not None:
            made["labels"].reshape(num_rows, width)[ignored] = IGNORED
    if "position_ids" in wanted:
        made["position_ids"] = layout.position_ids()
    if "document_ids" in wanted:
        made["document_ids"] = layout.document_ids(over_all=settings.layout == "flat")
    if "attention_mask" in wanted:
        made["attention_mask"] = layout.attention_mask()
    batched: dict[str, Any] = {name: torch.from_numpy(value.reshape(shape)) for name, value in made.items() if name in wanted}
    if "cu_seqlens" in wanted:
        batched["cu_seqlens"] = torch.from_numpy(layout.boundaries(settings.num_seqlens))
    if "max_seqlen" in wanted:
        batched["max_seqlen"] = int(layout.lengths.max(initial=0))
    return batched


def _labels(
    form: Labels, index: TokenIndex, ids: NDArray[np.int64], parts: Parts, padding: list[tuple[int, int]]
) -> NDArray[np.int64]:
    """Return (b * width,) the labels: a token is that of the one before it in its document; the others are `IGNORED`."""
    is_shifted, segments = form == "shifted", parts.segments
    flat = ids.reshape(-1)
    if is_shifted:
        labels = np.empty_like(flat)
        labels[:-1] = flat[1:]
        labels[parts.begin + segments.num - 1] = np.where(parts.following >= 0, parts.following, IGNORED)
    else:
        labels = flat.copy()
        if form == "same":
            labels[parts.begin] = IGNORED
    for start, end in padding:
        labels[start:end] = IGNORED
    for number, mine in segments.by_shard():
        loss = index.shard(number).loss
        if loss is None:
            continue
        for part in mine.tolist():
            place, num, first = int(parts.begin[part]), int(segments.num[part]), int(segments.first[part])
            is_ignored = np.ones(num, np.bool_)
            for one, end in (loss.runs_of(int(segments.document[part])) - first - is_shifted).tolist():
                is_ignored[max(0, one) : max(0, end)] = False
            labels[place : place + num][is_ignored] = IGNORED
    return labels
