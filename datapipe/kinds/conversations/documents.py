"""Conversations as documents of known lengths: how many tokens each has once its images are tokens too.

That is arithmetic on the sizes of images, which the index has. Nothing is decoded for it.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipe.core.ranges import ranges
from datapipe.errors import OptionError
from datapipe.index.document_images import DocumentImages
from datapipe.index.tokens import TokenIndex, TokenShard, num_tokens_of
from datapipe.order.draws import Ints
from datapipe.packing.documents import Documents
from datapipe.packing.packs import Segments
from datapipe.processors.processor import Processor

_SIDE = 256  # pixels of an image that is asked for its tokens
# Tokens of a conversation, and units of an image, at which attention costs as much as all else: 6 times a model's width.
_EVEN_AT, _VISION_EVEN_AT = 6 * 2048, 6 * 1280


class Images(NamedTuple):
    """The images of some conversations, in their order."""

    segment: Ints  # (k,) which of the conversations each is of
    place: Ints  # (k,) of its token in the conversation as it is stored
    nbytes: Ints  # (k,)
    orientation: Ints  # (k,)
    grid: Ints  # (k, 2)
    num_tokens: Ints  # (k,)
    num_units: Ints  # (k,)
    size: Ints  # (k, 2) width and height in pixels

    def of(self, low: int, high: int) -> Images:
        """Return those of the conversations from `low` on, to the one before `high`, whose numbers then count from 0."""
        first, end = np.searchsorted(self.segment, [low, high]).tolist()
        return Images(self.segment[first:end] - low, *(column[first:end] for column in self[1:]))

    @property
    def first_units(self) -> Ints:
        """The (k + 1,) units of pixels before each, and in all."""
        return np.concatenate([[0], np.cumsum(self.num_units)])

    def units_before(self, num: int) -> Ints:
        """Return (num + 1,) the units of pixels before each of `num` conversations, and in all."""
        return self.first_units[np.searchsorted(self.segment, np.arange(num + 1))]


@dataclass(frozen=True, eq=False)
class ConversationShard:
    """The conversations of one file, with the tokens and the units of pixels that their images become. See `DocumentShard`."""

    stored: TokenShard
    images: DocumentImages
    grids: NDArray[np.int32]  # (images, 2)
    image_tokens: NDArray[np.int32]  # (images,)
    image_units: NDArray[np.int32]  # (images,) 0 of one that the model refuses

    @classmethod
    def of(cls, stored: TokenShard, processor: Processor) -> ConversationShard:
        """Return the conversations of a shard, as a processor takes their images."""
        images = stored.images
        assert images is not None
        grids = processor.grids(*(side.astype(np.int64) for side in images.sizes))
        is_good = grids[:, 0] >= 0
        known = np.where(is_good[:, None], grids, 0)
        tokens, units = (np.where(is_good, num, 0) for num in (processor.num_tokens(known), processor.num_units(known)))
        return cls(stored, images, grids.astype(np.int32), tokens.astype(np.int32), units.astype(np.int32))

    @functools.cached_property
    def num_tokens(self) -> Ints:
        found: Ints = self.stored.num_tokens + _sums(self.images.ends, self.image_tokens.astype(np.int64) - 1)
        return found

    @functools.cached_property
    def weights(self) -> NDArray[np.float64]:
        units = self.image_units.astype(np.float64)
        return _sums(self.images.ends, units + units**2 / _VISION_EVEN_AT)

    @property
    def loss(self) -> ConversationShard:
        return self

    @functools.cached_property
    def _with_loss(self) -> Ints:
        """The (n,) images of each conversation whose one token carries loss as it is stored, but for the first of all tokens."""
        documents, place = self.images.documents(), self.images.places.astype(np.int64)
        is_in = place > 0
        if self.stored.loss is not None:
            is_in &= self.stored.loss.covered(documents, place, place + 1) > 0
        return np.bincount(documents[is_in], minlength=len(self.stored)).astype(np.int64)

    def covered(self, documents: Ints, begin: Ints, end: Ints) -> Ints:
        """Return (m,) how many tokens of these conversations carry loss, but for the first of each, and for those of images."""
        stored, ones = self.stored.num_tokens[documents], np.ones(len(documents), np.int64)
        loss = self.stored.loss
        found = stored - 1 if loss is None else loss.covered(documents, ones, stored)
        return found - self._with_loss[documents]


class Conversations(Documents):
    """The conversations of a set, as a processor takes their images. Thread-safe. See `Documents`."""

    field = "conversation"
    can_be_cut = False

    def __init__(self, index: TokenIndex, processor: Processor) -> None:
        """Raises OptionError for a set without images, and for one that was converted for another model's images."""
        if index.facts.image is None:
            raise OptionError(f"{index.where}: holds texts alone; read it with datapipe.Tokens")
        self.index, self.processor = index, processor
        self.digest = hashlib.sha256(processor.name.encode()).hexdigest()[:12]  # of the processor
        self._shards: dict[int, ConversationShard] = {}
        (grid,) = processor.grids(*(np.array([_SIDE]),) * 2).tolist()
        if index.facts.image not in processor.tokens(*grid):
            raise OptionError(
                f"{index.where}: was converted for a model whose images are token {index.facts.image}, which is none of this"
                " processor's; pass the folder of that model, or convert again with the tokenizer of this one"
            )

    @property
    def where(self) -> str:
        return self.index.where

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.index.fingerprint} {self.digest}".encode()).hexdigest()[:16]

    @property
    def starts(self) -> Ints:
        return self.index.starts

    @property
    def num_shards(self) -> int:
        return self.index.num_shards

    def shard(self, number: int) -> ConversationShard:
        found = self._shards.get(number)
        if found is None:  # two threads may make it at once, which does no harm
            found = self._shards[number] = ConversationShard.of(self.index.shard(number), self.processor)
        return found

    def locate(self, documents: Ints) -> tuple[Ints, Ints]:
        return self.index.locate(documents)

    def num_tokens(self, documents: Ints) -> Ints:
        return num_tokens_of(documents, self)

    def costs(self, segments: Segments, num_packs: int) -> NDArray[np.float64]:
        """Return (2, num_packs) the work of packs for a model's language and for its vision tower, each to a scale of its own.

        It is that of transformers of usual widths: linear in tokens, or in units of pixels, and quadratic where these attend to
        each other, as those of a conversation do, and those of an image.
        """
        tokens = segments.num + segments.num.astype(np.float64) ** 2 / _EVEN_AT
        units = np.empty(len(segments.num))
        for number, here in segments.by_shard():
            units[here] = self.shard(number).weights[segments.document[here]]
        return np.stack([np.bincount(segments.row, one, num_packs) for one in (tokens, units)])

    def describe(self, document: int) -> object:
        return self.index.describe(document)

    def images_of(self, segments: Segments) -> Images:
        """Return the images of these conversations, in their order."""
        parts: list[tuple[NDArray[Any], ...]] = []
        for number, here in segments.by_shard():
            shard = self.shard(number)
            ends, documents = shard.images.ends, segments.document[here]
            first, num = ends[documents], ends[documents + 1] - ends[documents]
            which = ranges(first, num)
            place, nbytes, width, height, orientation = shard.images.rows[which].T
            size = np.stack([width, height], axis=1)
            of_images = (
                place,
                nbytes,
                orientation,
                shard.grids[which],
                shard.image_tokens[which],
                shard.image_units[which],
                size,
            )
            parts.append((np.repeat(here, num), *of_images))
        joined = [np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True)] if parts else []
        if not joined:
            empty, pairs = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
            return Images(empty, empty, empty, empty, pairs, empty, empty, pairs)
        order = np.argsort(joined[0], kind="stable")
        return Images(*(column[order] for column in joined))


def _sums(ends: Ints, values: NDArray[Any]) -> NDArray[Any]:
    """Return (n,) the sum of what belongs to each. `ends`: (n + 1,) values before each, and in all."""
    before = np.concatenate([np.zeros(1, values.dtype), np.cumsum(values)])
    return np.asarray(before[ends[1:]] - before[ends[:-1]])
