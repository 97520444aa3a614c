"""Recognise what a path or URL is: one look, one question to every form, and one sentence where the answer is not clear.

Every command asks here. Of several forms the one with the strongest evidence is taken; the format that is wanted decides between
forms that may both be read so, and all else is asked about rather than guessed.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from datapipe.containers.form import Form
from datapipe.containers.formats import TEXT_SUFFIXES, container_of, refuse_several_sets
from datapipe.containers.forms import AUDIO, FORMS, LEROBOT, VIDEOS
from datapipe.containers.listing import is_image_name
from datapipe.containers.look import LIST_NAMES, Evidence, Look, Nature, Strength, look_at, recognise_by_names
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.manifest import MANIFEST_NAME, refuse_unfinished
from datapipe.index.remote_set import nothing_there
from datapipe.index.tables import TABLE_NAME
from datapipe.sources import coco
from datapipe.sources.documents import DOCUMENTS_ARE
from datapipe.stores.location import Location, Place
from datapipe.stores.objects import refuse_unlistable

_READERS = {
    "clips": "datapipe.Clips",
    "audio": "datapipe.Audio",
    "tables": "datapipe.Table",
    "tokens": "datapipe.Tokens",
    "conversations": "datapipe.Conversations",
}
_TITLES = {VIDEOS: "videos", AUDIO: "sound files"}


@dataclass(frozen=True, slots=True)
class Recognition:
    """The form of a place, the kind of its data, and the evidence for it."""

    form: str
    kind: str
    why: str

    def __str__(self) -> str:
        return f"{FORMS[self.form].title} ({self.why}; --from {self.form})"


def recognise(place: Place, form: Form | None = None, *, target: str | None = None, kind: str | None = None) -> Recognition:
    """Return what a place is.

    `form`: what the user said of it, without a name. `target`: the format that it is to be converted to, which decides where a
    place may be read in two ways. `kind`: the kind of data that is wanted, where others are left aside.

    Raises OptionError if it may be several forms, or none; FormatError for what holds no such data; MissingDataError,
    UnfinishedError or StorageError if it cannot be read.
    """
    form = form or Form()
    look = look_at(place)
    if isinstance(place, Path):
        refuse_unfinished(place if look.nature is Nature.FOLDER else place.parent)
    found = {name: one for name in FORMS if (one := _evidence_of(name, look, form)) is not None}
    if kind is not None:
        found = _only_of(kind, found, place)
    if not found and isinstance(place, Location) and look.nature is Nature.FOLDER and not look.has_names:
        refuse_unlistable(place)
        raise nothing_there(place)
    if not found and look.nature is Nature.NOTHING:
        raise MissingDataError(f"{place}: no such file or directory{_remedy(str(place))}")
    _refuse_sets_below(look, found)
    name = _choose(found, look, target)
    evidence = found[name]
    _refuse_list_beside(name, evidence, look, form)
    if FORMS[name].shards and look.nature is Nature.FOLDER:
        names = map(os.fsdecode, look.files)
        refuse_several_sets([one for one in names if container_of(one) == name], str(place))
    return Recognition(name, evidence.kind or FORMS[name].kind, evidence.why)


def _evidence_of(name: str, look: Look, form: Form) -> Evidence | None:
    """Return why a place is of a form, by the form's own module, or by the names of its files; None if it is not."""
    facts = FORMS[name]
    names = [one for one in (facts.files, facts.marks) if one is not None]
    if names and look.has_names and not any(map(look.has_name, names)):
        return None  # so that the modules and libraries of most forms are not imported for all data
    module = importlib.import_module(facts.known_by or facts.source or facts.shards)
    if not hasattr(module, "recognise"):
        return recognise_by_names(look, name)
    found: Evidence | None = module.recognise(look, form.named(name))
    return found


def _only_of(kind: str, found: dict[str, Evidence], place: Place) -> dict[str, Evidence]:
    """Return the evidence for forms of one kind of data. Raises FormatError where there is only such of others."""
    wanted = {name: one for name, one in found.items() if FORMS[name].kind == kind}
    name = max(found, key=lambda one: found[one].strength, default="")
    if name not in wanted and name and all(FORMS[one].made_for for one in wanted):
        reader = _READERS.get(FORMS[name].kind, "datapipe.Images")
        raise FormatError(f"{place}: holds {FORMS[name].title}, and no {kind}; read it with {reader}")
    return wanted


def _choose(found: Mapping[str, Evidence], look: Look, target: str | None) -> str:
    """Return the form to be taken. Raises OptionError if there are several as good, or none."""
    told = {name: one for name, one in found.items() if one.strength is Strength.DECISIVE}
    left = told or {name: one for name, one in found.items() if one.strength is not Strength.IF_WANTED}
    if target is not None:
        written = {name: one for name, one in left.items() if _is_written(name, target)}
        made = {name: one for name, one in (told or found).items() if target in FORMS[name].made_for}
        most = max((one.strength for one in made.values()), default=Strength.GUESS)
        made = {name: one for name, one in made.items() if one.strength is most}
        is_sure = any(one.strength is Strength.CERTAIN for one in written.values())
        if len(made) == 1 and not (most is Strength.IF_WANTED and is_sure):
            return next(iter(made))
        are_guesses = all(one.strength is Strength.GUESS for one in written.values())
        if written != left and are_guesses and (look.nature is Nature.FOLDER or not written):
            raise _not_written(max(left, key=lambda name: left[name].strength), look, target)
        left = written
    strongest = max((one.strength for one in left.values()), default=Strength.GUESS)
    if strongest is Strength.GUESS:
        _refuse_shards_below(look)
        if not left or (look.nature is Nature.FOLDER and _list_or_annotations(look)):
            raise _nothing_known(look, target)
    best = [name for name, one in left.items() if one.strength == strongest]
    if len(best) > 1:
        shown = "; or ".join(f"--from {name} ({left[name].why})" for name in best)
        raise OptionError(f"{look.place}: may be several things, say which: {shown}")
    return best[0]


