"""Files that belong together by their names: an image and its mask, caption or description.

Either each folder of the source holds one field (`imgs/a.jpg`, `masks/a.png`, `captions/a.txt`), or the files are side by
side (`a.jpg`, `a_mask.png` or `a.png`, `a.txt`, `a.json`, `a.npy`). A sample is all files of one stem; the set has every
field that some sample has, and a sample that lacks one is bad.
"""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.field_names import field_name, is_mask_name
from datapipe.containers.form import ClassFrom, Form, on_disk
from datapipe.containers.listing import NO_FOLDER, ListedFile, is_image_name, list_folders, walk
from datapipe.containers.look import MAX_NAMES, Evidence, Look, Nature
from datapipe.core.database import open_scratch
from datapipe.errors import OptionError
from datapipe.index.listed import ListedSample, Origin, ScanNotes, SourceFacts, Workspace, divide, join
from datapipe.sources.fields import Choices, FolderLabels, in_order
from datapipe.stores.location import Place

_CHOICES = ("image", "mask", "boxes", "text", "json", "array", "bytes", "none")
_NO_FOLDER = "lies in no folder that names its class; move it into one, or leave --class-from out"
_COLUMNS = "directory BLOB, stem BLOB, field TEXT, kind TEXT, path BLOB, nbytes INTEGER, mtime_ns INTEGER, problem TEXT"
# A file named like another's mask is one if the other file exists. A mask belongs first to the image of its own name.
_RESOLVE = """
    INSERT INTO paired SELECT directory,
        CASE WHEN is_mask THEN other_stem ELSE stem END,
        CASE WHEN is_mask THEN 'mask' ELSE field END,
        CASE WHEN is_mask THEN 'mask' ELSE kind END,
        path, nbytes, mtime_ns, problem
    FROM (
        SELECT *, other_stem IS NOT NULL AND CASE field
            WHEN 'image' THEN EXISTS (SELECT 1 FROM files AS image WHERE {is_image} AND image.stem = files.other_stem)
            ELSE NOT EXISTS (SELECT 1 FROM files AS image WHERE {is_image} AND image.stem = files.stem)
        END AS is_mask FROM files
    )
""".format(is_image="image.directory = files.directory AND image.field = 'image'")
_Row = tuple[bytes, bytes, str, str, bytes, int, int, str | None]


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why the files of a folder belong together by name; None if they do not."""
    if roles := find_role_folders(look, form):
        return Evidence(f"it has the folders {', '.join(f'{os.fsdecode(folder)}/' for folder in roles)}")
    name = find_partner(look)
    return Evidence(f"images with files of the same name beside, such as {os.fsdecode(name)}") if name else None


def find_role_folders(look: Look, form: Form) -> dict[bytes, str]:
    """Return the field of each folder of a place that holds one field of every sample; empty if it is no such place.

    Folders of images alone, none of which is called masks, are classes.
    """
    if look.nature is not Nature.FOLDER or look.is_stored or form.class_from not in (None, ClassFrom.NONE):
        return {}
    return look.once("role folders", lambda: _roles_of(look))


def _roles_of(look: Look) -> dict[bytes, str]:
    roles = role_folders([*look.folders])
    with_images = {folder.partition(b"/")[0] for folder, names in look.below if any(map(is_image_name, names))}
    are_classes = MASK not in roles.values() and roles.keys() <= with_images
    return roles if len(roles) > 1 and not are_classes and _are_paired(look.place, roles) else {}


def _are_paired(place: Place, roles: dict[bytes, str]) -> bool:
    """Return True if a file of another folder has a partner among the first images, as those of classes have not."""
    assert isinstance(place, Path)
    stems: dict[bool, set[tuple[bytes, bytes]]] = {True: set(), False: set()}
    for folder in roles:
        files = walk(place, folder, ScanNotes(), is_pair_name)
        for placed in (place_file(file, roles) for file in itertools.islice(files, MAX_NAMES)):
            stems[placed.field == IMAGE] |= {(placed.directory, stem) for stem in (placed.stem, placed.other_stem) if stem}
    return not stems[True].isdisjoint(stems[False])


def find_partner(look: Look) -> bytes:
    """Return the name of a file that belongs to an image beside it, of those that were seen; b"" if there is none."""
    if look.nature is not Nature.FOLDER or look.is_stored:
        return b""
    return look.once(
        "partner", lambda: next(filter(None, map(_partner_among, (look.files, *(one for _, one in look.below)))), b"")
    )


def _partner_among(names: tuple[bytes, ...]) -> bytes:
    """Return the first name of a folder that is that of a partner; b"" if there is none."""
    lowered = [name.lower() for name in names]
    if not any(name.endswith(_ENDS) or b"_mask." in name or b"_seg." in name for name in lowered):
        return b""  # as in most folders, which are large
    images: dict[bytes, list[bytes]] = {}
    for name in filter(is_image_name, names):
        images.setdefault(os.path.splitext(name)[0], []).append(name)
    doubled = [min(found) for found in images.values() if len(found) > 1 and any(one.lower().endswith(b".png") for one in found)]
    endings = ((stem, ending) for stem in images for ending in (b"_mask", b"_seg") if stem.endswith(ending))
    masks = [images[stem][0] for stem, ending in endings if stem.removesuffix(ending) in images]
    others = [name for name in names if os.path.splitext(name)[1].lower() in KINDS and os.path.splitext(name)[0] in images]
    return min([*doubled, *masks, *others], default=b"")


class PairedFiles:
    """A folder of files that belong together by name."""

    def __init__(self, place: Place, form: Form) -> None:
        """Raises MissingDataError or StorageError for a folder that cannot be read."""
        self.root = on_disk(place, form)
        self._choices = Choices(form.fields)
        self._roles = role_folders(list_folders(self.root, otherwise=NO_FOLDER))
        self._fields: dict[str, FieldKind] = {}
        self._labels = FolderLabels(form, form.class_from or ClassFrom.NONE, no_folder=_NO_FOLDER)

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        with open_scratch(space.scratch, "pairs") as connection:
            connection.execute(f"CREATE TABLE files ({_COLUMNS}, other_stem BLOB)")
            connection.execute(f"CREATE TABLE paired ({_COLUMNS})")
            insert = f"INSERT INTO files VALUES ({', '.join('?' * 9)})"
            connection.executemany(insert, (self._row(file) for file in walk(self.root, b"", notes, is_pair_name)))
            connection.execute("CREATE INDEX by_stem ON files (directory, stem, field)")
            connection.execute(_RESOLVE)
            self._fields = self._choose_fields(connection)
            order = "directory, stem, field = 'mask', field, path"
            rows: Iterator[_Row] = connection.execute(f"SELECT * FROM paired ORDER BY {order}")
            for place, (_, group) in enumerate(groupby(rows, key=lambda row: row[:2])):
                members = [row for row in _with_png_as_mask(list(group)) if row[2] in self._fields]
                if members:
                    yield self._listed(place, members)

    def facts(self) -> SourceFacts:
        if self._fields and len(self._fields) < 2:
            raise OptionError(
                f"{self.root}: nothing to pair, there are files of one kind only ({', '.join(self._fields)});"
                " convert them with --from image-folder"
            )
        fields = [FieldSpec(name, kind) for name, kind in self._fields.items()]
        return SourceFacts(
            fields=in_order([*fields, *self._labels.fields]) if fields else (),
            classes=self._labels.classes(),
            labels=self._labels.labels(),
            nothing="no files to pair",
            remedy="images are recognised by suffix (.jpg, .png, ...), their partners by .txt, .json, .npy or as masks",
        )

    def _row(self, file: ListedFile) -> tuple[object, ...]:
        placed: PairedFile = place_file(file, self._roles)
        path = join(file.directory, file.name)
        details = (path, file.nbytes, file.mtime_ns, file.problem, placed.other_stem)
        return (placed.directory, placed.stem, placed.field, placed.kind.value, *details)

    def _choose_fields(self, connection: sqlite3.Connection) -> dict[str, FieldKind]:
        """Return the existing fields, without those that are left out."""
        fields: dict[str, FieldKind] = {}
        found = connection.execute("SELECT DISTINCT field, kind FROM paired ORDER BY field, kind").fetchall()
        doubled = connection.execute(
            "SELECT 1 FROM paired WHERE field = 'image' GROUP BY directory, stem HAVING count(*) = 2"
            " AND sum(lower(CAST(path AS TEXT)) LIKE '%.png') = 1 LIMIT 1"
        ).fetchone()
        if doubled and (MASK, FieldKind.MASK.value) not in found:
            found.append((MASK, FieldKind.MASK.value))
        for name, group in groupby(sorted(found), key=lambda row: row[0]):
            kinds = [FieldKind(kind) for _, kind in group]
            choice = self._choices.take(name, _CHOICES)
            if choice == "none":
                continue
            if choice is None and len(kinds) > 1:
                shown = " and ".join(kind.value for kind in kinds)
                raise OptionError(
                    f"{self.root}: files of {name!r} are {shown} by their suffixes; say which with --field {name}=KIND"
                )
            fields[name] = FieldKind(choice) if choice else kinds[0]
        self._choices.refuse_unmet(str(self.root), {name for name, _ in found})
        return fields

    def _listed(self, place: int, rows: list[_Row]) -> ListedSample:
        problem: str | None = None
        origins: dict[str, Origin] = {}
        for _, _, field, _, path, nbytes, mtime_ns, why in rows:
            if field in origins:
                shown = f"{os.fsdecode(origins[field].path)} and {os.fsdecode(path)}"
                problem = problem or f"has two files for the field {field!r}: {shown}"
                continue
            origins[field] = Origin.whole(path, nbytes, mtime_ns)
            if why is not None:
                problem = problem or (why if field == IMAGE else f"{os.fsdecode(path)}: {why}")
        label, why = self._labels.label_of(rows[0][0])
        directory, name = divide((origins.get(IMAGE) or origins[rows[0][2]]).path)
        return ListedSample(directory, name, place, label, origins, problem=problem or why)


def _with_png_as_mask(rows: list[_Row]) -> list[_Row]:
    """Treat the .png of two images with one stem as the mask, if only one is a .png and there is no mask."""
    images = [row for row in rows if row[2] == IMAGE]
    pngs = [row for row in images if row[4].lower().endswith(b".png")]
    if len(images) != 2 or len(pngs) != 1 or any(row[2] == MASK for row in rows):
        return rows
    mask = pngs[0]
    return [row for row in rows if row is not mask] + [(*mask[:2], MASK, FieldKind.MASK.value, *mask[4:])]


open_source = PairedFiles


IMAGE = "image"
MASK = "mask"
KINDS = {b".txt": FieldKind.TEXT, b".json": FieldKind.JSON, b".npy": FieldKind.ARRAY}  # of files that are not images, by suffix
_ENDS = (b".png", *KINDS)  # of names, one of which a partner has unless it is called a mask
_BESIDE = {FieldKind.TEXT: "txt", FieldKind.JSON: "json", FieldKind.ARRAY: "array"}  # the field of such a file next to an image
_IMAGE_FOLDERS = frozenset(
    (b"images", b"image", b"imgs", b"img", b"jpegimages", b"photos", b"pictures", b"inputs", b"input", b"rgb")
)
_MASK_FOLDERS = frozenset((b"gt", b"gts", b"groundtruth", b"ground_truth", b"labels", b"label", b"targets", b"target"))
_MASK_ENDING = re.compile(rb"(?i)(.+)[_-](masks?|seg|segmentation|labels?|gt|matte)")


@dataclass(frozen=True, slots=True)
class PairedFile:
    """A file and the sample that it belongs to."""

    directory: bytes  # of the sample: relative to the root, or to the folder of its role
    stem: bytes  # of the sample
    field: str  # IMAGE, MASK, or a name from the folder or the suffix
    kind: FieldKind
    other_stem: bytes | None  # the image it may mask: if there is such an image (IMAGE), if there is none of `stem` (MASK)


def is_pair_name(name: bytes) -> bool:
    """Return True if a file of this name may be part of a sample."""
    return is_image_name(name) or os.path.splitext(name)[1].lower() in KINDS


def role_folders(folders: list[bytes]) -> dict[bytes, str]:
    """Return field by folder, if each folder of a source holds one field and one of them the images; else empty."""
    images = [folder for folder in folders if folder.lower() in _IMAGE_FOLDERS]
    if len(images) != 1 or len(folders) < 2:
        return {}
    return {folder: IMAGE if folder == images[0] else _field_of_folder(folder) for folder in folders}


def _field_of_folder(folder: bytes) -> str:
    name = os.fsdecode(folder)
    return MASK if folder.lower() in _MASK_FOLDERS or is_mask_name(name) else field_name(name)


def place_file(file: ListedFile, roles: dict[bytes, str]) -> PairedFile:
    """Return the sample and field of a file; `roles` from `role_folders`."""
    stem, suffix = os.path.splitext(file.name)
    top, _, below = file.directory.partition(b"/")
    role, directory = (roles.get(top), below) if roles else (None, file.directory)
    ending = _MASK_ENDING.fullmatch(stem)
    masked = ending[1] if ending else None
    if is_image_name(file.name):
        if role in (None, IMAGE):
            return PairedFile(directory, stem, IMAGE, FieldKind.IMAGE, None if role else masked)
        return PairedFile(
            directory, stem, role, FieldKind.MASK if role == MASK else FieldKind.IMAGE, masked if role == MASK else None
        )
    kind = KINDS[suffix.lower()]
    if role in (None, IMAGE):
        return PairedFile(directory, stem, _BESIDE[kind], kind, None)
    if role == MASK and kind is not FieldKind.ARRAY:  # YOLO and others keep texts in a folder named "labels"
        role = field_name(os.fsdecode(top))
    return PairedFile(directory, stem, role, FieldKind.MASK if role == MASK else kind, masked if role == MASK else None)
