"""Assign roles to the columns of a manifest (files, values, label), by the user's choice, their names, or their contents."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, FieldKind, FieldSpec
from datapipe.containers.field_names import field_name, is_mask_name
from datapipe.containers.labels import LABEL_NAMES
from datapipe.containers.listing import is_image_name
from datapipe.errors import OptionError
from datapipe.sources.fields import Choices

# If several columns hold images, the first of these names is the image.
_IMAGE_NAMES = (
    "image", "image_path", "image_file", "img", "img_path", "path", "file", "file_name", "filename", "filepath", "file_path",
)  # fmt: skip
_FILE_KINDS = {
    "image": FieldKind.IMAGE, "mask": FieldKind.MASK, "array": FieldKind.ARRAY, "bytes": FieldKind.BYTES,
    "text-file": FieldKind.TEXT, "json-file": FieldKind.JSON,
}  # fmt: skip
_VALUE_KINDS = {
    "text": FieldKind.TEXT,
    "json": FieldKind.JSON,
    "boxes": FieldKind.BOXES,
    "int": FieldKind.JSON,
    "float": FieldKind.JSON,
}
_ENDING = re.compile(r"_(path|file|filename|file_name)$")
_INT = re.compile(r"-?(0|[1-9]\d*)")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")  # as JSON has them


@dataclass(slots=True)
class Census:
    """Counts of a column's contents, over all rows."""

    num: int = 0  # cells that are not empty
    num_texts: int = 0
    num_images: int = 0  # texts that end like an image's name
    num_arrays: int = 0  # ... like an array's
    are_ints: bool = True
    are_numbers: bool = True

    def count(self, cell: Any) -> None:
        """Count one more cell: a text, or a JSON value."""
        if cell is None or cell == "":
            return
        self.num += 1
        if isinstance(cell, str):
            self.num_texts += 1
            name = cell[-16:].encode(errors="replace")
            self.num_images += is_image_name(name)
            self.num_arrays += name.lower().endswith(b".npy")
            if self.are_numbers:
                self.are_ints = self.are_ints and bool(_INT.fullmatch(cell))
                self.are_numbers = self.are_ints or bool(_NUMBER.fullmatch(cell))
        else:
            is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
            self.are_numbers = self.are_numbers and is_number
            self.are_ints = self.are_ints and is_number and isinstance(cell, int)

    @property
    def are_texts(self) -> bool:
        return self.num_texts == self.num


@dataclass(frozen=True, slots=True)
class KeptColumn:
    """One column to keep."""

    name: str  # in the manifest
    field: FieldSpec
    is_path: bool = False  # its cells name files that hold the field
    number: str = ""  # "int" or "float" if every cell must be such a number, or empty

    @property
    def is_label(self) -> bool:
        return self.field.kind is FieldKind.LABEL


@dataclass(slots=True)
class _Draft:
    """A column whose role is not decided yet."""

    name: str
    census: Census
    choice: str | None
    kind: FieldKind | None = None
    is_path: bool = False
    number: str = ""
    words: str = field(init=False)

    def __post_init__(self) -> None:
        self.words = re.sub(r"[^a-z0-9]+", "_", self.name.lower()).strip("_")


def assign(where: str, found: dict[str, Census], choices: Choices, *, is_typed: bool) -> tuple[KeptColumn, ...]:
    """Return the columns to keep. `is_typed`: the cells are JSON values, not texts.

    Raises OptionError if the roles of columns are not clear, or for a choice that is not possible.
    """
    drafts = [_Draft(name, census, choices.take(name)) for name, census in found.items()]
    choices.refuse_unmet(where, found)
    kept = [draft for draft in drafts if draft.choice != "none"]
    for draft in kept:
        _choose(draft, is_typed=is_typed)
    if not any(draft.choice == "label" for draft in kept):
        _guess_label(where, kept)
    labels = [draft.name for draft in kept if draft.kind is FieldKind.LABEL]
    if len(labels) > 1:
        raise OptionError(f"--field: {' and '.join(map(repr, labels))} are both labels; a sample has one")
    if not any(draft.is_path for draft in kept) and not choices:
        raise OptionError(
            f"{where}: none of its columns names files ({', '.join(found)}); say which one does with --field COLUMN=image,"
            " or give a column a kind, such as --field COLUMN=text, to convert the values alone; a table of"
            " numbers is converted with --to parquet, and texts with --to tokens and a --tokenizer"
        )
    return _named(where, kept)