def _is_written(name: str, target: str) -> bool:
    targets = FORMS[name].targets
    return targets is None or target in targets


def _not_written(name: str, look: Look, target: str) -> OptionError:
    facts = FORMS[name]
    if facts.targets:
        is_table = facts.kind == "tables"
        is_text = look.suffix in TEXT_SUFFIXES
        named = "; if a column names files of samples, say which: --field COLUMN=image" if is_text and is_table else ""
        what = "a table, which is" if is_table else f"{facts.title}, which are"
        what += f" written as {' or '.join(facts.targets)}"
        return OptionError(f"--to {target}: {look.place} is {what}{named}")
    videos = f"; for its videos alone pass {look.place / 'videos'}" if name == LEROBOT else ""
    return OptionError(f"{look.place}: {facts.title}, for {_READERS[facts.kind]} to read in place: nothing to convert{videos}")


# -- what is not clear -----------------------------------------------------------------------------------


def _refuse_sets_below(look: Look, found: dict[str, Evidence]) -> None:
    """Raise FormatError for a folder of folders that hold converted sets."""
    if any(one.strength is Strength.DECISIVE for one in found.values()):
        return
    marks = {MANIFEST_NAME.encode(), TABLE_NAME.encode()}
    sets = [os.fsdecode(folder) for folder, names in look.below if b"/" not in folder and not marks.isdisjoint(names)]
    if sets:
        raise FormatError(f"{look.place}: holds the datasets {', '.join(sets)}; open one of them, e.g. {look.place / sets[0]}")


def _refuse_shards_below(look: Look) -> None:
    """Raise OptionError for a folder of folders that hold shards."""
    for folder, names in look.below:
        if any(container_of(os.fsdecode(name)) for name in names):
            where = look.place / os.fsdecode(folder)
            raise OptionError(f"{look.place}: its folder {where} holds shards: pass that folder, one set of them at a time")


def _lists_in(look: Look) -> list[str]:
    """Return the lists of samples in a folder, or else in folders of it, by their paths relative to it."""
    held = [os.fsdecode(name) for name in look.files if name.lower() in LIST_NAMES and look.nature is Nature.FOLDER]
    below = (os.path.join(folder, name) for folder, names in look.below for name in names if name.lower() in LIST_NAMES)
    return sorted(held or map(os.fsdecode, below))


def _refuse_list_beside(name: str, evidence: Evidence, look: Look, form: Form) -> None:
    """Raise OptionError for files of samples next to a list of them, and for those of which something has to be said."""
    lists = [] if look.is_stored or form.class_from is not None else _lists_in(look)
    if lists and (name in ("image-folder", "pairs") or (name in _TITLES and evidence.strength is Strength.LIKELY)):
        what = _TITLES.get(name, "images")
        otherwise = "" if evidence.problem else f", or say --from {name} to take the classes from the folders"
        raise OptionError(
            f"{look.place}: holds {what} and {lists[0]}: pass {look.place / lists[0]} to take what it lists{otherwise}"
        )
    if evidence.problem:
        raise OptionError(f"{look.place}: {evidence.problem}")


def _nothing_known(look: Look, target: str | None) -> OptionError:
    return OptionError(_why_unknown(look) + (f"; {DOCUMENTS_ARE}" if target == "tokens" else ""))


_OF_ZARR = frozenset((b"zarr.json", b".zarray", b".zgroup"))


def _why_unknown(look: Look) -> str:
    place = look.place
    if look.nature is Nature.PATTERN:
        shown = ", ".join(os.fsdecode(name) for name in look.files[:3])
        return f"{place}: matches files of no known form ({shown}); a pattern names such as 'train-*.parquet'"
    if look.nature is Nature.FILE:
        if look.suffix == ".json":
            return f"{place}: {coco.why_not(look)}; a manifest is a .csv, or a .jsonl with one object per line"
        if is_image_name(look.name):
            return f"{place}: a single image; pass the folder that holds the images, with a folder for each class"
        return (
            f"{place}: not recognised by its name; pass a folder, a .csv, .tsv, .jsonl, .tar, .zip, .h5, .parquet, .tfrecord,"
            " .arrow or COCO's .json, or choose --from"
        )
    if look.is_stored:
        return (
            f"{place}: no videos, folders of images, tars, archives or Parquet files in it; check the URL, or say --from what it"
            " is (--class-from none for images without labels)"
        )
    if not _OF_ZARR.isdisjoint(look.files):
        return f"{place}: a Zarr array, which is not read: cut the parts that are samples into .npy files, and convert those"
    name = _list_or_annotations(look)
    if name:
        return f"{place}: a folder with {name}: pass {place / name} itself, and --root for the folder of its files"
    return (
        f"{place}: no images, videos, sound, .npy files or shards in it, nor in its folders; check the path, or say --from what"
        " it is"
    )


def _list_or_annotations(look: Look) -> str:
    """Return the name of a list, or of annotations, in a folder; "" if there is none."""
    annotations = (os.fsdecode(name) for name in look.files if name.lower().endswith(b".json"))
    return next(itertools.chain(_lists_in(look), annotations), "")


def _remedy(text: str) -> str:
    """Return advice for notations of paths that other libraries have."""
    if re.search(r"\{[^{}]*\.\.[^{}]*\}", text):
        return f"; braces are not expanded: write a pattern, such as {re.sub(r'{[^{}]*}', '*', text)}"
    return "; check the path"
