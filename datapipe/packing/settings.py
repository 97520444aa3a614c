"""The settings by which documents become packs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from datapipe.codecs.tokens import TokenFacts
from datapipe.core.checks import whole_number
from datapipe.errors import OptionError

Packing = Literal["best-fit", "concat", "pad"]
Long = Literal["split", "truncate", "drop", "error"]
Labels = Literal["same", "shifted", "whole"]

IGNORED = -100  # the label of a token that carries no loss, by torch's and Hugging Face's convention
WINDOW = 1 << 16  # documents, whose numbers in a window take 16 bits
MAX_LENGTH = 1 << 24  # tokens of a pack: some plans need memory for each number up to that
_VERSION = 3


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


def refuse_unfit(packs: Sequence[PackSettings], *, repack: bool) -> None:
    """Raise OptionError for settings of several fields that cannot be packed together, or that ask for what has no effect."""
    first = packs[0]
    if len(packs) > 1:
        _refuse_unfit_together(packs)
    if repack and (len(packs) > 1 or (first.packing != "best-fit" and first.max_tokens is None)):
        what = f"{first.packing!r} has nothing to pack again" if len(packs) == 1 else "documents of several fields stay"
        raise OptionError(f"repack is for packing='best-fit', and for max_tokens; {what}")
    if first.packing == "concat" and first.max_documents is not None:
        raise OptionError("max_documents is for packing='best-fit'; 'concat' cuts the stream wherever a row ends")


def _refuse_unfit_together(packs: Sequence[PackSettings]) -> None:
    first = packs[0]
    if first.packing != "pad":
        raise OptionError(f"packing is {first.packing!r} for several fields, which only packing='pad' keeps together; pass that")
    if first.long == "split":
        raise OptionError("long='split' for several fields, whose documents stay together; pass long='truncate' or 'drop'")
    length = sum(one.length for one in packs)
    if first.max_tokens is not None and first.max_tokens < length:
        raise OptionError(f"max_tokens is {first.max_tokens}, and documents have up to {length} tokens; pass more")
