"""A tree of files, images or `.npy` arrays, one sample each, whose folders may name classes.

For images: one folder per class as torchvision's `ImageFolder` reads it, or deeper, or without classes. A tree is a folder on a
disk, or a prefix in a store, with the same files in the same folders.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, FieldKind, FieldSpec
from datapipe.codecs.stored import PLAIN
from datapipe.containers.form import ClassFrom, Form, refuse_root
from datapipe.containers.labels import place_labels
from datapipe.containers.listing import (
    NO_FOLDER,
    ListedFile,
    held_apart,
    held_apart_names,
    is_image_name,
    is_junk,
    list_folders,
    walk,
)
from datapipe.containers.look import Evidence, Look, Nature, Strength
from datapipe.core.directories import names_in
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.listed import ListedSample, Origin, ScanNotes, SourceFacts, Workspace, join
from datapipe.sources.fields import FolderLabels
from datapipe.sources.pairs import find_partner, find_role_folders
from datapipe.stores.location import Location, Place
from datapipe.stores.objects import ListedObject, list_below, list_each, list_names, list_objects, refuse_unlistable
from datapipe.stores.random_access import pin_object

_MAX_NAMES = 10_000  # that are looked at for loose files
_IN_NO_FOLDERS = (
    "images in no class folders: pass --class-from none for a set without labels, a .csv or .jsonl that lists files and labels,"
    " or COCO's annotation file with --root"
)
_NO_FOLDER = "lies in no folder that names its class; move it into one, or convert with --class-from none"


@dataclass(frozen=True, slots=True)
class FileKind:
    """The kind of files that are samples."""

    field: FieldSpec  # the field that each file holds
    is_wanted: Callable[[bytes], bool]  # by name
    plural: str  # for messages
    suffixes: str  # for messages


_KINDS = {
    "image-folder": FileKind(IMAGE_FIELD, is_image_name, "images", ".jpg, .jpeg, .png, ..."),
    "npy": FileKind(FieldSpec("array", FieldKind.ARRAY), lambda name: name.lower().endswith(b".npy"), "arrays", ".npy"),
}


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is a folder of images, or of arrays; None if it is none."""
    if look.nature is not Nature.FOLDER:
        return None
    is_wanted = _KINDS[form.name].is_wanted
    in_folders = any(is_wanted(name) for _, names in look.below for name in names)
    if form.name == "npy":
        is_found = in_folders or any(map(is_wanted, look.files))
        return Evidence("it holds .npy files", Strength.LIKELY) if is_found else None
    is_flat = form.class_from is ClassFrom.NONE
    if isinstance(look.place, Path) and not is_flat and held_apart(look.place, [*look.folders]):
        return Evidence("it has class folders", Strength.DECISIVE)  # its errors then explain the problem
    if find_role_folders(look, form):
        return None
    if in_folders:
        return Evidence("images in folders")
    if any(map(is_wanted, look.files)) and (is_flat or not find_partner(look)):
        return Evidence("images in it", problem="" if is_flat else _IN_NO_FOLDERS)
    return Evidence("it has folders", Strength.GUESS) if look.folders else None


def open_source(place: Place, form: Form) -> FolderSource:
    """Open the source; see `FolderSource`."""
    return FolderSource(place, form, _KINDS[form.name])


def classes_if_all(root: Place, form: Form, kind: FileKind) -> FolderSource:
    """Return the files of a kind below a folder, or a prefix in a store.

    Where `form` does not say what names their classes, it is the top folders if all of them lie in such, or else nothing.
    """
    if form.class_from is None:
        folders = open_tree(root).folders(otherwise=f"pass a folder of {kind.plural}, or one of them")
        has_classes = bool(folders) and not _has_loose(root, kind)
        form = dataclasses.replace(form, class_from=ClassFrom.FOLDER if has_classes else ClassFrom.NONE)
    return FolderSource(root, form, kind)


def placed(root: Place, origin: Origin) -> str:
    """Return the path of a listed file, or the URL of an object, which is the listed one from now on."""
    path = os.fsdecode(origin.path)
    if isinstance(root, Path):
        return os.path.join(root.absolute(), path)
    url = str(root / path)
    pin_object(url, etag=origin.etag or None, nbytes=origin.nbytes)
    return url


