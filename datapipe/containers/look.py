"""A bounded look at a place: what its files and folders are called, and what was found in some of them.

A command looks once; each form of data says by the look whether the place is of that form (`recognise(look, form)`).
"""

from __future__ import annotations

import contextlib
import enum
import fnmatch
import glob
import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from datapipe.containers.formats import container_of, is_file_name
from datapipe.containers.forms import FORMS, FormFacts
from datapipe.containers.listing import is_audio_name, is_folder, is_image_name, is_junk, is_kept_by_tools, is_video_name
from datapipe.containers.remote_shards import expanded
from datapipe.containers.shard_lists import shard_list
from datapipe.core.directories import matching, read_directory
from datapipe.core.remembering import recall
from datapipe.errors import FormatError, MissingDataError, OptionError, StorageError
from datapipe.index.manifest import MANIFEST_NAME
from datapipe.index.remote_set import read_manifest_text
from datapipe.stores.location import WEB_SCHEMES, Location, Place
from datapipe.stores.objects import list_names, look_below

MAX_NAMES = 2000  # read in each folder
_MAX_FOLDERS = 20  # looked into
_MAX_STORED_FOLDERS = 5  # ... of a prefix in a store
_MAX_LISTED = 1_000_000
LIST_NAMES = frozenset(name.encode() for stem in ("metadata", "manifest", "labels") for name in (f"{stem}.csv", f"{stem}.jsonl"))
_T = TypeVar("_T")


