"""Videos or recordings, or parts of them in seconds, as samples of a conversion, in the order of a list."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from datapipe.codecs.field_values import LABEL_FIELD, NO_LABEL, FieldSpec
from datapipe.containers.form import Form
from datapipe.containers.labels import place_labels
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.listed import ListedSample, Origin, ScanNotes, SourceFacts, Workspace, divide
from datapipe.sources.fields import in_order
from datapipe.sources.file_tree import FileKind
from datapipe.sources.lists.named_files import FileLookup, NamedFiles
from datapipe.sources.lists.parts import ListedParts
from datapipe.stores.location import Location, Place
from datapipe.stores.places import parse_location
from datapipe.stores.random_access import pin_each, pinned_object

_PART = "part, in seconds"  # of a sample's values, as no field is called: JSON [start, end]; null: up to the end

# Returns the range of bytes (from, up to) of a file that a part of it needs, or why there is none. The arguments: the path, where
# the file lies, and the seconds at which the part begins and ends.
Locate = Callable[[str, Origin, float, float], tuple[int, int] | str]


class PartsSource:
    """The files that a list names, or parts of them. See `Source`."""

    def __init__(
        self,
        root: Place,
        listed_in: Path | str,
        parts: ListedParts,
        form: Form,
        kind: FileKind,
        *,
        locate: Locate,
        text: FieldSpec | None = None,
    ) -> None:
        """`root`: where all files lie, a folder or a prefix in a store. `text`: the field of what is said, if the list says that.

        Raises OptionError for a map of classes that does not fit.
        """
        self.root = root
        self._listed_in, self._parts, self._kind, self._locate = listed_in, parts, kind, locate
        self._text = None if parts.texts is None else text
        self._labels: dict[int, int] = {}
        self._classes = parts.classes
        if parts.classes is not None:
            labels, self._classes = place_labels(parts.classes, form.class_map, "classes")
            self._labels = {number: labels[name] for number, name in enumerate(parts.classes)}
        elif form.class_map is not None:
            raise OptionError(f"--class-map {form.class_map}: {listed_in} names no classes; leave it out")

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        files, parts = self._files(notes), self._parts
        labels = None if parts.labels is None else parts.labels.tolist()
        spans = zip(parts.file.tolist(), parts.start.tolist(), parts.end.tolist(), strict=True)
        for number, (file, start, end) in enumerate(spans):
            text = parts.paths[file]
            path, origin, problem = files.find(text)
            directory, name = divide(path or os.fsencode(text))
            label = NO_LABEL if labels is None else self._labels.get(labels[number], labels[number])
            origins = {} if origin is None else {self._kind.field.name: origin}
            values = {}
            if self._text is not None and parts.texts is not None:
                values[self._text.name] = parts.texts[number]
            sample = ListedSample(directory, name, number, label, origins, values, problem=problem)
            is_whole = origin is None or (not start and math.isinf(end))
            yield sample if is_whole else self._part(sample, start, end)
        files.refuse_wrong_root()

    def facts(self) -> SourceFacts:
        fields = [self._kind.field, *([] if self._text is None else [self._text])]
        if self._parts.labels is not None:
            fields.append(LABEL_FIELD)
        return SourceFacts(in_order(fields), self._classes, nothing=f"no {self._kind.plural}")

    def _files(self, notes: ScanNotes) -> FileLookup:
        if isinstance(self.root, Location):
            pin_each(self._parts.paths)
            return _StoredFiles(self.root)
        return NamedFiles(self.root, Path(self._listed_in), notes)

    def _part(self, sample: ListedSample, start: float, end: float) -> ListedSample:
        """Return a sample that is a part of a file: the range of bytes that it needs."""
        ((field, origin),) = sample.origins.items()
        shown = f"{start:g} s to the end" if math.isinf(end) else f"{start:g} to {end:g} s"
        sample = sample._replace(name=sample.name + f", {shown}".encode())
        found = self._locate(str(self.root / os.fsdecode(origin.path)), origin, start, end)
        if isinstance(found, str):
            return sample._replace(origins={}, problem=found)
        span = json.dumps([start, None if math.isinf(end) else end])
        origins = {field: origin._replace(offset=found[0], nbytes=found[1] - found[0])}
        return sample._replace(origins=origins, values={**sample.values, _PART: span})


@dataclass(frozen=True, slots=True)
class _StoredFiles:
    """Looks up objects below a prefix by their URLs; see `FileLookup`."""

    root: Location

    def find(self, text: str) -> tuple[bytes, Origin | None, str | None]:
        location = parse_location(text)
        name = location.key[len(self.root.key) :].strip("/").encode()
        try:
            found = pinned_object(str(location))
        except MissingDataError:
            return name, None, "no such object"
        return name, Origin.whole(name, found.nbytes, 0, found.etag or ""), None

    def refuse_wrong_root(self) -> None:
        return


def part_of(values: Mapping[str, str]) -> tuple[float, float] | None:
    """Return the seconds at which a sample of these values begins and ends in its file; None if it is the whole file."""
    span = values.get(_PART)
    if span is None:
        return None
    start, end = json.loads(span)
    return float(start), math.inf if end is None else float(end)
