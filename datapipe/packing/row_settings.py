"""The settings of rows of tokens, in whatever kind of data they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from datapipe.core.checks import names_or_none, whole_number
from datapipe.errors import OptionError

Layout = Literal["rows", "flat"]
OF_ROWS = (
    "input_ids", "labels", "position_ids", "document_ids", "attention_mask", "cu_seqlens", "max_seqlen", "loss_tokens",
)  # fmt: skip
_MAX_SEQLENS = 1 << 26
_MAX_ACCUMULATED = 1 << 31  # micro-batches


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """The fields and the layout of batches of rows, and how rows are dealt to ranks."""

    repack: bool = False
    layout: Layout = "rows"
    fields: tuple[str, ...] = ()  # what a batch has; empty: what is usual
    num_seqlens: int | None = None
    pad: int = 0
    balance: bool = False
    accumulate: int = 1

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.layout not in ("rows", "flat"):
            raise OptionError(f"layout is {self.layout!r:.40}; choose 'rows' or 'flat'")
        if self.num_seqlens is not None:
            put(self, "num_seqlens", whole_number(self.num_seqlens, "num_seqlens", least=2, most=_MAX_SEQLENS))
        put(self, "pad", whole_number(self.pad, "pad", least=0, most=(1 << 63) - 1))
        put(self, "accumulate", whole_number(self.accumulate, "accumulate", least=1, most=_MAX_ACCUMULATED))


def fields_of(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the fields that a batch is to have; none: what is usual. Raises OptionError for an empty list."""
    fields = names_or_none(names, "fields")
    if fields == ():
        raise OptionError("fields is empty; name what a batch has, or leave it out")
    return fields or ()


def is_balanced(balance: str | None) -> bool:
    """Return whether rows are dealt alike to ranks. Raises OptionError for another balance than of steps."""
    if balance not in (None, "step"):
        raise OptionError(f"balance is {balance!r:.40}; pass 'step' or nothing")
    return balance is not None
