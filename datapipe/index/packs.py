"""Packs: rows of `length` tokens, made of documents or of parts of long ones. A pack is what a loader of tokens counts.

How documents become packs is arithmetic over their lengths (`StreamPacks`, `DocumentPacks`), or kept in a file (`pack_plan`).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.tokens import TokenFacts
from datapipe.core.checks import whole_number
from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.index.entries import by_number
from datapipe.index.tokens import LossRuns, TokenIndex
from datapipe.order.draws import key64

Ints = NDArray[np.int64]
Packing = Literal["best-fit", "concat", "pad"]
Long = Literal["split", "truncate", "drop", "error"]
Labels = Literal["same", "shifted", "whole"]

WINDOW = 1 << 16  # documents, whose numbers in a window take 16 bits
MAX_LENGTH = 1 << 24  # tokens of a pack: some plans need memory for each number up to that
_VERSION = 3
_OFFSET = 0x6F6666  # purpose of a key


@dataclass(frozen=True, slots=True)
class PackSettings:
    """How documents become packs."""

    length: int  # tokens of a pack
    packing: Packing = "best-fit"
    long: Long = "split"  # what becomes of documents of more tokens
    max_documents: int | None = None  # of a pack
    labels: Labels = "same"  # which decides how many tokens of a pack carry loss
    max_tokens: int | None = None  # "pad": of a pack of several documents, each padded to the longest; None: a pack is a document

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", whole_number(self.length, "length", least=2, most=MAX_LENGTH))
        for name, choices in (("packing", Packing), ("long", Long), ("labels", Labels)):
            if getattr(self, name) not in get_args(choices):
                raise OptionError(f"{name} is {getattr(self, name)!r:.40}; choose one of {', '.join(get_args(choices))}")
        if self.max_documents is not None:
            object.__setattr__(self, "max_documents", whole_number(self.max_documents, "max_documents", least=1))
        if self.max_tokens is not None:
            most = MAX_LENGTH * 64
            object.__setattr__(self, "max_tokens", whole_number(self.max_tokens, "max_tokens", least=self.length, most=most))
            if self.packing != "pad":
                raise OptionError(f"max_tokens is for packing='pad'; rows of {self.packing!r} have `length` tokens each")
            if self.long == "split":
                raise OptionError("long='split' with max_tokens: batches have whole documents; pass long='truncate' or 'drop'")

    @property
    def name(self) -> str:
        """A name for the plan by these settings."""
        digest = hashlib.sha256(json.dumps([_VERSION, WINDOW, asdict(self)]).encode()).hexdigest()
        return f"{self.packing}-{self.length}-{digest[:12]}"


def default_packs(facts: TokenFacts, length: int) -> PackSettings:
    """Return the settings for a corpus of which no more is said. Chats that are too long are an error, not split."""
    return PackSettings(length, long="error" if facts.template_sha256 else "split")


class Segments(NamedTuple):
    """Parts of documents that make up packs, pack by pack."""

    row: Ints  # (s,) which of the packs asked for
    shard: Ints  # (s,)
    document: Ints  # (s,) in its shard
    first: Ints  # (s,) token of the document
    num: Ints  # (s,) tokens
    total: Ints  # (s,) tokens of the whole document

    def places(self) -> Ints:
        """Return (s,) the place in its pack at which each part begins."""
        before = np.cumsum(self.num) - self.num
        return before - before[np.searchsorted(self.row, self.row)]

    def by_shard(self) -> list[tuple[int, Ints]]:
        """Return the shards in which parts lie, each with its parts."""
        return by_number(self.shard)


class Packs(Protocol):
    """The packs of a corpus. Thread-safe."""

    @property
    def kind(self) -> str:
        """The name in saved states."""

    def __len__(self) -> int: ...

    def segments(self, packs: Ints, *, seed: int | None, epoch: int) -> Segments:
        """Return what these packs are made of. `seed`: None if nothing is drawn."""

    def loss(self, packs: Ints, *, seed: int | None, epoch: int) -> Ints:
        """Return (m,) how many labels of each pack carry loss."""

    def cost(self, packs: Ints, *, seed: int | None, epoch: int) -> NDArray[np.float64]:
        """Return (m,) the sum of squares of the lengths of each pack's parts, by which the cost of attention grows."""


def loss_of(index: TokenIndex, segments: Segments, labels: Labels) -> Ints:
    """Return (s,) how many labels of each part carry loss.

    A token that follows another one of its part is a label; if labels are shifted, so is the one after the part, where the
    document goes on. If they are whole, each token is one.
    """
    goes_on = (segments.first + segments.num < segments.total) if labels == "shifted" else np.zeros(len(segments.num), np.bool_)
    begins = int(labels != "whole")  # the first token of a part that is a label
    found = segments.num - begins + goes_on
    for number, here in segments.by_shard():
        shard = index.shard(number)
        if shard.loss is None:
            continue
        begin = segments.first[here] + begins
        found[here] = _covered(shard.loss, segments.document[here], begin, begin + found[here])
    return found


def losses_of(index: TokenIndex, segments: Segments, labels: Labels, num_packs: int) -> Ints:
    """Return (num_packs,) how many labels of each pack carry loss."""
    losses = loss_of(index, segments, labels)
    return np.bincount(segments.row, weights=losses, minlength=num_packs).astype(np.int64)


