"""The settings of `Conversations`: how they are packed, and what a batch has."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from datapipe.codecs.decode import Decode
from datapipe.errors import OptionError
from datapipe.kernel.options import one_of, refuse_unknown_fields
from datapipe.packing.row_settings import OF_ROWS, RowSettings
from datapipe.packing.settings import PackSettings, refuse_unfit

PIXELS = "pixel_values"
_USUAL = ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen", "loss_tokens")


@dataclass(frozen=True, slots=True)
class ConversationSettings(RowSettings):
    """The settings of `Conversations`, which documents each."""

    packs: PackSettings
    of_model: tuple[str, ...]  # what a batch has for the model's processor besides pixels, such as `image_grid_thw`
    decode: Decode = "exact"

    def __post_init__(self) -> None:
        super(ConversationSettings, self).__post_init__()  # the plain form fails in classes with slots
        one_of(Decode, self.decode, "decode")
        if self.packs.packing == "concat" or self.packs.long in ("split", "truncate"):
            what = f"packing={self.packs.packing!r}" if self.packs.packing == "concat" else f"long={self.packs.long!r}"
            raise OptionError(f"{what} would cut images apart; pass packing='best-fit' or 'pad', and long='error' or 'drop'")
        if self.packs.labels == "whole":
            raise OptionError("labels='whole' is for targets of encoder-decoder models; pass 'same' or 'shifted'")
        object.__setattr__(self, "fields", self.fields or (*_USUAL, PIXELS, *self.of_model))
        refuse_unknown_fields(self.fields, [*OF_ROWS, PIXELS, *self.of_model, "id"])
        refuse_unfit([self.packs], repack=self.repack)

    def differing(self, other: ConversationSettings) -> list[str]:
        """Return the settings in which rows differ, by name: all but `long`, which is each set's own matter."""
        ours, theirs = asdict(self), asdict(other)
        packs, their_packs = ours.pop("packs"), theirs.pop("packs")
        found = [name for name in ours if ours[name] != theirs[name]]
        return [*found, *(name for name in packs if packs[name] != their_packs[name] and name != "long")]
