"""The fields of a source, their order and the user's choices, and labels by the folders that files lie in."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.containers.field_names import checked_fields
from datapipe.containers.form import ClassFrom, FieldChoice, Form
from datapipe.containers.forms import FIELD_KINDS
from datapipe.containers.labels import LabelCensus
from datapipe.errors import OptionError


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
        self._choices = {choice.name: choice for choice in choices}
        self._left = set(self._choices)

    def __bool__(self) -> bool:
        return bool(self._choices)

    def take(self, name: str, allowed: Iterable[str] = FIELD_KINDS) -> str | None:
        """Return the user's choice for the source's `name`; None if there is none. Raises as `FieldChoice.refuse_unless`."""
        self._left.discard(name)
        choice = self._choices.get(name)
        if choice is None:
            return None
        choice.refuse_unless(allowed)
        return choice.kind

    def refuse_unmet(self, where: str, names: Iterable[str]) -> None:
        """Raise OptionError for choices of names that the source lacks."""
        if self._left:
            has = ", ".join(sorted(names)) or "nothing"
            raise OptionError(f"{where}: has no {sorted(self._left)[0]!r} (has: {has}); check --field")


class FolderLabels:
    """Labels of files by the folders that they lie in, or none."""

    def __init__(self, form: Form, class_from: ClassFrom, *, no_folder: str) -> None:
        """`no_folder`: what is wrong with a file that lies in no folder. Raises OptionError for a map without labels."""
        if class_from is ClassFrom.NONE:
            refuse_class_map(form)
        self._class_from = class_from
        self._no_folder = no_folder
        self._census = None if class_from is ClassFrom.NONE else LabelCensus(form.class_map, is_named=True)

    @property
    def fields(self) -> tuple[FieldSpec, ...]:
        """Return the field of the labels, if there are any."""
        return () if self._census is None else (LABEL_FIELD,)

    def label_of(self, directory: bytes) -> tuple[int, str | None]:
        """Return (label until all are known, problem) of a file in `directory`, relative to the root."""
        if self._census is None:
            return NO_LABEL, None
        if not directory:
            return NO_LABEL, self._no_folder
        if self._class_from is ClassFrom.FOLDER:
            directory = directory.partition(b"/")[0]
        elif self._class_from is ClassFrom.PARENT:
            directory = directory.rpartition(b"/")[2]
        return self._census.number(os.fsdecode(directory)), None

    def classes(self) -> tuple[str, ...] | None:
        """Return names by label."""
        return None if self._census is None else self._census.classes()

    def labels(self) -> dict[int, int] | None:
        """Return result of `of` -> label."""
        return None if self._census is None else self._census.labels()


def refuse_class_map(form: Form) -> None:
    """Raise OptionError if classes were given for a set without labels."""
    if form.class_map is not None:
        raise OptionError(f"--class-map {form.class_map}: the samples get no labels; pass --class-from, or leave it out")


def is_finite(value: Any) -> bool:
    """Return True if a JSON value is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False