def _has_loose(root: Place, kind: FileKind) -> bool:
    """Return True if files of the kind lie in the folder itself."""
    names = list_names(root, at_most=_MAX_NAMES) if isinstance(root, Location) else names_in(root)
    return any(kind.is_wanted(os.fsencode(name)) for name in names)


class FolderSource:
    """Files under a folder. In mode FOLDER the classes are its folders, empty ones included; otherwise those that occur."""

    def __init__(self, place: Place, form: Form, kind: FileKind) -> None:
        """Raises MissingDataError, StorageError, or OptionError for several sets in one folder or a map that does not fit."""
        self.root = place
        self._kind = kind
        self._field = kind.field.name
        self._class_from = form.class_from or ClassFrom.FOLDER
        self._folders: list[bytes] = []
        self._populated: set[bytes] = set()
        self._classes: tuple[str, ...] | None = None
        refuse_field_choices(form)
        refuse_root(form)
        self._tree = open_tree(self.root)
        folders = self._tree.folders(otherwise=NO_FOLDER)
        if self._class_from is not ClassFrom.FOLDER:
            self._occurring = FolderLabels(form, self._class_from, no_folder=_NO_FOLDER)
        if self._class_from is ClassFrom.NONE:
            return
        refuse_several_sets(place, map(os.fsdecode, self._tree.held_apart(folders)))
        if self._class_from is ClassFrom.FOLDER:
            self._folders = folders
            if not folders:
                raise MissingDataError(
                    f"{self.root}: no class folders; expected one folder per class, with the images in it;"
                    " for a set without labels pass --class-from none"
                )
            names = map(os.fsdecode, self._folders)
            self._labels, self._classes = place_labels(names, form.class_map, "class folders")

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        if self._class_from is not ClassFrom.FOLDER:
            for _, file in self._tree.files([b""], notes, self._kind.is_wanted):
                yield self._listed(file, 0, *self._occurring.label_of(file.directory))
            return
        labels = [self._labels[os.fsdecode(folder)] for folder in self._folders]
        for place, file in self._tree.files(self._folders, notes, self._kind.is_wanted):
            self._populated.add(self._folders[place])
            yield self._listed(file, place, labels[place], None)

    def facts(self) -> SourceFacts:
        is_by_folder = self._class_from is ClassFrom.FOLDER
        what = self._kind.plural
        nothing = f"no {what} in it" if not self._folders else f"no {what} in its {len(self._folders)} class folders"
        return SourceFacts(
            fields=(self._kind.field, *([LABEL_FIELD] if is_by_folder else self._occurring.fields)),
            classes=self._classes if is_by_folder else self._occurring.classes(),
            labels=None if is_by_folder else self._occurring.labels(),
            empty_classes=tuple(os.fsdecode(folder) for folder in self._folders if folder not in self._populated),
            nothing=nothing,
            remedy=f"{what} are recognised by suffix: {self._kind.suffixes}",
        )

    def _listed(self, file: ListedFile, place: int, label: int, problem: str | None) -> ListedSample:
        directory, name, nbytes = file.directory, file.name, file.nbytes
        origin = Origin(join(directory, name), 0, nbytes, nbytes, file.mtime_ns, PLAIN, False, file.etag)  # quickly
        return ListedSample(directory, name, place, label, {self._field: origin}, _NO_VALUES, None, file.problem or problem)


def refuse_field_choices(form: Form) -> None:
    """Raise OptionError if fields were chosen for a source that has only one."""
    if form.fields:
        raise OptionError(f"--field {form.fields[0]}: has no effect with --from {form.name}, whose samples are one file each")


class SeveralSetsError(OptionError):
    """A place holds whole sets, such as `train/` and `val/`."""

    def __init__(self, place: Place, names: tuple[str, ...], remedy: str = "") -> None:
        self.place, self.names = place, names
        remedy = remedy or "pass one at a time: " + " and ".join(str(place / name) for name in names)
        shown = " and ".join(f"{name}/" for name in names)
        super().__init__(f"{place}: holds {shown}, which are separate sets; {remedy}")

    def __reduce__(self) -> tuple[type[SeveralSetsError], tuple[Place, tuple[str, ...]]]:
        return SeveralSetsError, (self.place, self.names)


