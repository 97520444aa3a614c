"""COCO: images with the boxes of an annotation file, and other members of the annotations.

Samples are sorted by the id of their image, as in torchvision's `CocoDetection`. Boxes become `datapipe`'s kind `boxes` (see
`codecs/boxes`); their labels are positions in the list of categories, sorted by id. Any other member of an
annotation is kept on request as a JSON list, in the order of the boxes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.containers.field_names import field_name
from datapipe.containers.form import Form
from datapipe.containers.labels import place_labels
from datapipe.containers.look import Evidence, Look, Nature
from datapipe.core.database import open_scratch
from datapipe.errors import FormatError, OptionError
from datapipe.index.listed import ListedSample, Origin, ScanNotes, SourceFacts, Workspace, divide
from datapipe.sources.fields import in_order, is_finite
from datapipe.sources.json_stream import array_elements
from datapipe.sources.lists import refuse_class_from
from datapipe.sources.lists.named_files import list_and_root, open_files, refuse_missing_root, root_of
from datapipe.stores.location import Place

BOXES_FIELD = FieldSpec("boxes", FieldKind.BOXES)
IMAGE_ID_FIELD = FieldSpec("image_id", FieldKind.JSON)
_ARRAYS = frozenset(("images", "annotations", "categories"))
_MAX_SIDE = (1 << 31) - 1  # pixels


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a file is COCO's; None if it is not."""
    return Evidence("it has `images` and `annotations`") if look.name.lower().endswith(b".json") and not why_not(look) else None


def why_not(look: Look) -> str:
    """Return why a JSON file is not COCO's; "" if it is."""
    if look.nature is not Nature.FILE or not isinstance(look.place, Path):
        return "not read from stores"
    place = look.place
    return look.once("why not coco", lambda: _why_not(place))


def _why_not(path: Path) -> str:
    try:
        is_coco = next(array_elements(path, frozenset(("images", "annotations"))), None) is not None
    except FormatError as exc:
        return f"not COCO's JSON: {str(exc).removeprefix(f'{path}: ')}"
    return "" if is_coco else "JSON, but not COCO's"


class _Image(NamedTuple):
    """An image as the file lists it."""

    id: int
    name: str
    height: int | None
    width: int | None


