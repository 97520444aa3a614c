"""The fields of a source: their order, and what the user says of them."""

from __future__ import annotations

from collections.abc import Iterable

from converters.options import FieldChoice
from converters.writers import IMAGE_FIELD, checked_fields
from datapipe.errors import OptionError
from datapipe.manifest import FieldSpec, Kind


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
