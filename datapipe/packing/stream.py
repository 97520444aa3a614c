"""The documents of a corpus as one stream of tokens, cut into packs."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from datapipe.core.ranges import ranges
from datapipe.errors import OptionError
from datapipe.index.entries import by_number
from datapipe.order.draws import Ints, key64
from datapipe.packing.documents import Documents, DocumentShard
from datapipe.packing.losses import losses_of
from datapipe.packing.packs import Segments
from datapipe.packing.settings import PackSettings

_OFFSET = 0x6F6666  # purpose of a key


class StreamShard(DocumentShard, Protocol):
    """The documents of one file, one after the other."""

    @property
    def has_gaps(self) -> bool:
        """True if something else lies between documents."""

    def begins(self, documents: Ints) -> Ints:
        """Return (m,) the token of the file's stream at which each of these documents begins. There are no gaps."""

    def documents_at(self, tokens: Ints) -> Ints:
        """Return (m,) the document in which each of these tokens of the file's stream lies. There are no gaps."""


class StreamDocuments(Documents, Protocol):
    """Documents that make up a stream, shard by shard. Thread-safe."""

    def shard(self, number: int) -> StreamShard:
        """Return the documents of a shard."""


class StreamPacks:
    """The corpus as one stream of tokens, cut every `length` tokens: "concat"; see `Packs`.

    The stream is a ring. Where an epoch begins in it is drawn, so that documents are cut elsewhere each time; as many tokens as
    make no full pack are left out.
    """

    def __init__(self, index: StreamDocuments, settings: PackSettings) -> None:
        """Raises OptionError for a set with several fields, whose documents are no stream."""
        self.index, self.settings = index, settings
        if any(index.shard(number).has_gaps for number in range(index.num_shards)):
            raise OptionError(f"packing='concat': {index.where} has several fields, so its documents are no stream; pack them")
        totals = [int(index.shard(number).num_tokens.sum()) for number in range(index.num_shards)]
        self._starts: Ints = np.cumsum([0, *totals], dtype=np.int64)  # tokens before each shard, and in all

    @property
    def kind(self) -> str:
        return f"stream {self.settings.name}"

    def __len__(self) -> int:
        return int(self._starts[-1]) // self.settings.length

    def segments(self, packs: Ints, *, seed: int | None, epoch: int) -> Segments:
        length, num_tokens = self.settings.length, max(1, int(self._starts[-1]))
        offset = 0 if seed is None else int(key64(seed, epoch, _OFFSET)) % num_tokens
        begin = (offset + packs * length) % num_tokens
        over = np.flatnonzero(begin + length > num_tokens)
        rows = np.concatenate([np.arange(len(packs)), over])
        begins = np.concatenate([begin, np.zeros(len(over), np.int64)])
        ends = np.concatenate([np.minimum(begin + length, num_tokens), begin[over] + length - num_tokens])
        first, last = self._document_at(begins), self._document_at(ends - 1)
        num = last - first + 1
        part = np.repeat(np.arange(len(rows)), num)
        documents = ranges(first, num)
        shard, within = self.index.locate(documents)
        starts, total = self._extent_of(shard, within)
        first_token = np.maximum(begins[part] - starts, 0)
        num_tokens_of = np.minimum(ends[part] - starts, total) - first_token
        kept = np.flatnonzero(num_tokens_of > 0)
        kept = kept[np.argsort(rows[part[kept]], kind="stable")]
        return Segments(rows[part][kept], shard[kept], within[kept], first_token[kept], num_tokens_of[kept], total[kept])

    def loss(self, packs: Ints, *, seed: int | None, epoch: int) -> Ints:
        segments = self.segments(packs, seed=seed, epoch=epoch)
        return losses_of(self.index, segments, self.settings.labels, len(packs))

    def cost(self, packs: Ints, *, seed: int | None, epoch: int) -> NDArray[np.float64]:
        segments = self.segments(packs, seed=seed, epoch=epoch)
        return np.bincount(segments.row, segments.num.astype(np.float64) ** 2, minlength=len(packs)).astype(np.float64)

    def _document_at(self, tokens: Ints) -> Ints:
        """Return the document in which each token of the stream lies."""
        shards = np.searchsorted(self._starts, tokens, side="right") - 1
        found = np.empty(len(tokens), np.int64)
        for number, here in by_number(shards):
            found[here] = self.index.starts[number] + self.index.shard(number).documents_at(tokens[here] - self._starts[number])
        return found

    def _extent_of(self, shards: Ints, within: Ints) -> tuple[Ints, Ints]:
        """Return where in the stream each document begins, and its number of tokens."""
        starts, total = np.empty(len(shards), np.int64), np.empty(len(shards), np.int64)
        for number, here in by_number(shards):
            shard = self.index.shard(number)
            documents = within[here]
            starts[here] = self._starts[number] + shard.begins(documents)
            total[here] = shard.num_tokens[documents]
        return starts, total
