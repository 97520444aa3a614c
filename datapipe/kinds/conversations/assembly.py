"""Put the rows of a batch of conversations together: ids with those of images, labels, positions in one or three axes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.ranges import ranges
from datapipe.index.tokens import TokenShard
from datapipe.kinds.conversations.documents import Conversations, Images
from datapipe.kinds.conversations.settings import ConversationSettings
from datapipe.order.draws import Ints
from datapipe.packing.packs import Segments
from datapipe.packing.row_layout import RowLayout
from datapipe.packing.settings import IGNORED


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The spans of tokens that images take in a batch's rows laid end to end, and by how much these shift other tokens."""

    images: Images
    before: Ints  # (k + 1,) tokens that images before each have more than the one that stands for them, over all conversations
    begin: Ints  # (k,) the first token of each

    @classmethod
    def of(cls, images: Images, begin: Ints) -> Spans:
        """Return the spans. `begin`: (s,) where each conversation begins."""
        before = np.concatenate([[0], np.cumsum(images.num_tokens - 1)])
        first = np.searchsorted(images.segment, images.segment)
        return cls(images, before, begin[images.segment] + images.place + before[:-1] - before[first])

    @property
    def end(self) -> Ints:
        """The (k,) tokens after the last of each."""
        return self.begin + self.images.num_tokens

    def moved(self, segments: Ints, places: Ints) -> Ints:
        """Return (m,) where tokens of conversations as they are stored are once those of images are in, from their begin on."""
        most = np.int64(1) << 32
        keys = self.images.segment * most + self.images.place
        at = np.searchsorted(keys, segments * most + places)
        return places + self.before[at] - self.before[np.searchsorted(keys, segments * most)]

    def tokens(self) -> tuple[Ints, Ints]:
        """Return (t,) the image of each token of images, and (t,) its number in the image."""
        num = self.images.num_tokens
        return np.repeat(np.arange(len(num)), num), ranges(0, num)


def expanded(stored: NDArray[Any], images: Images, ids_of: list[Ints]) -> Ints:
    """Return the ids of one conversation, in which those of each image take the place of the one that stands for it."""
    parts: list[Ints] = []
    before = 0
    for place, ids in zip(images.place.tolist(), ids_of, strict=True):
        parts += [stored[before:place].astype(np.int64), ids]
        before = place + 1
    return np.concatenate([*parts, stored[before:].astype(np.int64)])


def assembled(
    documents: Conversations,
    settings: ConversationSettings,
    wanted: Collection[str],
    ids: NDArray[np.int64],
    segments: Segments,
    begin: Ints,
    images: Images,
    ignored: NDArray[np.bool_] | None,
) -> dict[str, Any]:
    """Return what a batch has of its rows of tokens, by name.

    `wanted`: the names. `ids`: (b, width). `segments`, `begin`: (s,) conversations, and where each begins in the rows laid end to
    end. `ignored`: (b,) rows without labels.
    """
    num_rows, width = ids.shape
    shape = (1, num_rows * width) if settings.layout == "flat" else (num_rows, width)
    layout = RowLayout.of(begin, segments.num, num_rows=num_rows, width=width)
    spans, processor = Spans.of(images, begin), documents.processor
    made: dict[str, NDArray[Any]] = {"input_ids": ids}
    if "labels" in wanted:
        labels = _labels(documents, ids.reshape(-1), segments, begin, spans)
        if settings.packs.labels == "shifted":
            labels = np.append(labels[1:], IGNORED)  # the first token of a conversation is no label
        if ignored is not None:
            labels.reshape(num_rows, width)[ignored] = IGNORED
        made["labels"] = labels
    if "document_ids" in wanted:
        made["document_ids"] = layout.document_ids(over_all=settings.layout == "flat")
    if "attention_mask" in wanted:
        made["attention_mask"] = layout.attention_mask()
    if processor.token_types in wanted:
        types = np.zeros(num_rows * width, np.int64)
        image, number = spans.tokens()
        types[spans.begin[image] + number] = 1
        made[processor.token_types] = types
    batched: dict[str, Any] = {name: torch.from_numpy(value.reshape(shape)) for name, value in made.items() if name in wanted}
    if "position_ids" in wanted:
        found = layout.position_ids()
        if processor.rope == "grid":
            found = np.concatenate([found[None], _grid_positions(found, spans, processor.token_grids(images.grid))])
            shape = (4, *shape)
        batched["position_ids"] = torch.from_numpy(found.reshape(shape))
    if "cu_seqlens" in wanted:
        batched["cu_seqlens"] = torch.from_numpy(layout.boundaries(settings.num_seqlens))
    if "max_seqlen" in wanted:
        batched["max_seqlen"] = int(layout.lengths.max(initial=0))
    return batched


def _labels(documents: Conversations, ids: Ints, segments: Segments, begin: Ints, spans: Spans) -> Ints:
    """Return (b * width,) the labels: ids that carry loss, those of images and the first of each conversation not among them."""
    edges = np.zeros(len(ids) + 1, np.int32)
    for number, here in segments.by_shard():
        segment, first, end = _runs(documents.shard(number).stored, segments.document[here])
        segment = here[segment]
        np.add.at(edges, begin[segment] + spans.moved(segment, first), 1)
        np.add.at(edges, begin[segment] + spans.moved(segment, end), -1)
    carries = np.cumsum(edges[:-1]) > 0
    image, number_in = spans.tokens()
    carries[spans.begin[image] + number_in] = False
    carries[begin] = False
    return np.where(carries, ids, IGNORED)


def _runs(shard: TokenShard, documents: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the runs of tokens with loss of these documents: which of them each is of, its first token, the one after."""
    if shard.loss is None:
        return np.arange(len(documents)), np.zeros(len(documents), np.int64), shard.num_tokens[documents]
    which, runs = shard.loss.of_documents(documents)
    return which, *runs.T.astype(np.int64)


def _grid_positions(positions: Ints, spans: Spans, grids: Ints) -> Ints:
    """Return (3, n) positions in time, down and across: tokens of images by row and column, what follows after the longer side.

    `positions`: (n,) the number of each token in its conversation. `grids`: (k, 2) rows and columns of tokens of each image.
    (transformers, `Qwen2VLModel.get_rope_index`)
    """
    saved = np.zeros(len(positions) + 1, np.int64)  # by each image, from its end on
    np.add.at(saved, spans.end, spans.images.num_tokens - grids.max(axis=1, initial=0))
    saved = np.cumsum(saved[:-1])
    counted = positions - (saved - saved[np.arange(len(positions)) - positions])  # from the begin of each conversation on
    found = np.repeat(counted[None], 3, axis=0)
    image, number = spans.tokens()
    at = spans.begin[image] + number
    start = counted[spans.begin[image]]
    found[:, at] = start
    found[1, at] += number // grids[image, 1]
    found[2, at] += number % grids[image, 1]
    return found