class CocoSource:
    """An annotation file and a folder of images."""

    def __init__(self, place: Place, form: Form) -> None:
        """Raises MissingDataError if the folder does not exist, OptionError for choices that are not possible."""
        self._path, self._place = list_and_root(place, form, what="the annotation file")
        self.root = root_of(self._place)
        refuse_class_from(form)
        self._class_map = form.class_map
        for choice in form.fields:
            choice.refuse_unless(("json",))
        self._members = [choice.name for choice in form.fields]
        refuse_missing_root(self._place)
        self._met: set[str] = set()  # members of annotations
        self._classes: tuple[str, ...] = ()
        self._label_of: dict[int, int] = {}  # by category id
        self._has_boxes = False
        self._has_labels = False  # each image has one annotation, of a category and without a box
        self._num_crowds = self._num_strays = 0

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        with open_scratch(space.scratch, "coco") as connection, open_files(self._place, self._path, space, notes) as self._files:
            connection.execute("CREATE TABLE images (id INTEGER PRIMARY KEY, name TEXT, height INTEGER, width INTEGER)")
            connection.execute("CREATE TABLE annotations (image INTEGER, number INTEGER, value TEXT)")
            self._read(connection)
            self._check_members()
            connection.execute("CREATE INDEX by_image ON annotations (image, number)")
            self._has_labels = self._are_labels(connection)
            strays = "SELECT count(*) FROM annotations WHERE image NOT IN (SELECT id FROM images)"
            self._num_strays = connection.execute(strays).fetchone()[0]
            rows = connection.execute(
                "SELECT id, name, height, width, value FROM images LEFT JOIN annotations ON image = id ORDER BY id, number"
            )
            for place, (head, group) in enumerate(groupby(rows, key=lambda row: _Image(*row[:4]))):
                yield self._listed(place, head, [json.loads(row[4]) for row in group if row[4] is not None])
            self._files.refuse_wrong_root()

    def facts(self) -> SourceFacts:
        warnings = []
        if self._num_crowds:
            warnings.append(f"{self._num_crowds} regions of crowds left out (iscrowd; --field iscrowd=json keeps them)")
        if self._num_strays:
            warnings.append(f"{self._num_strays} annotations of images that the file does not list left out")
        if not self._has_boxes and not self._has_labels and "category_id" in self._met - {*self._members}:
            warnings.append("categories left out: images have several, without boxes; --field category_id=json keeps them")
        members = [FieldSpec(field_name(name), FieldKind.JSON) for name in self._members]
        boxes = [BOXES_FIELD] if self._has_boxes else []
        return SourceFacts(
            fields=in_order([IMAGE_FIELD, IMAGE_ID_FIELD, *boxes, *members, *([LABEL_FIELD] if self._has_labels else [])]),
            classes=self._classes or None,
            warnings=tuple(warnings),
            nothing="lists no images",
            remedy="an annotation file has `images`, `annotations` and `categories`",
        )

    # -- reading ------------------------------------------------------------------------------------

    def _read(self, connection: sqlite3.Connection) -> None:
        announced: set[str] = set()
        categories: list[tuple[int, str]] = []
        for number, (key, value) in enumerate(array_elements(self._path, _ARRAYS)):
            if value is None and key not in announced:
                announced.add(key)
            elif not isinstance(value, dict):
                raise FormatError(f"{self._path}: `{key}` holds {value!r:.40}, expected objects")
            elif key == "categories":
                categories.append((self._whole(value, "id", "category"), self._text(value, "name", "category")))
            elif key == "images":
                self._insert_image(connection, value)
            else:
                self._insert_annotation(connection, number, value)
        missing = {"images", "annotations"} - announced
        if missing:
            raise FormatError(f"{self._path}: has no {' and no '.join(sorted(missing))}: not a COCO annotation file")
        self._place_categories(categories)

    def _insert_image(self, connection: sqlite3.Connection, value: dict[str, Any]) -> None:
        image = self._whole(value, "id", "image")
        name = self._text(value, "file_name", f"image {image}")
        size = [self._side(value, name, image) for name in ("height", "width")]
        size = [None, None] if None in size else size
        try:
            connection.execute("INSERT INTO images VALUES (?, ?, ?, ?)", (image, name, *size))
        except sqlite3.IntegrityError as exc:
            raise FormatError(f"{self._path}: two images have the id {image}; give each its own") from exc

    def _side(self, value: dict[str, Any], name: str, image: int) -> int | None:
        """Return the height or width of an image, by which it is checked; None if the file does not say it."""
        side = value.get(name)
        if isinstance(side, float) and side.is_integer():
            side = int(side)
        if side is None or (type(side) is int and 0 < side <= _MAX_SIDE):
            return side
        raise FormatError(
            f"{self._path}: {name} of image {image} is {side!r:.40}, expected 1 to {_MAX_SIDE:,} pixels; correct it"
        )

    def _insert_annotation(self, connection: sqlite3.Connection, number: int, value: dict[str, Any]) -> None:
        image = self._whole(value, "image_id", "annotation")
        self._met.update(value)
        self._has_boxes = self._has_boxes or "bbox" in value
        if self._is_crowd(value) and "iscrowd" not in self._members:
            self._num_crowds += 1
            return
        kept = {name: value[name] for name in ("id", "bbox", "category_id", *self._members) if name in value}
        connection.execute("INSERT INTO annotations VALUES (?, ?, ?)", (image, number, json.dumps(kept)))

    def _place_categories(self, categories: list[tuple[int, str]]) -> None:
        categories.sort()
        ids, names = [number for number, _ in categories], [name for _, name in categories]
        for what, values in (("the id", ids), ("the name", names)):
            if len(set(values)) < len(values):
                twice = max(values, key=values.count)  # type: ignore[arg-type]
                raise FormatError(f"{self._path}: two categories have {what} {twice!r}; give each its own")
        labels, self._classes = place_labels(names, self._class_map, "categories")
        self._label_of = {number: labels[name] for number, name in categories}

    def _are_labels(self, connection: sqlite3.Connection) -> bool:
        """Return True if annotations are classes of images, as iNaturalist's: one an image, with a category and no box."""
        if self._has_boxes or "category_id" not in self._met or not self._classes:
            return False
        several = "SELECT 1 FROM annotations GROUP BY image HAVING count(*) > 1 LIMIT 1"
        return connection.execute(several).fetchone() is None

    def _check_members(self) -> None:
        unmet = [name for name in self._members if name not in self._met]
        if unmet:
            has = ", ".join(sorted(self._met)) or "nothing"
            raise OptionError(f"{self._path}: no annotation has {unmet[0]!r} (they have: {has}); check --field")

    def _whole(self, value: dict[str, Any], name: str, what: str) -> int:
        number = _whole_number(value.get(name))
        if number is None:
            raise FormatError(
                f"{self._path}: `{name}` of {what} {value!r:.60} is {value.get(name)!r:.30}, expected a whole number"
            )
        return number

    def _is_crowd(self, annotation: dict[str, Any]) -> bool:
        crowd = annotation.get("iscrowd") or 0
        number = crowd if isinstance(crowd, bool) else _whole_number(crowd)
        if number not in (0, 1):
            raise FormatError(f"{self._path}: `iscrowd` of annotation {annotation!r:.60} is {crowd!r:.30}, expected 0 or 1")
        return number == 1

    def _text(self, value: dict[str, Any], name: str, what: str) -> str:
        text = value.get(name)
        if not isinstance(text, str) or not text:
            raise FormatError(f"{self._path}: `{name}` of {what} is {text!r:.30}, expected a text")
        return text

    # -- listing ------------------------------------------------------------------------------------

    def _listed(self, place: int, image: _Image, annotations: list[dict[str, Any]]) -> ListedSample:
        path, origin, problem = self._files.find(image.name)
        values = {IMAGE_ID_FIELD.name: str(image.id)}
        if self._has_boxes:
            rows = []
            for annotation in annotations:
                row, why = self._box(annotation)
                rows.append(row)
                problem = problem or why
            values[BOXES_FIELD.name] = json.dumps(rows)
        for member in self._members:
            listed = [annotation.get(member) for annotation in annotations]
            values[field_name(member)] = json.dumps(listed, ensure_ascii=False)
        label = NO_LABEL
        if self._has_labels:
            category = annotations[0].get("category_id") if annotations else None
            found = self._label(category)
            label = NO_LABEL if found is None else found
            if found is None:
                problem = problem or f"its category {category!r:.30} is none of the file's categories"
        directory, file = divide(path or b"image %d" % image.id)
        origins: dict[str, Origin] = {} if origin is None else {IMAGE_FIELD.name: origin}
        size = None if image.height is None or image.width is None else (image.height, image.width)
        return ListedSample(directory, file, place, label, origins=origins, values=values, size=size, problem=problem)

    def _box(self, annotation: dict[str, Any]) -> tuple[list[float], str | None]:
        """Return ([x1, y1, x2, y2, label], problem) for COCO's [x, y, width, height]."""
        where, box, category = f"annotation {annotation.get('id')}", annotation.get("bbox"), annotation.get("category_id")
        is_box = isinstance(box, list) and len(box) == 4 and all(is_finite(value) for value in box)
        if not is_box or box[2] < 0 or box[3] < 0:  # type: ignore[index]
            return [], f"{where}: bbox is {box!r:.60}, expected [x, y, width, height]"
        label = self._label(category)
        if label is None:
            return [], f"{where}: its category {category!r:.30} is none of the file's categories"
        x, y, width, height = box  # type: ignore[misc]
        return [x, y, x + width, y + height, label], None

    def _label(self, category: object) -> int | None:
        number = _whole_number(category)
        return None if number is None else self._label_of.get(number)


def _whole_number(value: object) -> int | None:
    """Return an id, which tools also write as a text, "7", or as 7.0; None if it is no whole number of 64 bits."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 63 or value != int(value):
        return None
    return int(value)


open_source = CocoSource
