"""WebDataset tars written by other tools: every member of a sample becomes a field, named by its suffix.

Tars are read in the order of their names, samples in the order of the tar. Nothing is extracted: a member's name is a key and
a suffix, never a path to write to; links are the files in the tar that they lead to, or a problem of their sample.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from datapipe.codecs.field_values import LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.stored import why_absent
from datapipe.containers.field_names import HEAD_NBYTES, is_audio, is_video
from datapipe.containers.form import Form
from datapipe.containers.forms import AUDIO, VIDEOS
from datapipe.containers.labels import MAX_LABEL_NBYTES, LabelCensus, label_names, label_text, webdataset_number
from datapipe.containers.listing import is_audio_name, is_image_name, is_junk, is_video_name
from datapipe.containers.look import Evidence, Look, Strength
from datapipe.containers.mapped import ByteSource
from datapipe.containers.remote_shards import refuse_unfinished_at
from datapipe.containers.tar.layout import LABEL_SUFFIX, field_of_suffix
from datapipe.containers.tar.members import Member, scan_members
from datapipe.containers.tar.scanner import split_name
from datapipe.core.directories import matching
from datapipe.core.printable import counted, printable
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.listed import ListedSample, Origin, ScanNotes, ScanProblem, SourceFacts, Workspace
from datapipe.index.manifest import MANIFEST_NAME, Manifest, parse_document, read_manifest, refuse_unfinished
from datapipe.index.remote_set import read_manifest_text
from datapipe.sources.archives.members import ArchiveFile, archives_in, objects_at, opened_archive, refuse_compressed
from datapipe.sources.archives.recognise import TAR, find_archives, first_members, kept_shards
from datapipe.sources.fields import Choices, in_order
from datapipe.sources.lists import refuse_class_from
from datapipe.sources.spool import compression_of
from datapipe.stores.location import Location, Place
from datapipe.stores.objects import ListedObject
from datapipe.stores.places import parse_place

_CHOICES = ("image", "mask", "boxes", "text", "json", "array", "bytes", "label", "none")
_MAX_SUFFIXES = 1000  # different suffixes
_LOOKED_AT = 32  # members that tell what a tar holds


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is WebDataset's tars, and whether of videos; None if it is none. Those of sound are rather sound."""
    why = find_archives(look).get(TAR)
    if why is None:
        return None
    held = media_held(look)
    return Evidence(why, Strength.LIKELY if held == AUDIO else Strength.CERTAIN, kind="clips" if held == VIDEOS else "")


def media_held(look: Look) -> str:
    """Return VIDEOS or AUDIO if the tars of a place hold these and no images, by the first members of the first; else ""."""
    return look.once("media in tars", lambda: _media_held(look))


def _media_held(look: Look) -> str:
    kept = kept_shards(look)
    if kept is not None:
        return VIDEOS if any(map(is_video, kept.fields)) else AUDIO if any(map(is_audio, kept.fields)) else ""
    first = look.first_shard(TAR) if TAR in find_archives(look) else None
    if first is None or compression_of(os.fsencode(first)) is not None:
        return ""
    names = first_members(look, parse_place(first))[:_LOOKED_AT]
    if any(map(is_image_name, names)):
        return ""
    return VIDEOS if any(map(is_video_name, names)) else AUDIO if any(map(is_audio_name, names)) else ""


@dataclass(frozen=True, slots=True)
class _Group:
    """Consecutive members of one key."""

    key: bytes
    members: list[tuple[str, Member]]  # by suffix, in order
    is_again: bool  # there were earlier members of that key


