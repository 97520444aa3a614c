"""The fields of a source: their order, and the user's choices."""

from __future__ import annotations

from collections.abc import Iterable

from converters.options import FieldChoice
from converters.writers import IMAGE_FIELD, checked_fields
from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.core.errors import OptionError


def in_order(fields: Iterable[FieldSpec]) -> tuple[FieldSpec, ...]:
    """Return the image first, then masks, boxes, and the others by name; the label last.

    Raises OptionError for two of one name.
    """
    ranks = {FieldKind.IMAGE: 1, FieldKind.MASK: 2, FieldKind.BOXES: 3, FieldKind.LABEL: 9}
    ordered = sorted(fields, key=lambda field: (field.name != IMAGE_FIELD.name, ranks.get(field.kind, 4), field.name))
    return checked_fields(ordered)


class Choices:
    """The user's `--field NAME=KIND` options, taken one by one as a source encounters the names."""

    def __init__(self, choices: tuple[FieldChoice, ...]) -> None:
        self._kinds = {choice.name: choice.kind for choice in choices}
        self._left = set(self._kinds)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def take(self, name: str) -> str | None:
        """Return the user's choice for the source's `name`; None if there is none."""
        self._left.discard(name)
        return self._kinds.get(name)

    def refuse_unmet(self, where: str, names: Iterable[str]) -> None:
        """Raise OptionError for choices of names that the source lacks."""
        if self._left:
            has = ", ".join(sorted(names)) or "nothing"
            raise OptionError(f"{where}: has no {sorted(self._left)[0]!r} (has: {has}); check --field")

    @staticmethod
    def refuse_kind(name: str, kind: str, allowed: Iterable[str]) -> None:
        """Raise OptionError unless the source can make `kind` of `name`."""
        if kind not in allowed:
            raise OptionError(f"--field {name}={kind}: not possible here; choose one of: {', '.join(allowed)}")
