"""The settings of `Tokens`: how documents are packed, and what a batch has."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from datapipe.kernel.options import refuse_unknown_fields
from datapipe.packing.row_settings import OF_ROWS, RowSettings
from datapipe.packing.settings import PackSettings, refuse_unfit

_OF_ONE = tuple(name for name in OF_ROWS if name != "attention_mask")  # that a batch has by default, of a corpus of one field
_OF_SEVERAL = ("input_ids", "labels", "attention_mask", "loss_tokens")  # and of each of several


@dataclass(frozen=True, slots=True)
class TokenSettings(RowSettings):
    """The settings of `Tokens`, which documents each."""

    packs: tuple[PackSettings, ...]  # of each field; they differ in lengths alone
    prefixes: tuple[str, ...] = ("",)  # of what a batch has of each field

    def __post_init__(self) -> None:
        super(TokenSettings, self).__post_init__()  # the plain form fails in classes with slots
        usual = _OF_ONE if len(self.packs) == 1 else _OF_SEVERAL
        object.__setattr__(self, "fields", self.fields or tuple(prefix + name for prefix in self.prefixes for name in usual))
        possible = [*(prefix + name for prefix in self.prefixes for name in OF_ROWS), "id"]
        refuse_unknown_fields(self.fields, possible)
        refuse_unfit(self.packs, repack=self.repack)

    @property
    def has_documents(self) -> bool:
        """Whether each row of a batch is a document of a pack of several, not a pack."""
        return self.packs[0].max_tokens is not None

    def of_field(self, number: int) -> dict[str, str]:
        """Return what a batch has of a field: the field's own name of each, by the name in the batch."""
        prefix = self.prefixes[number]
        return {prefix + name: name for name in OF_ROWS if prefix + name in self.fields}

    def differing(self, other: TokenSettings) -> list[str]:
        """Return the settings in which rows differ, by name: all but `long`, which is each corpus's own matter."""
        ours, theirs = asdict(self), asdict(other)
        pairs = zip(ours.pop("packs"), theirs.pop("packs"), strict=False)  # as many, if the prefixes are equal
        ours["field"], theirs["field"] = ours.pop("prefixes"), theirs.pop("prefixes")
        found = [name for name in ours if ours[name] != theirs[name]]
        for one, another in pairs:
            found += [name for name in one if one[name] != another[name] and name not in ("long", *found)]
        return found
