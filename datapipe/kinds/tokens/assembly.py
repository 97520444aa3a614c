"""Put the rows of a batch of tokens together with their labels, positions and boundaries."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.errors import OptionError
from datapipe.index.tokens import TokenIndex
from datapipe.kinds.tokens.rows import Parts, filled
from datapipe.kinds.tokens.settings import TokenSettings
from datapipe.order.draws import Ints
from datapipe.packing.settings import Labels

IGNORED = -100  # the label of a token that carries no loss, by torch's and Hugging Face's convention


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
    segments = parts.segments
    num_rows, width = ids.shape
    shape = (1, num_rows * width) if settings.layout == "flat" else (num_rows, width)
    num_filled = filled(segments, num_rows)
    padded = np.flatnonzero(num_filled < width)
    padding = slice(len(parts.begin), None)
    starts = np.concatenate([parts.begin, padded * width + num_filled[padded]])
    order = np.argsort(starts, kind="stable")
    ends = np.empty_like(starts)
    ends[order] = np.append(starts[order][1:], num_rows * width)
    made: dict[str, NDArray[Any]] = {"input_ids": ids}
    if "labels" in wanted:
        padding_runs = list(zip(starts[padding].tolist(), ends[padding].tolist(), strict=True))
        made["labels"] = _labels(settings.packs[0].labels, index, ids, parts, padding_runs)
        if ignored is not None:
            made["labels"].reshape(num_rows, width)[ignored] = IGNORED
    lengths = (ends - starts)[order]
    if "position_ids" in wanted:
        made["position_ids"] = _counting(num_rows * width) - np.repeat(starts[order], lengths)
    if "document_ids" in wanted:
        number = np.arange(len(starts)) if settings.layout == "flat" else _number_in_row(starts[order] // width)
        number = number.astype(np.int32)
        if len(padded):
            number[np.argsort(order)[padding]] = -1
        made["document_ids"] = np.repeat(number, lengths)
    if "attention_mask" in wanted:
        is_real = np.ones(len(starts), np.int64)
        is_real[padding] = 0
        made["attention_mask"] = np.repeat(is_real[order], lengths)
    batched: dict[str, Any] = {name: torch.from_numpy(value.reshape(shape)) for name, value in made.items() if name in wanted}
    if "cu_seqlens" in wanted:
        batched["cu_seqlens"] = torch.from_numpy(_boundaries(starts[order], num_rows * width, settings.num_seqlens))
    if "max_seqlen" in wanted:
        batched["max_seqlen"] = int(lengths.max(initial=0))
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


@functools.lru_cache(maxsize=4)
def _counting(num: int) -> Ints:
    counting = np.arange(num)
    counting.setflags(write=False)
    return counting


def _number_in_row(rows: Ints) -> Ints:
    """Return the number of each part among those of its row."""
    return _counting(len(rows)) - np.searchsorted(rows, rows)


def _boundaries(starts: Ints, end: int, num: int | None) -> NDArray[np.int32]:
    """Return int32 where runs begin, and the end. `num`: how many to return, the end repeated; None: as many as there are."""
    found = np.empty(len(starts) + 1, np.int32)
    found[:-1] = starts
    found[-1] = end
    if num is None:
        return found
    if len(found) > num:
        raise OptionError(f"num_seqlens is {num}, and a batch has {len(found)} boundaries; pass more, or max_documents")
    return np.append(found, np.full(num - len(found), end, np.int32))