def refuse_several_sets(place: Place, names: Iterable[str]) -> None:
    """Raise OptionError, naming what to pass instead, for a place that holds whole sets, such as `train/` and `val/`."""
    sets = tuple(names)
    if sets:
        raise SeveralSetsError(place, sets)


_MAX_FOLDERS = 10_000_000
_NO_VALUES: Mapping[str, str] = MappingProxyType({})

IsWanted = Callable[[bytes], bool]  # by name


class Tree(Protocol):
    """The files under a place. Paths are relative to it, without a slash at either end."""

    def folders(self, *, otherwise: str) -> list[bytes]:
        """Return the top folders, sorted, without hidden ones.

        Raises MissingDataError, with the remedy `otherwise` if it is no folder, or StorageError.
        """

    def held_apart(self, folders: list[bytes]) -> tuple[bytes, ...]:
        """Return the names among `folders` that are whole sets, such as `train` and `val`; empty if it is one set."""

    def files(self, folders: Sequence[bytes], notes: ScanNotes, is_wanted: IsWanted) -> Iterator[tuple[int, ListedFile]]:
        """Yield the wanted files below `folders` (b"" for the place itself), in any order, each with its folder's number."""


class FolderTree:
    """The files under a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folders(self, *, otherwise: str) -> list[bytes]:
        return list_folders(self._root, otherwise=otherwise)

    def held_apart(self, folders: list[bytes]) -> tuple[bytes, ...]:
        return held_apart(self._root, folders)

    def files(self, folders: Sequence[bytes], notes: ScanNotes, is_wanted: IsWanted) -> Iterator[tuple[int, ListedFile]]:
        for number, folder in enumerate(folders):
            for file in walk(self._root, folder, notes, is_wanted):
                yield number, file


class PrefixTree:
    """The objects under a prefix: slashes in their keys make folders. Folders are listed several at once."""

    def __init__(self, root: Location) -> None:
        self._root = root

    def folders(self, *, otherwise: str) -> list[bytes]:
        refuse_unlistable(self._root)
        names = list_names(self._root, at_most=_MAX_FOLDERS)
        if not names:
            raise MissingDataError(f"{self._root}: no objects under this prefix; check the URL, or {otherwise}")
        return sorted(name[:-1].encode() for name in names if name.endswith("/") and not is_junk(name[:-1].encode()))

    def held_apart(self, folders: list[bytes]) -> tuple[bytes, ...]:
        names = held_apart_names(folder.decode() for folder in folders)
        has_folders = [any(one.endswith("/") for one in list_names(self._root / name)) for name in names]
        return tuple(name.encode() for name in names) if names and all(has_folders) else ()

    def files(self, folders: Sequence[bytes], notes: ScanNotes, is_wanted: IsWanted) -> Iterator[tuple[int, ListedFile]]:
        for number, folder, page in self._pages(folders):
            for one in page:
                path = f"{folder.decode()}/{one.name}" if folder else one.name
                parts = path.encode().split(b"/")
                if not parts[-1]:  # what some tools make in place of a folder
                    continue
                if any(map(is_junk, parts)):
                    notes.num_junk += 1
                elif not is_wanted(parts[-1]):
                    notes.num_ignored += 1
                else:
                    yield number, ListedFile(b"/".join(parts[:-1]), parts[-1], one.nbytes, 0, etag=one.etag or "")

    def _pages(self, folders: Sequence[bytes]) -> Iterator[tuple[int, bytes, list[ListedObject]]]:
        """Yield (number of the folder, the folder that names are below, objects)."""
        if list(folders) != [b""]:
            with contextlib.closing(list_each([self._root / folder.decode() for folder in folders])) as pages:
                yield from ((number, folders[number], page) for number, page in pages)
            return
        flat = list_below(self._root)
        first = next(flat, [])
        if all("/" not in one.name for one in first):  # no folders to be listed at once, as far as is known
            yield 0, b"", first
            yield from ((0, b"", page) for page in flat)
            return
        flat.close()
        yield 0, b"", list_objects(self._root)
        tops = [name[:-1].encode() for name in list_names(self._root, at_most=_MAX_FOLDERS) if name.endswith("/")]
        yield from ((0, top, page) for _, top, page in self._pages(tops))


def open_tree(root: Place) -> Tree:
    """Return the files under a directory or a prefix."""
    return PrefixTree(root) if isinstance(root, Location) else FolderTree(root)
