"""Decide what labels are, in data of every form: how they are called, whether they are class numbers or names, what each means.

A label is a class number, from 0, or -1 as unlabelled test sets have it; or the name of a class. Names are numbered by their
places among the sorted names of all samples. All labels of a set decide whether texts are numbers or names: one name among them,
and all are. A label that is null, empty or missing is NO_LABEL, and its sample a bad one. No other number becomes a label.

What reads data in place asks here, and so does what converts it: both see the same labels and classes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipe.codecs.field_values import NO_LABEL
from datapipe.containers.class_maps import read_class_map
from datapipe.containers.field_names import names_among
from datapipe.errors import FormatError, OptionError

# The names that labels have in each form, in lower case, the best one first. In tables capitals make no difference.
_COLUMNS = ("label", "labels", "target", "targets", "y", "class", "fine_label")
LABEL_NAMES: dict[str, tuple[str, ...]] = {
    "arrow": _COLUMNS,
    "parquet": _COLUMNS,
    "lance": _COLUMNS,
    "mds": _COLUMNS,
    "litdata": _COLUMNS,
    "beton": _COLUMNS,
    "hdf5": ("label", "labels", "target", "targets", "y"),
    "tfrecord": ("image/class/label", "label"),
    "tar": ("cls", "label"),  # suffixes; WebDataset's own first
    "manifest": ("label", "class", "target", "category", "class_name", "label_name"),
    "parts": ("label", "class", "target", "category", "class_name"),  # of lists of parts of videos and recordings
}
MAX_CLASSES = 1 << 20  # with more different labels, they are not classes
MAX_LABEL_NBYTES = 1024  # of a text, blanks included

NumberOf = Callable[[str], int | None]  # the class number that a text is; None for a name

_LEAST = -1
_END = 1 << 63  # labels are 64-bit integers
_NUMBER = re.compile(r"-1|0|[1-9][0-9]{0,18}")  # not 007, which is a name
_NUMBER_OF_WEBDATASET = re.compile(r"[+-]?[0-9]{1,19}")
_NO_CLASS = re.compile(r"-\d+|-?\d+\.\d*|[1-9]\d{18,}")  # not a class number; as a name it would be sorted as text


def label_names(form: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` by which data of a form may call its labels, the best one first."""
    return names_among(LABEL_NAMES[form], names)


# -- numbers ----------------------------------------------------------------------------------------


def class_label(value: int | None, where: str, *, found: str = "a label is", expected: str = "class numbers") -> int:
    """Return the label that an integer is; NO_LABEL for null. Raises FormatError, naming `where`, for one that is no class."""
    if value is None:
        return NO_LABEL
    if not _LEAST <= value < _END:
        remedy = "write labels from 0" if value < _LEAST else "write labels that are 64-bit integers"
        raise FormatError(f"{where}: {found} {value}, expected {expected}; {remedy}")
    return value


def class_labels(values: Iterable[int | None], where: str, *, classes: Sequence[str] | None = None) -> list[int]:
    """Return the labels that integers are. `classes`: their names, if the data have them. Raises as `class_label`."""
    labels = [*values]
    known = [label for label in labels if label is not None]
    for extreme in (min, max):  # of which alone is known whether they are class numbers
        class_label(extreme(known, default=None), where)
    most = max(known, default=_LEAST)
    if classes is not None and most >= len(classes):
        raise FormatError(f"{where}: a label is {most}, its metadata name {len(classes)} classes; write the file again")
    return [NO_LABEL if label is None else label for label in labels] if len(known) < len(labels) else known


# -- texts ------------------------------------------------------------------------------------------


def class_number(text: str) -> int | None:
    """Return the label that a list writes as a whole number, from -1 on in plain decimal; None for a text that is a name."""
    return _as_class(int(text)) if _NUMBER.fullmatch(text) else None


def webdataset_number(text: str) -> int | None:
    """Return the class number that a label's text is, by Python's `int` as in webdataset: `007` is 7. None if it is none."""
    return _as_class(int(text)) if _NUMBER_OF_WEBDATASET.fullmatch(text) else None


def _as_class(number: int) -> int | None:
    return number if _LEAST <= number < _END else None


def label_text(data: bytes) -> str:
    """Return what bytes that are a label say, without blanks and a byte order mark. Raises UnicodeDecodeError."""
    return data.decode("utf-8-sig").strip()


def label_said(value: Any) -> str | None:
    """Return what a cell of a list, or a JSON value, says as a label: a text, or a whole number; "" for null.

    None for a value that is neither: a boolean, a number with a decimal point, a list.
    """
    if value is None or isinstance(value, str):
        return value or ""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def is_no_class(text: str, number_of: NumberOf = class_number) -> bool:
    """Return True for a number that is no class: below -1, with a decimal point, or of more than 63 bits."""
    return _NO_CLASS.fullmatch(text) is not None and number_of(text) is None


class LabelCensus:
    """Numbers labels in order of occurrence; at the end they are either class numbers themselves, or names to be sorted.

    If every label is a number by `number_of`, the numbers are the labels and the classes have no names, unless
    `is_named` or there is a map. Names are sorted as the bytes of the file system.
    """

    def __init__(self, class_map: Path | None = None, *, is_named: bool = False, number_of: NumberOf = class_number) -> None:
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
            if are_free and is_no_class(text, self._number_of):
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


@dataclass(frozen=True, slots=True)
class SaidLabels:
    """The labels of one shard that says them in texts, before those of the other shards are known."""

    labels: tuple[int, ...]  # one for each sample; those of the set, if all its shards have numbers only
    texts: Mapping[int, str]  # what each of these says


def said_labels(texts: Iterable[str], number_of: NumberOf) -> SaidLabels:
    """Return the labels of a shard for what its samples say; "" is no label. Equal texts have equal labels, others do not."""
    said = [*texts]
    different = [*dict.fromkeys(filter(None, said))]
    numbers = [number for text in different if (number := number_of(text)) is not None]
    if not len({*numbers}) == len(numbers) == len(different):
        numbers = [*range(len(different))]
    by_text = {"": NO_LABEL} | dict(zip(different, numbers, strict=True))
    return SaidLabels(tuple(by_text[text] for text in said), dict(zip(numbers, different, strict=True)))


class SetLabels:
    """The labels of a set whose shards say them in texts: numbered when all shards are known."""

    def __init__(self, number_of: NumberOf) -> None:
        self._census = LabelCensus(number_of=number_of)
        self._of_shards: list[dict[int, int]] = []

    def add(self, texts: Mapping[int, str]) -> None:
        """Add what the labels of the next shard say. Raises OptionError for too many different ones."""
        self._of_shards.append({label: self._census.number(text) for label, text in texts.items()})

    def classes(self) -> tuple[str, ...] | None:
        """Return names by label; None if all labels are numbers. Raises OptionError for -1 among names."""
        return self._census.classes()

    def changes(self) -> list[dict[int, int]]:
        """Return, shard by shard, the labels of the set for those of the shard that differ from them."""
        labels = self._census.labels()
        return [{old: labels[met] for old, met in one.items() if labels[met] != old} for one in self._of_shards]


# -- classes in a known order ------------------------------------------------------------------------


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
