"""The fields of a source, their order and the user's choices, and its labels: numbers for the names of classes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.containers.field_names import checked_fields
from datapipe.containers.form import ClassFrom, FieldChoice, Form
from datapipe.containers.forms import FIELD_KINDS
from datapipe.core import regular_files
from datapipe.errors import MissingDataError, OptionError, StorageError


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


MAX_CLASSES = 1 << 20  # with more different labels, they are not classes
_NUMBER = re.compile(r"-1|0|[1-9][0-9]{0,18}")  # not 007, which is a name
_NO_CLASS = re.compile(r"-\d+|-?\d+\.\d*|[1-9]\d{18,}")  # not a class number; as a name it would be sorted as text


def class_number(text: str) -> int | None:
    """Return the label that a list writes as a whole number, from -1 on in plain decimal; None for a text that is a name."""
    number = int(text) if _NUMBER.fullmatch(text) else NO_LABEL
    return number if -1 <= number < 1 << 63 else None


class LabelCensus:
    """Numbers labels in order of occurrence; at the end they are either class numbers themselves, or names to be sorted.

    If every label is a number by `number_of`, the numbers are the labels and the classes have no names, unless
    `is_named` or there is a map. Names are sorted as the bytes of the file system.
    """

    def __init__(
        self,
        class_map: Path | None = None,
        *,
        is_named: bool = False,
        number_of: Callable[[str], int | None] = class_number,
    ) -> None:
        self._map = None if class_map is None else read_class_map(class_map)
        self._path = class_map
        self._is_named = is_named
        self._number_of = number_of
        self._met: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return a number that stands for this label until all are known.

        Raises OptionError if the map lacks it, or for a number below -1, with a decimal point or of more than 63 bits.
        """
        met = self._met.get(text)
        if met is None:
            are_free = self._map is None and not self._is_named
            if are_free and _NO_CLASS.fullmatch(text) and self._number_of(text) is None:
                raise OptionError(
                    f"the label {text!r} is not a class number: these are whole, from 0, or -1 for none; number the labels"
                    " with --class-map, or keep them as values with --field NAME=float"
                )
            if self._map is not None and text not in self._map:
                raise OptionError(f"{self._path}: has no index for class {text!r}; add it, or leave its samples out")
            met = self._met[text] = len(self._met)
            if met >= MAX_CLASSES:
                raise OptionError(
                    f"more than {MAX_CLASSES} different labels, such as {text!r}: not classes;"
                    " keep them as values, with --field NAME=int or =text"
                )
        return met

    def classes(self) -> tuple[str, ...] | None:
        """Return names by label; None if the labels are numbers. Raises OptionError for -1 among names."""
        if self._map is not None:
            return tuple(sorted(self._map, key=self._map.__getitem__))
        return None if self._is_numbers() else tuple(sorted(self._met, key=os.fsencode))

    def labels(self) -> dict[int, int]:
        """Return result of `number` -> label."""
        if self._map is None and self._is_numbers():
            return {met: NO_LABEL if number is None else number for met, number in enumerate(map(self._number_of, self._met))}
        table: Mapping[str, int] = self._map or {name: label for label, name in enumerate(self.classes() or ())}
        return {met: table[text] for text, met in self._met.items()}

    def _is_numbers(self) -> bool:
        if self._is_named:
            return False
        name = next((text for text in self._met if self._number_of(text) is None), None)
        if name is not None and "-1" in self._met:
            raise OptionError(
                f"labels are names, such as {name!r}, and -1, which is none; leave those samples out, or number the labels with"
                " --class-map"
            )
        return name is None


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

    def of(self, directory: bytes) -> tuple[int, str | None]:
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


def place_labels(names: Iterable[str], class_map: Path | None, where: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return labels by name, and names by label, for classes in a known order: by position, or by the map.

    Raises OptionError for a map that lacks one.
    """
    known = tuple(names)
    if class_map is None:
        return {name: label for label, name in enumerate(known)}, known
    table = read_class_map(class_map)
    unknown = [name for name in known if name not in table]
    if unknown:
        shown = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise OptionError(f"{class_map}: has no index for {where} {shown}; add them, or move them away")
    return table, tuple(sorted(table, key=table.__getitem__))


def read_class_map(path: Path) -> dict[str, int]:
    """Read a JSON object {class: index}, or lines of `class index`.

    Indices must be 0..n-1, each once: they are labels, and a class list has no gaps.
    """
    try:
        text = os.fsdecode(regular_files.read_bytes(path))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file; check --class-map") from exc
    except OSError as exc:
        raise StorageError(f"{path}: cannot be read ({exc.strerror}); check --class-map") from exc
    table = _from_json(path, text) if text.lstrip().startswith("{") else _from_lines(path, text)
    if sorted(table.values()) != list(range(len(table))):
        raise OptionError(f"{path}: indices must be 0 to {len(table) - 1}, each once; got {sorted(table.values())[:8]}...")
    return table


def _from_json(path: Path, text: str) -> dict[str, int]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise OptionError(f"{path}: not JSON ({exc}); expected {{folder: index}}") from exc
    for name, index in value.items():
        if not isinstance(index, int) or isinstance(index, bool):
            raise OptionError(f"{path}: index of {name!r} is {index!r}; expected an integer")
    return dict(value)


def _from_lines(path: Path, text: str) -> dict[str, int]:
    table: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, _, index = line.strip().rpartition(" ")
        name = name.strip()
        if not name or not index.isdecimal() or len(index) > 18:
            raise OptionError(f"{path}: line {number} is {line!r}; expected a folder, a space and its index")
        if name in table:
            raise OptionError(f"{path}: line {number} names {name!r} a second time; keep one")
        table[name] = int(index)
    return table


def is_finite(value: Any) -> bool:
    """Return True if a JSON value is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False
