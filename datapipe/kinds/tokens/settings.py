"""The settings of `Tokens`: how documents are packed, and what a batch has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from datapipe.core.checks import whole_number
from datapipe.errors import OptionError
from datapipe.index.packs import PackSettings

Layout = Literal["rows", "flat"]
FIELDS = (
    "input_ids", "labels", "position_ids", "document_ids", "attention_mask", "cu_seqlens", "max_seqlen", "loss_tokens", "id",
)  # fmt: skip
DEFAULT_FIELDS = tuple(name for name in FIELDS if name not in ("attention_mask", "id"))


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The settings of `Tokens`, which documents each."""

    packs: PackSettings
    repack: bool = False
    layout: Layout = "rows"
    fields: tuple[str, ...] = DEFAULT_FIELDS
    num_seqlens: int | None = None
    pad: int = 0
    balance: bool = False
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.layout not in ("rows", "flat"):
            raise OptionError(f"layout is {self.layout!r:.40}; choose 'rows' or 'flat'")
        unknown = sorted(set(self.fields) - {*FIELDS})
        if unknown or not self.fields:
            found = f"has {unknown[0]!r:.40}" if unknown else "is empty"
            raise OptionError(f"fields {found}; choose of {', '.join(FIELDS)}")
        if self.num_seqlens is not None:
            whole_number(self.num_seqlens, "num_seqlens", least=2)
        whole_number(self.pad, "pad", least=0)
        whole_number(self.accumulate, "accumulate", least=1)
        if self.repack and self.packs.packing != "best-fit":
            raise OptionError(f"repack is for packing='best-fit'; {self.packs.packing!r} has nothing to pack again")
        if self.packs.packing == "concat" and self.packs.max_documents is not None:
            raise OptionError("max_documents is for packing='best-fit'; 'concat' cuts the stream wherever a row ends")

    def differing(self, other: TokenSettings) -> list[str]:
        """Return the settings in which rows differ, by name: all but `long`, which is each corpus's own matter."""
        ours, theirs = (asdict(one) for one in (self, other))
        ours, theirs = (one | one.pop("packs") for one in (ours, theirs))
        return [name for name in ours if ours[name] != theirs[name] and name != "long"]