def _covered(loss: LossRuns, documents: Ints, begin: Ints, end: Ints) -> Ints:
    """Return (m,) how many of the tokens from `begin` to `end` of each document lie in its runs."""
    first, num = loss.ends[documents], loss.ends[documents + 1] - loss.ends[documents]
    which = np.repeat(np.arange(len(documents)), num)
    runs = loss.runs[np.repeat(first - (np.cumsum(num) - num), num) + np.arange(len(which))]
    covered = np.maximum(0, np.minimum(runs[:, 1], end[which]) - np.maximum(runs[:, 0], begin[which]))
    return np.bincount(which, weights=covered, minlength=len(documents)).astype(np.int64)


def refuse_long(index: TokenIndex, number: int, first: int, total: Ints, settings: PackSettings, *, can_split: bool) -> None:
    """Raise OptionError for a document that is too long, if that is an error."""
    if settings.long != "error" or not (total > settings.length).any():
        return
    where = int(index.starts[number]) + first + int(np.argmax(total > settings.length))
    choices, what = ("'split', 'truncate' or 'drop'", "has") if can_split else ("'truncate' or 'drop'", f"its {index.field} has")
    raise OptionError(
        f"{index.describe(where)}: {what} {counted(int(total.max()), 'token')}, and length is {settings.length}; "
        f"pass long={choices}, or a greater length"
    )


class StreamPacks:
    """The corpus as one stream of tokens, cut every `length` tokens: "concat"; see `Packs`.

    The stream is a ring. Where an epoch begins in it is drawn, so that documents are cut elsewhere each time; as many tokens as
    make no full pack are left out.
    """

    def __init__(self, index: TokenIndex, settings: PackSettings) -> None:
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
        documents = np.repeat(first - (np.cumsum(num) - num), num) + np.arange(len(part))
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
            shard = self.index.shard(number)
            places = shard.offset[0] + (tokens[here] - self._starts[number]) * shard.dtype.itemsize
            found[here] = self.index.starts[number] + np.searchsorted(shard.offset, places, side="right") - 1
        return found

    def _extent_of(self, shards: Ints, within: Ints) -> tuple[Ints, Ints]:
        """Return where in the stream each document begins, and its number of tokens."""
        starts, total = np.empty(len(shards), np.int64), np.empty(len(shards), np.int64)
        for number, here in by_number(shards):
            shard = self.index.shard(number)
            documents = within[here]
            starts[here] = self._starts[number] + (shard.offset[documents] - shard.offset[0]) // shard.dtype.itemsize
            total[here] = shard.num_tokens[documents]
        return starts, total


class DocumentPacks:
    """A pack for each document, or for each part of a long one: "pad"; see `Packs`."""

    def __init__(self, index: TokenIndex, settings: PackSettings, *, ends: Ints | None = None) -> None:
        """`ends`: (n,) packs before the end of each document; None: of all documents.

        Raises OptionError for a document that is too long, if that is an error.
        """
        self.index, self.settings = index, settings
        self._ends: Ints = pack_ends([(index, settings)]) if ends is None else ends

    @property
    def kind(self) -> str:
        return f"documents {self.settings.name}"

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def segments(self, packs: Ints, *, seed: int | None, epoch: int) -> Segments:
        documents = np.searchsorted(self._ends, packs, side="right")
        parts = packs - np.where(documents > 0, self._ends[documents - 1], 0)
        shard, within = self.index.locate(documents)
        total = self.index.num_tokens(documents)
        first = parts * self.settings.length
        return Segments(np.arange(len(packs)), shard, within, first, np.minimum(total - first, self.settings.length), total)

    def loss(self, packs: Ints, *, seed: int | None, epoch: int) -> Ints:
        return loss_of(self.index, self.segments(packs, seed=seed, epoch=epoch), self.settings.labels)

    def cost(self, packs: Ints, *, seed: int | None, epoch: int) -> NDArray[np.float64]:
        return self.segments(packs, seed=seed, epoch=epoch).num.astype(np.float64) ** 2

    def lengths(self, packs: Ints) -> Ints:
        """Return (m,) the number of tokens of each pack."""
        return self.segments(packs, seed=None, epoch=0).num


def pack_ends(fields: Sequence[tuple[TokenIndex, PackSettings]]) -> Ints:
    """Return (n,) the packs before the end of each document, where documents of several fields share a pack.

    Raises OptionError for a document that is too long, if that is an error.
    """
    counts = []
    for number in range(fields[0][0].num_shards):
        of_fields = (_num_parts(index, settings, number, can_split=len(fields) == 1) for index, settings in fields)
        counts.append(functools.reduce(np.minimum, of_fields))
    return np.cumsum(np.concatenate(counts)) if counts else np.zeros(0, np.int64)


def _num_parts(index: TokenIndex, settings: PackSettings, number: int, *, can_split: bool) -> Ints:
    """Return how many packs each document of a shard makes."""
    total = index.shard(number).num_tokens
    refuse_long(index, number, 0, total, settings, can_split=can_split)
    if settings.long == "split":
        return -(-total // settings.length)
    return kept_documents(total, settings).astype(np.int64)


def kept_documents(total: Ints, settings: PackSettings) -> NDArray[np.bool_]:
    """Return (n,) which documents of so many tokens are in packs, where long ones are not split."""
    return (total > 0) & ((total <= settings.length) | (settings.long != "drop"))