class Strength(enum.IntEnum):
    """How much evidence says. Of several forms the strongest is taken, and two as strong are asked about."""

    IF_WANTED = 0  # by its names alone, for the format that the form is made for
    GUESS = 1  # nothing else is there
    WEAK = 2  # it may be read so
    LIKELY = 3  # by what is there besides other things
    CERTAIN = 4  # by its contents
    DECISIVE = 5  # the place says so itself


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a place is of a form."""

    why: str
    strength: Strength = Strength.CERTAIN
    problem: str = ""  # what the user has to say before it can be read so
    kind: str = ""  # the kind of its data, where the form alone does not say it


class Nature(enum.Enum):
    """Whether a path or URL names a file, a folder, a pattern, or nothing that is there."""

    FILE = "file"  # by its name alone, in a store
    FOLDER = "folder"  # or a prefix in a store
    PATTERN = "pattern"
    NOTHING = "nothing"  # on the disk; it may be a folder in an archive


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """The names found at a place: those of files and folders that are no junk, of which the first are looked at.

    `files`: those of the folder itself, or that the pattern matches, or the file's own. `folders`: those in the folder.
    `below`: files of folders in it, by the folder's path relative to it, as deep as the first files. `matches`: the paths of the
    files that a pattern matches. `hidden`: of a prefix in a store, the folders in it that count as junk.
    """

    place: Place
    nature: Nature
    files: tuple[bytes, ...] = ()
    folders: tuple[bytes, ...] = ()
    below: tuple[tuple[bytes, tuple[bytes, ...]], ...] = ()
    matches: tuple[str, ...] = ()
    hidden: tuple[bytes, ...] = ()
    _known: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_stored(self) -> bool:
        """True if it lies in an object store."""
        return isinstance(self.place, Location)

    @property
    def name(self) -> bytes:
        """Return the name of the file; b"" if it is none."""
        return self.files[0] if self.nature is Nature.FILE else b""

    @property
    def suffix(self) -> str:
        """Return the suffix of the file, in lower case; "" if it is none."""
        return os.path.splitext(os.fsdecode(self.name))[1].lower()

    @property
    def all_files(self) -> Iterator[bytes]:
        """Yield the names of all files that were seen, those of the place itself first."""
        return itertools.chain(self.files, *(names for _, names in self.below))

    def holds(self, is_wanted: Callable[[bytes], bool]) -> bool:
        """Return True if a file that was seen is wanted by its name."""
        return any(map(is_wanted, self.all_files))

    @property
    def has_names(self) -> bool:
        """True if any files or folders were seen, as they are not of web servers, which list nothing."""
        return bool(self.files or self.folders or self.below)

    def has_name(self, names: re.Pattern[str]) -> bool:
        """Return True if a file that was seen, or a folder in the place, has one of these names, in lower case."""
        return any(map(names.fullmatch, self.once("names", self._lowered_names)))

    def _lowered_names(self) -> frozenset[str]:
        return frozenset(os.fsdecode(name).lower() for name in itertools.chain(self.all_files, self.folders))

    @property
    def has_media(self) -> bool:
        """True if images, videos or sound were seen in a folder."""
        return self.holds(lambda name: is_image_name(name) or is_video_name(name) or is_audio_name(name))

    def paths(self, is_wanted: Callable[[bytes], bool]) -> Iterator[str]:
        """Yield the paths, or URLs, of the files that are wanted by name, those of the place itself first."""
        for name, path in zip(self.files, self._own_paths(), strict=True):
            if is_wanted(name):
                yield path
        for folder, names in self.below:
            yield from (str(self.place / os.fsdecode(os.path.join(folder, name))) for name in filter(is_wanted, names))

    def first_shard(self, form: str) -> str | None:
        """Return the path, or URL, of the first shard of a form in the place itself; None if there is none.

        Raises StorageError, and for a pattern of objects MissingDataError and FormatError.
        """
        if self.nature is Nature.PATTERN and isinstance(self.place, Location):
            return first_object(self.place)
        if self.nature is Nature.FILE:
            return str(self.place)
        own = zip(self.files, self._own_paths(), strict=True)
        return next((path for name, path in own if container_of(os.fsdecode(name)) == form), None)

    def _own_paths(self) -> Iterator[str]:
        """Yield the paths, or URLs, of the files of the place itself."""
        if self.nature is Nature.FOLDER:
            return (str(self.place / os.fsdecode(name)) for name in self.files)
        return iter(self.matches or [str(self.place)] * len(self.files))

    def evidence(self, name: str, strength: Strength = Strength.CERTAIN) -> Evidence:
        """Return the evidence that one of the files that were seen, which has this name, is of a form."""
        if self.nature is Nature.FILE:
            return Evidence(f"its name ends with {self.suffix}", strength)
        return Evidence(f"it {'matches' if self.nature is Nature.PATTERN else 'holds'} {name}", strength)

    def once(self, what: str, find: Callable[[], _T]) -> _T:
        """Return what `find` finds, which is looked for once."""
        if what not in self._known:
            self._known[what] = find()
        return cast(_T, self._known[what])


def recognise_by_names(look: Look, form: str) -> Evidence | None:
    """Return why a place is shards of a form, by the names of its files; None if it is none."""
    of_form = [name for name in map(os.fsdecode, look.files) if container_of(name) == form]
    facts = FORMS[form]
    if _may_be_listed(look, facts):
        try:
            found = shard_list(form, look.place)
        except OptionError as exc:
            return Evidence("it has several splits", Strength.DECISIVE, str(exc))
        except FormatError:
            if facts.has_splits:  # its files alone would be other samples
                raise
            found = None  # by its files then; whatever opens it says what is wrong
        if found is not None:
            return Evidence(f"{os.path.basename(str(found.place))} names them", Strength.DECISIVE)
    if not of_form:
        return None
    if look.nature is Nature.FILE:
        return Evidence(f"its name ends with {os.path.splitext(of_form[0])[1]}")
    if look.nature is Nature.PATTERN:
        return Evidence("by the names that it matches" if len(of_form) == len(look.files) else "by some names that it matches")
    return Evidence(f"it holds {os.path.splitext(of_form[0])[1].lower()} files")


def _may_be_listed(look: Look, facts: FormFacts) -> bool:
    """Return whether a place may have a list of its shards, by what was seen; of hidden ones nothing was."""
    if look.nature is not Nature.FOLDER:
        return look.nature is Nature.NOTHING and facts.has_splits
    hidden = {name.partition("/")[0].encode() for name in facts.lists if "/" in name}
    is_hidden = not hidden.isdisjoint(look.hidden) if look.is_stored else bool(hidden)
    return is_hidden or any(name.encode() in look.files for name in facts.lists)


def first_object(pattern: Location) -> str | None:
    """Return the URL of the first object that a pattern, or braces, name; None if there is none. Raises as `list_names` does."""
    if "{" in pattern.key:
        return next(expanded(str(pattern)))
    found = fnmatch.filter(list_names(pattern.parent, at_most=_MAX_LISTED), pattern.name)
    return str(pattern.parent / found[0]) if found else None


def look_at(place: Place) -> Look:
    """Look at a place, once within `remembered`.

    Raises MissingDataError where a pattern or a prefix holds nothing, StorageError if it cannot be read.
    """
    return recall(("look", place), lambda: _look_at(place))


def _look_at(place: Place) -> Look:
    if isinstance(place, Location):
        return _look_at_location(place)
    if place.is_dir():
        return _look_at_folder(place)
    if place.exists():
        return Look(place, Nature.FILE, (os.fsencode(place.name),))
    if glob.has_magic(str(place)):
        found = tuple(path for path in matching(str(place)) if not os.path.isdir(path))
        if not found:
            raise MissingDataError(f"{place}: no file matches")
        return Look(place, Nature.PATTERN, tuple(os.fsencode(os.path.basename(path)) for path in found), matches=found)
    return Look(place, Nature.NOTHING)


def _look_at_folder(place: Path) -> Look:
    top = os.fsencode(place)
    try:
        files, folders = _names_in(top)
    except OSError as exc:
        raise StorageError(exc.errno, f"{place}: cannot be read ({exc.strerror}); check its permissions") from exc
    below: list[tuple[bytes, tuple[bytes, ...]]] = []
    waiting = folders
    for _ in range(_MAX_FOLDERS):
        if not waiting:
            break
        folder, *waiting = waiting
        path = os.path.join(top, folder)
        if is_kept_by_tools(path):
            continue
        try:
            names, inner = _names_in(path)
        except OSError:  # the listing that follows reports it
            continue
        below.append((folder, tuple(names)))
        waiting = [os.path.join(folder, one) for one in inner] + waiting
    return Look(place, Nature.FOLDER, tuple(files), tuple(folders), tuple(below))


def _names_in(folder: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the names of the first files and folders in a folder, sorted. Raises OSError."""
    files: list[bytes] = []
    folders: list[bytes] = []
    for entry in read_directory(folder).first(MAX_NAMES):
        if not is_junk(entry.name):
            (folders if is_folder(entry) else files).append(entry.name)
    return sorted(files), sorted(folders)