def _choose(draft: _Draft, *, is_typed: bool) -> None:
    """Set kind and role by the user's choice, or by the contents of the cells."""
    census, choice = draft.census, draft.choice
    if choice == "label":
        draft.kind = FieldKind.LABEL
    elif choice in _FILE_KINDS:
        draft.kind, draft.is_path = _FILE_KINDS[choice], True
    elif choice in _VALUE_KINDS:
        draft.kind, draft.number = _VALUE_KINDS[choice], choice if choice in ("int", "float") else ""
    elif census.num_images * 2 > census.num or (draft.words in _IMAGE_NAMES and census.num and census.are_texts):
        draft.kind, draft.is_path = FieldKind.MASK if is_mask_name(draft.name) else FieldKind.IMAGE, True
    elif census.num_arrays * 2 > census.num:
        draft.kind, draft.is_path = FieldKind.ARRAY, True
    elif is_typed:
        draft.kind = FieldKind.TEXT if census.num and census.are_texts else FieldKind.JSON
    elif census.num and census.are_numbers:
        draft.kind, draft.number = FieldKind.JSON, "int" if census.are_ints else "float"
    else:
        draft.kind = FieldKind.TEXT


def _guess_label(where: str, drafts: list[_Draft]) -> None:
    by_name = {draft.words: draft for draft in drafts if draft.choice is None and not draft.is_path}
    for name in LABEL_NAMES["manifest"]:
        draft = by_name.get(name)
        if draft is not None and (draft.census.are_ints or draft.kind is FieldKind.TEXT):
            draft.kind, draft.number = FieldKind.LABEL, ""
            return
        if draft is not None and draft.number == "float":
            raise OptionError(
                f"{where}: the column {draft.name!r} holds numbers that are not whole, so they are not classes; pass"
                f" --field {draft.name}=float to keep them as values, or write whole ones"
            )


def _named(where: str, drafts: list[_Draft]) -> tuple[KeptColumn, ...]:
    images = [draft for draft in drafts if draft.kind is FieldKind.IMAGE]
    ranked = sorted((draft for draft in images if draft.words in _IMAGE_NAMES), key=lambda draft: _IMAGE_NAMES.index(draft.words))
    if len(images) > 1 and not ranked:
        names = [draft.name for draft in images]
        raise OptionError(
            f"{where}: the columns {' and '.join(names)} name images; call one of them 'image', or say what the others are,"
            f" such as --field {names[1]}=mask or --field {names[1]}=none"
        )
    image = next(iter(ranked or images), None)
    columns = tuple(_column(draft, is_image=draft is image) for draft in drafts)
    for name, group in _by_field(columns).items():
        if len(group) > 1:
            raise OptionError(f"{where}: the columns {' and '.join(group)} would both be the field {name!r}; rename one")
    return columns


def _column(draft: _Draft, *, is_image: bool) -> KeptColumn:
    assert draft.kind is not None
    if draft.kind is FieldKind.LABEL:
        return KeptColumn(draft.name, LABEL_FIELD)
    if is_image:
        return KeptColumn(draft.name, IMAGE_FIELD, is_path=True)
    name = field_name(_ENDING.sub("", draft.words) if draft.is_path else draft.words)
    return KeptColumn(draft.name, FieldSpec(name, draft.kind), draft.is_path, draft.number)


def _by_field(columns: Iterable[KeptColumn]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for column in columns:
        groups.setdefault(column.field.name, []).append(repr(column.name))
    return groups
