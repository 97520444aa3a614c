"""What packing knows of documents, or of samples of another kind: their lengths, and which of their tokens carry loss."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.order.draws import Ints
from datapipe.packing.settings import PackSettings


class LossCounts(Protocol):
    """The tokens of documents that carry loss."""

    def covered(self, documents: Ints, begin: Ints, end: Ints) -> Ints:
        """Return (m,) how many of the tokens from `begin` to `end` of each document carry loss."""


class DocumentShard(Protocol):
    """The documents of one file. The arrays may be mapped."""

    @property
    def num_tokens(self) -> Ints:
        """The (n,) tokens of each document."""

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """The (n,) work that documents are besides their tokens, of which packs should have like sums; None: there is none."""

    @property
    def loss(self) -> LossCounts | None:
        """None: all tokens carry loss."""


class Documents(Protocol):
    """Documents of known lengths, shard by shard. Thread-safe."""

    @property
    def where(self) -> str:
        """Where they lie, for people."""

    @property
    def field(self) -> str:
        """What they are called there, for people."""

    @property
    def can_be_cut(self) -> bool:
        """Whether a part of a document can be in a pack."""

    @property
    def fingerprint(self) -> str:
        """A name for the documents: a plan is of these only."""

    @property
    def starts(self) -> Ints:
        """The (shards + 1,) documents before each shard, and in all."""

    @property
    def num_shards(self) -> int: ...

    def shard(self, number: int) -> DocumentShard:
        """Return the documents of a shard."""

    def locate(self, documents: Ints) -> tuple[Ints, Ints]:
        """Return the shard of each document, and its number there."""

    def num_tokens(self, documents: Ints) -> Ints:
        """Return (m,) the number of tokens of each document."""

    def describe(self, document: int) -> object:
        """Return a description of one document, for messages."""


Field = tuple[Documents, PackSettings]  # one of those whose documents are packed together


def refuse_long(index: Documents, number: int, first: int, total: Ints, settings: PackSettings, *, can_split: bool) -> None:
    """Raise OptionError for a document that is too long, if that is an error."""
    if settings.long != "error" or not (total > settings.length).any():
        return
    where = int(index.starts[number]) + first + int(np.argmax(total > settings.length))
    choices, what = ("'split', 'truncate' or 'drop'", "has") if can_split else ("'truncate' or 'drop'", f"its {index.field} has")
    if not index.can_be_cut:
        choices, what = "'drop'", "has"
    raise OptionError(
        f"{index.describe(where)}: {what} {counted(int(total.max()), 'token')}, and length is {settings.length}; "
        f"pass long={choices}, or a greater length"
    )


def kept_documents(total: Ints, settings: PackSettings) -> NDArray[np.bool_]:
    """Return (n,) which documents of so many tokens are in packs, where long ones are not split."""
    return (total > 0) & ((total <= settings.length) | (settings.long != "drop"))
