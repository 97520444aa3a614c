"""A new form that lists its samples, worked out: a text file with a line `PATH LABEL` for each image, as Caffe wrote them.

Such a form lists its samples as a stream, and then says which fields and classes they have. For a loader they are sorted into an
index, for a conversion into a plan; resuming, reading, checking and writing are the same for all forms. In datapipe this file is
`datapipe/sources/text_list.py`, with a line in `datapipe/containers/forms.py`:

    FORMS["list"] = FormFacts(title="a list of images", source="datapipe.sources.text_list")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD
from datapipe.containers.form import Form, on_disk
from datapipe.containers.look import Evidence, Look
from datapipe.core.regular_files import open_file, path_inside
from datapipe.errors import FormatError, MissingDataError
from datapipe.index.listed import ListedSample, Origin, ScanNotes, SourceFacts, Workspace, divide
from datapipe.stores.location import Place


class ListSource:
    """The images that a text file lists, with their labels. Paths are relative to the file's folder."""

    def __init__(self, path: Path) -> None:
        """Raises MissingDataError if there is no such file."""
        self._path = path
        if not path.is_file():
            raise MissingDataError(f"{self._path}: no such file; pass the text file that lists the images")
        self.root = self._path.parent
        self._largest = -1

    def scan(self, notes: ScanNotes, space: Workspace) -> Iterator[ListedSample]:
        """Yield a sample for each line, one at a time: a list may have a hundred million lines.

        A file that is missing makes its sample bad; a line that is none ends the scan, as the others may be wrong too.
        """
        with open_file(self._path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield self._sample(number, line)

    def _sample(self, number: int, line: bytes) -> ListedSample:
        path, _, text = line.strip().rpartition(b" ")
        if not path or not text.isdigit():
            raise FormatError(f"{self._path}, line {number}: expected `PATH LABEL`, got {line.strip()!r}; mend the line")
        # Names in files are not trusted: this raises FormatError for one that leads out of the folder.
        full = path_inside(os.fspath(self.root), os.fsdecode(path), named_in=self._path)
        directory, name = divide(path)
        label = int(text)
        self._largest = max(self._largest, label)
        try:
            status = os.stat(full)
        except OSError as exc:
            return ListedSample(directory, name, number, label, problem=f"cannot be read ({exc.strerror})")
        return ListedSample(directory, name, number, label, {"image": Origin.whole(path, status.st_size, status.st_mtime_ns)})

    def facts(self) -> SourceFacts:
        """Return the fields and classes, after `scan` is exhausted. Classes of a list have no names but their numbers."""
        return SourceFacts(
            fields=(IMAGE_FIELD, LABEL_FIELD),
            classes=tuple(map(str, range(self._largest + 1))),
            nothing="no lines",
            remedy="write a line `PATH LABEL` for each image",
        )


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is such a list; None if it is none. Every command asks this of every form."""
    return Evidence("its name ends with .list") if look.suffix == ".list" else None


def open_source(place: Place, form: Form) -> ListSource:
    """Open the source. Raises OptionError for one in a store."""
    return ListSource(on_disk(place, form))
