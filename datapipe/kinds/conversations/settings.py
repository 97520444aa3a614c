"""The settings of `Conversations`: how they are packed, and what a batch has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from datapipe.core.checks import whole_number
from datapipe.errors import OptionError
from datapipe.kernel.options import refuse_unknown_fields
from datapipe.packing.settings import PackSettings, refuse_unfit

Layout = Literal["rows", "flat"]
Decode = Literal["exact", "scaled"]
OF_ROWS = (
    "input_ids", "labels", "position_ids", "document_ids", "attention_mask", "cu_seqlens", "max_seqlen", "loss_tokens",
)  # fmt: skip
PIXELS = "pixel_values"
_USUAL = ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen", "loss_tokens")
_MAX_SEQLENS = 1 << 26
_MAX_ACCUMULATED = 1 << 31  # micro-batches


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """The settings of `Conversations`, which documents each."""

    packs: PackSettings
    of_model: tuple[str, ...]  # what a batch has for the model's processor besides pixels, such as `image_grid_thw`
    repack: bool = False
    layout: Layout = "rows"
    fields: tuple[str, ...] = ()  # what a batch has; empty: what is usual
    num_seqlens: int | None = None
    pad: int = 0
    balance: bool = False
    accumulate: int = 1
    decode: Decode = "exact"

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.layout not in ("rows", "flat"):
            raise OptionError(f"layout is {self.layout!r:.40}; choose 'rows' or 'flat'")
        if self.decode not in ("exact", "scaled"):
            raise OptionError(f"decode is {self.decode!r:.40}; choose 'exact' or 'scaled'")
        if self.packs.packing == "concat" or self.packs.long in ("split", "truncate"):
            what = f"packing={self.packs.packing!r}" if self.packs.packing == "concat" else f"long={self.packs.long!r}"
            raise OptionError(f"{what} would cut images apart; pass packing='best-fit' or 'pad', and long='error' or 'drop'")
        if self.packs.labels == "whole":
            raise OptionError("labels='whole' is for targets of encoder-decoder models; pass 'same' or 'shifted'")
        put(self, "fields", self.fields or (*_USUAL, PIXELS, *self.of_model))
        refuse_unknown_fields(self.fields, [*OF_ROWS, PIXELS, *self.of_model, "id"])
        if self.num_seqlens is not None:
            put(self, "num_seqlens", whole_number(self.num_seqlens, "num_seqlens", least=2, most=_MAX_SEQLENS))
        put(self, "pad", whole_number(self.pad, "pad", least=0, most=(1 << 63) - 1))
        put(self, "accumulate", whole_number(self.accumulate, "accumulate", least=1, most=_MAX_ACCUMULATED))
        refuse_unfit([self.packs], repack=self.repack)

    def differing(self, other: ConversationSettings) -> list[str]:
        """Return the settings in which rows differ, by name: all but `long`, which is each set's own matter."""
        ours, theirs = asdict(self), asdict(other)
        packs, their_packs = ours.pop("packs"), theirs.pop("packs")
        found = [name for name in ours if ours[name] != theirs[name]]
        return [*found, *(name for name in packs if packs[name] != their_packs[name] and name != "long")]