class TarSource:
    """A tar, or the tars of a folder."""

    def __init__(self, place: Place, form: Form) -> None:
        """Open the tars. For a converted dataset, kinds of fields and names of classes come from its manifest.

        Raises MissingDataError or StorageError if there are no tars, UnfinishedError for an unfinished dataset.
        """
        refuse_class_from(form)
        self.root: Place
        self._objects: dict[bytes, ListedObject] = {}  # of a store, by name
        converted: Manifest | None = None
        if isinstance(place, Location):
            self.root, self._objects = objects_at(place, _is_tar, what="tars")
            self._names = list(self._objects)
            refuse_compressed(self.root, self._names)
            refuse_unfinished_at(self.root)
            text = read_manifest_text(self.root)
            converted = None if text is None else parse_document(text, str(self.root / MANIFEST_NAME))
        else:
            source = place
            self.root = source if source.is_dir() else source.parent
            if source.is_dir():
                self._names = archives_in(source, _is_tar, "no .tar files; pass a tar or the folder that holds them")
            elif source.exists():
                self._names = [os.fsencode(source.name)]
            else:
                self._names = _matching(source)
            refuse_unfinished(self.root)
            if (self.root / MANIFEST_NAME).is_file():
                converted = read_manifest(self.root)
        self._kinds = {} if converted is None else {spec.name: spec.kind for spec in converted.fields}
        self._classes = None if converted is None or form.class_map else converted.classes
        self._choices = Choices(form.fields)
        self._fields: dict[str, FieldSpec | None] = {}  # by suffix
        self._census = LabelCensus(form.class_map, number_of=webdataset_number)

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        place = 0
        for name in self._names:
            path = os.fsencode(str(self.root)) + b"/" + name
            with opened_archive(self.root, name, space, form="a tar", found=self._objects.get(name)) as (data, file):
                groups = _groups(data, os.fsdecode(path), notes)
                while group := self._next(groups, name, path, notes):
                    yield self._listed(place, name, group, data, file)
                    place += 1

    @staticmethod
    def _next(groups: Iterator[_Group], name: bytes, path: bytes, notes: ScanNotes) -> _Group | None:
        """Return the next sample; None at the end, and where the tar is damaged, which is noted."""
        try:
            return next(groups, None)
        except FormatError as exc:
            reason = str(exc).removeprefix(f"{printable(os.fsdecode(path))}: ")
            notes.problems.append(ScanProblem(name, f"{reason}; samples after that are missing", is_damaged=True))
            return None

    def facts(self) -> SourceFacts:
        self._choices.refuse_unmet(str(self.root), self._fields)
        fields = {field for field in self._fields.values() if field is not None}
        for field in fields:
            suffixes = sorted(suffix for suffix, other in self._fields.items() if other is not None and other.name == field.name)
            if any(self._fields[suffix] != field for suffix in suffixes):
                raise OptionError(
                    f"{self.root}: the members {' and '.join(suffixes)} would both be the field {field.name!r};"
                    f" leave one out, such as --field {suffixes[-1]}=none"
                )
        has_labels = LABEL_FIELD in fields
        return SourceFacts(
            fields=in_order(fields) if fields else (),
            classes=(self._census.classes() or self._classes) if has_labels else None,
            labels=self._census.labels() if has_labels else None,
            nothing=f"no samples in {counted(len(self._names), 'tar')}",
            remedy="samples are members named KEY.SUFFIX",
        )

    def _listed(self, place: int, name: bytes, group: _Group, data: ByteSource, file: ArchiveFile) -> ListedSample:
        origins: dict[str, Origin] = {}
        problem = "its members are not consecutive: some were earlier; sort the tar by name" if group.is_again else None
        label, met = NO_LABEL, set()
        suffixes = [suffix for suffix, _ in group.members]
        labels = next(iter(label_names("tar", suffixes)), None)
        for suffix, member in group.members:
            field = self._field_of(suffix, member, data, are_labels=suffix == labels)
            if field is None:
                continue
            if field.name in met:
                problem = problem or _two_for_one(field, [suffix for suffix in suffixes if self._fields.get(suffix) == field])
            met.add(field.name)
            reason = why_absent(member.codec) if member.codec else None
            if reason is not None:
                problem = problem or f"its {suffix} {reason}"
            elif field == LABEL_FIELD:
                text = member.short_value(data, at_most=MAX_LABEL_NBYTES)
                try:
                    said = label_text(text)
                except UnicodeDecodeError:
                    problem = problem or f"its label {text[:20]!r} is not text"
                    continue
                label = self._census.number(said) if said else NO_LABEL
            else:
                origins[field.name] = file.origin(member.offset, member.nbytes, member.codec)
        return ListedSample(name, group.key, place, label, origins, problem=problem)

    def _field_of(self, suffix: str, member: Member, data: ByteSource, *, are_labels: bool) -> FieldSpec | None:
        """Return the field of members with a suffix. `are_labels`: whether they are, unless the user says what they are."""
        if suffix not in self._fields:
            if len(self._fields) >= _MAX_SUFFIXES:
                raise OptionError(
                    f"{self.root}: members of more than {_MAX_SUFFIXES} suffixes, such as {suffix!r}; have the keys dots in them?"
                )
            choice = self._choices.take(suffix, _CHOICES)
            if choice is None and suffix.endswith(f".{LABEL_SUFFIX}"):
                raise OptionError(
                    f"{self.root}: has members such as {os.fsdecode(member.name)!r}, and a key ends at the first dot of a name:"
                    f" if keys have dots, pack the files under names without; if not, pass --field {suffix}=label or =none"
                )
            known = self._kinds.get(suffix.rpartition(".")[0])
            head = member.head(data, HEAD_NBYTES)
            self._fields[suffix] = _field_of(suffix, choice or (known and known.value), head, are_labels=are_labels)
        return self._fields[suffix]


