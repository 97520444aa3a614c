"""The settings of `Tokens`: how documents are packed, and what a batch has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from datapipe.core.checks import whole_number
from datapipe.errors import OptionError
from datapipe.kernel.options import refuse_unknown_fields
from datapipe.packing.settings import PackSettings, refuse_unfit

Layout = Literal["rows", "flat"]
OF_FIELDS = (
    "input_ids", "labels", "position_ids", "document_ids", "attention_mask", "cu_seqlens", "max_seqlen", "loss_tokens",
)  # fmt: skip
_MAX_SEQLENS = 1 << 26
_MAX_ACCUMULATED = 1 << 31  # micro-batches
_OF_ONE = tuple(name for name in OF_FIELDS if name != "attention_mask")  # that a batch has by default, of a corpus of one field
_OF_SEVERAL = ("input_ids", "labels", "attention_mask", "loss_tokens")  # and of each of several


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The settings of `Tokens`, which documents each."""

    packs: tuple[PackSettings, ...]  # of each field; they differ in lengths alone
    prefixes: tuple[str, ...] = ("",)  # of what a batch has of each field
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
        usual = _OF_ONE if len(self.packs) == 1 else _OF_SEVERAL
        put(self, "fields", self.fields or tuple(prefix + name for prefix in self.prefixes for name in usual))
        possible = [*(prefix + name for prefix in self.prefixes for name in OF_FIELDS), "id"]
        refuse_unknown_fields(self.fields, possible)
        if self.num_seqlens is not None:
            put(self, "num_seqlens", whole_number(self.num_seqlens, "num_seqlens", least=2, most=_MAX_SEQLENS))
        put(self, "pad", whole_number(self.pad, "pad", least=0, most=(1 << 63) - 1))
        put(self, "accumulate", whole_number(self.accumulate, "accumulate", least=1, most=_MAX_ACCUMULATED))
        refuse_unfit(self.packs, repack=self.repack)

    @property
    def has_documents(self) -> bool:
        """Whether each row of a batch is a document of a pack of several, not a pack."""
        return self.packs[0].max_tokens is not None

    def of_field(self, number: int) -> dict[str, str]:
        """Return what a batch has of a field: the field's own name of each, by the name in the batch."""
        prefix = self.prefixes[number]
        return {prefix + name: name for name in OF_FIELDS if prefix + name in self.fields}

    def differing(self, other: TokenSettings) -> list[str]:
        """Return the settings in which rows differ, by name: all but `long`, which is each corpus's own matter."""
        ours, theirs = asdict(self), asdict(other)
        pairs = zip(ours.pop("packs"), theirs.pop("packs"), strict=False)  # as many, if the prefixes are equal
        ours["field"], theirs["field"] = ours.pop("prefixes"), theirs.pop("prefixes")
        found = [name for name in ours if ours[name] != theirs[name]]
        for one, another in pairs:
            found += [name for name in one if one[name] != another[name] and name not in ("long", *found)]
        return found
