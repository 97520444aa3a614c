"""What fields are called: names that every format can hold, made of what the source calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from converters.options import FieldChoice
from converters.writers import IMAGE_FIELD, LABEL_FIELD, checked_fields
from datapipe.errors import OptionError
from datapipe.manifest import FieldSpec, Kind

_MASK_WORDS = frozenset(
    ("mask", "masks", "seg", "segmentation", "segmentations", "segmentationclass", "trimap", "trimaps", "matte")
)
_MAX_LENGTH = 32


def field_name(text: str) -> str:
    """Lower-case letters, digits and `_`; a letter first; `_` behind a name that the formats keep for themselves."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    if not name or not name[0].isalpha():
        name = f"f_{name}".rstrip("_")
    name = name[:_MAX_LENGTH]
    return name if _is_free(name) else name[: _MAX_LENGTH - 1] + "_"


def _is_free(name: str) -> bool:
    if name in (LABEL_FIELD.name, IMAGE_FIELD.name):
        return False
    try:
        checked_fields((FieldSpec(name, Kind.BYTES),))
    except OptionError:
        return False
    return True


def is_mask_name(text: str) -> bool:
    """Whether one of the words in it means a mask."""
    return not _MASK_WORDS.isdisjoint(re.split(r"[^a-z]+", text.lower()))


def in_order(fields: Iterable[FieldSpec]) -> tuple[FieldSpec, ...]:
    """The image first, then masks, boxes, and the others by name; the label last.

    Raises OptionError for two of one name.
    """
    ranks = {Kind.IMAGE: 1, Kind.MASK: 2, Kind.BOXES: 3, Kind.LABEL: 9}
    ordered = sorted(fields, key=lambda field: (field.name != IMAGE_FIELD.name, ranks.get(field.kind, 4), field.name))
    return checked_fields(ordered)


class Choices:
    """The user's `--field NAME=KIND`s, taken one after the other as a source meets the names."""

    def __init__(self, choices: tuple[FieldChoice, ...]) -> None:
        self._kinds = {choice.name: choice.kind for choice in choices}
        self._left = set(self._kinds)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def take(self, name: str) -> str | None:
        """What the user chose for what the source calls `name`; None where nothing was chosen."""
        self._left.discard(name)
        return self._kinds.get(name)

    def refuse_unmet(self, where: str, names: Iterable[str]) -> None:
        """Raise OptionError for choices of names that the source lacks."""
        if self._left:
            has = ", ".join(sorted(names)) or "nothing"
            raise OptionError(f"{where}: has no {sorted(self._left)[0]!r} (has: {has}); check --field")

    @staticmethod
    def refuse_kind(name: str, kind: str, allowed: Iterable[str]) -> None:
        """Raise OptionError unless `kind` is one that the source can make of `name`."""
        if kind not in allowed:
            raise OptionError(f"--field {name}={kind}: not possible here; choose one of: {', '.join(allowed)}")