def _look_at_location(location: Location) -> Look:
    """Look at a URL. What names objects is not asked for; a converted set says what it is, also where nothing may be listed."""
    if "{" in location.key:
        names = itertools.islice(expanded(str(location)), MAX_NAMES)
        return Look(location, Nature.PATTERN, tuple(name.rpartition("/")[2].encode() for name in names))
    if any(sign in location.name for sign in "*["):
        return Look(location, Nature.PATTERN, (location.name.encode(),))
    if is_file_name(location.name):
        return Look(location, Nature.FILE, (location.name.encode(),))
    if any(map(_is_archive, location.key.split("/")[:-1])):
        return Look(location, Nature.NOTHING)
    if read_manifest_text(location) is not None:
        return Look(location, Nature.FOLDER, (MANIFEST_NAME.encode(),))
    names_in = list_names(location, at_most=MAX_NAMES)
    if not names_in and _is_split(location):
        return Look(location, Nature.NOTHING)
    if not names_in and location.scheme not in WEB_SCHEMES:
        what = "nothing under this prefix; check the URL, or name objects, as in train-{000..099}.tar"
        raise MissingDataError(f"{location}: {what}")
    shown = [name.encode() for name in names_in if not is_junk(name.encode())]
    folders = tuple(name[:-1] for name in shown if name.endswith(b"/"))
    files = tuple(name for name in shown if not name.endswith(b"/"))
    looked = () if any(map(is_image_name, files)) else folders[:_MAX_STORED_FOLDERS]
    below = [(folder, tuple(one.name.encode() for one in look_below(location / os.fsdecode(folder)))) for folder in looked]
    hidden = tuple(name[:-1].encode() for name in names_in if name.startswith(".") and name.endswith("/"))
    return Look(location, Nature.FOLDER, files, folders, tuple(below), hidden=hidden)


def _is_split(location: Location) -> bool:
    """Return True if a list in the prefix above has a split of this name."""
    with contextlib.suppress(StorageError, FormatError):
        return any(facts.has_splits and shard_list(form, location) is not None for form, facts in FORMS.items())
    return False


def _is_archive(name: str) -> bool:
    return any(facts.files is not None and facts.files.fullmatch(name.lower()) for facts in (FORMS["archive"], FORMS["tar"]))