def _field_of(suffix: str, choice: str | None, head: bytes, *, are_labels: bool) -> FieldSpec | None:
    """Return the field of members with a suffix; None for those left out. `head`: the first bytes of one."""
    if choice == "none":
        return None
    if choice == "label" or (choice is None and are_labels):
        return LABEL_FIELD
    return field_of_suffix(suffix, head, FieldKind(choice) if choice else None)


def _two_for_one(field: FieldSpec, suffixes: list[str]) -> str:
    shown = " and ".join(suffixes) if len(set(suffixes)) > 1 else f"two members {suffixes[0]}"
    remedy = f"say what they are, such as --field {suffixes[-1]}=mask, or leave one out with =none"
    return f"has {shown} for the field {field.name!r}" + (f"; {remedy}" if len(set(suffixes)) > 1 else "")


def _groups(data: ByteSource, where: str, notes: ScanNotes) -> Iterator[_Group]:
    """Yield the samples of a tar. Raises FormatError where it does not parse; the current sample is then dropped."""
    done: set[bytes] = set()
    for key, group in itertools.groupby(_named(data, where, notes), key=operator.itemgetter(0)):
        yield _Group(key, [(suffix, member) for _, suffix, member in group], key in done)
        done.add(key)


def _named(data: ByteSource, where: str, notes: ScanNotes) -> Iterator[tuple[bytes, str, Member]]:
    """Yield the members of samples, each with its key and suffix; `notes` counts the others."""
    for member in scan_members(data, where):
        if (split := split_name(member.name)) is not None:
            yield (*split, member)
        elif is_junk(member.name.rpartition(b"/")[2]):
            notes.num_junk += 1
        else:
            notes.num_ignored += 1


def _matching(pattern: Path) -> list[bytes]:
    """Return the sorted names of the tars that a pattern in one directory matches. Raises MissingDataError if there are none."""
    found = [name for name in map(os.fsencode, matching(str(pattern))) if _is_tar(name)]
    if not found:
        raise MissingDataError(f"{pattern}: no such file; check the path of the source")
    if {os.path.dirname(name) for name in found} != {os.fsencode(pattern.parent)}:
        raise OptionError(f"{pattern}: matches tars in several directories; convert those of one at a time")
    return [os.path.basename(name) for name in found]


def _is_tar(name: bytes) -> bool:
    return name.lower().endswith(b".tar") or compression_of(name) is not None


open_source = TarSource
