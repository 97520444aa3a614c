"""How a path is read: its form, and what its names do not say."""

from __future__ import annotations

import contextlib
import enum
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datapipe.containers.forms import AUTO, FIELD_KINDS, FORMS
from datapipe.core.checks import path_name
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.stores.location import Location, Place


class ClassFrom(enum.Enum):
    """The part of a file's path that names its class."""

    FOLDER = "folder"  # the top-level folder of the source that contains it, at any depth, as in torchvision's ImageFolder
    PARENT = "parent"  # the name of the folder that contains it
    PATH = "path"  # the path of that folder, relative to the source
    NONE = "none"  # nothing: there are no labels


@dataclass(frozen=True, slots=True)
class FieldChoice:
    """The user's choice of a kind for one column, suffix or annotation of the source."""

    name: str  # its name in the source
    kind: str  # one of FIELD_KINDS

    @classmethod
    def parse(cls, text: str) -> FieldChoice:
        name, equals, kind = text.rpartition("=")
        if not equals:
            name, kind = text, "text"
        if not name or kind not in FIELD_KINDS:
            raise OptionError(
                f"--field {text!r} is not NAME=KIND with a kind of: {', '.join(FIELD_KINDS)}; such as --field age=int"
            )
        return cls(name, kind)

    def __str__(self) -> str:
        return f"{self.name}={self.kind}"

    def refuse_unless(self, allowed: Iterable[str]) -> None:
        """Raise OptionError unless its kind is one of those that the source can make."""
        if self.kind not in allowed:
            raise OptionError(f"--field {self}: not possible here; choose one of: {', '.join(allowed)}")


@dataclass(frozen=True, slots=True)
class Form:
    """How a path is read as samples: its form, and what its names do not say.

    >>> data = datapipe.Images("list.csv", form=datapipe.Form("manifest", root="photos", fields={"age": "int"}))

    `name`: one of FORMS; "auto" recognises it. `root`: where the file names in a manifest or COCO file start; None: its own
    folder. `fields`: kinds by the name of a column, suffix or annotation, such as `{"age": "int", "notes": "none"}`; kinds are
    those of `datapipe convert --field`. `class_from`: what names the class of a file, "folder", "parent", "path" or "none";
    None: the folder, or nothing for pairs. `class_map`: a file of labels, JSON `{"class": index}` or lines `class index`.

    Raises OptionError for names and kinds that are not known.
    """

    name: str = AUTO
    root: Path | None = None
    fields: tuple[FieldChoice, ...] = ()
    class_from: ClassFrom | None = None
    class_map: Path | None = None

    def __init__(
        self,
        name: str = AUTO,
        *,
        root: str | os.PathLike[str] | None = None,
        fields: Mapping[str, str] | tuple[FieldChoice, ...] = (),
        class_from: str | ClassFrom | None = None,
        class_map: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(name, str) or (name not in FORMS and name != AUTO):
            raise OptionError(f"form {name!r:.40} is not known; choose one of: {', '.join((AUTO, *FORMS))}")
        put = object.__setattr__
        put(self, "name", name)
        put(self, "root", _path(root, "root"))
        put(self, "fields", _choices(fields))
        put(self, "class_from", _class_from(class_from))
        put(self, "class_map", _path(class_map, "class_map"))

    @property
    def has_choices(self) -> bool:
        """True if it says more than a name."""
        return bool(self.root or self.fields or self.class_from or self.class_map)

    def absolute(self) -> Form:
        """Return the same form with absolute paths, which mean the same wherever it is read."""
        return replace(self, root=self.root and self.root.absolute(), class_map=self.class_map and self.class_map.absolute())

    def named(self, name: str) -> Form:
        """Return the same form by another name."""
        return replace(self, name=name)

    @staticmethod
    def of(form: Any) -> Form:
        """Return a form that a user passed: one, its name, or None for one that is to be recognised."""
        if isinstance(form, Form):
            return form
        if form is None or isinstance(form, str):
            return Form(form or AUTO)
        raise OptionError(f"form is {form!r:.60}; pass a name, such as 'pairs', or a datapipe.Form")


def _path(value: str | os.PathLike[str] | None, what: str) -> Path | None:
    return None if value is None else Path(path_name(value, what))


def _choices(fields: Mapping[str, str] | tuple[FieldChoice, ...]) -> tuple[FieldChoice, ...]:
    if isinstance(fields, tuple) and all(isinstance(one, FieldChoice) for one in fields):
        return fields
    if not isinstance(fields, Mapping):
        raise OptionError(f"fields is {fields!r:.60}; pass kinds by name, such as {{'age': 'int'}}")
    for name, kind in fields.items():
        if not isinstance(name, str) or kind not in FIELD_KINDS:
            raise OptionError(f"fields: {name!r:.40} is {kind!r:.40}; a kind is one of: {', '.join(FIELD_KINDS)}")
    return tuple(FieldChoice(name, kind) for name, kind in fields.items())


def _class_from(value: str | ClassFrom | None) -> ClassFrom | None:
    try:
        return None if value is None else ClassFrom(value)
    except ValueError as exc:
        raise OptionError(f"class_from is {value!r:.40}; pass one of: {', '.join(one.value for one in ClassFrom)}") from exc


def refuse_root(form: Form) -> None:
    """Raise OptionError if a folder was named in which files lie, for a source that names none."""
    if form.root is not None:
        raise OptionError(
            f"--root {form.root}: has no effect with --from {form.name} unless a list names the files; leave it out"
        )


def refuse_choices(path: str, form: Form, what: str) -> None:
    """Raise OptionError for choices of fields and classes, which have no effect on `what` lies at a path."""
    if form.has_choices:
        raise OptionError(f"{path}: --root, --field, --class-from and --class-map have no effect on {what}; leave them out")


def on_disk(place: Place, form: Form) -> Path:
    """Return the path of a source whose form is read from disks alone. Raises OptionError for one in a store."""
    if isinstance(place, Location):
        stored = ", ".join(name for name, facts in FORMS.items() if facts.in_stores)
        raise OptionError(f"{place}: --from {form.name} is not read from stores ({stored} are); copy it to a disk")
    return place


_OPTIONS = {  # patterns of options of `datapipe convert`, and what they are in Python
    rf"from ({'|'.join(FORMS)})\b": r"form='\1'",
    r"class-from ([a-z]+)": r"class_from='\1'",
    r"field ([^ ,;=]+)=([a-z-]+)": r"fields={'\1': '\2'}",
    r"root ([^ ,;]+)": r"root=\1",
    r"class-map ([^ ,;]+)": r"class_map=\1",
    r"from\b": "form=",
    r"field\b": "fields=",
    r"root\b": "root=",
    r"class-from\b": "class_from=",
    r"class-map\b": "class_map=",
}
_NO_NAME = r"(?<![\w./-])--"  # the beginning of an option, rather than a part of a file's name
_KINDS_OF_ERRORS = (OptionError, MissingDataError, FormatError)


@contextlib.contextmanager
def errors_in_python() -> Iterator[None]:
    """Let errors name arguments of `Form` where they name options of the command line."""
    try:
        yield
    except _KINDS_OF_ERRORS as exc:
        text = str(exc)
        for option, written in _OPTIONS.items():
            text = re.sub(_NO_NAME + option, written, text)
        if text == str(exc):
            raise
        kind = next(kind for kind in _KINDS_OF_ERRORS if isinstance(exc, kind))
        raise kind(f"{text} (these are arguments of datapipe.Form: datapipe.Images(..., form=datapipe.Form(...)))") from exc
