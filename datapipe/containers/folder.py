"""Index image folders: one folder per class, one file per sample, as torchvision's `ImageFolder` reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.listing import ListedFile, ScanNotes, held_apart, list_classes, scan_class
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.sidecar import FieldExtent, SidecarRows

ROWS_PER_SIDECAR = 1 << 16
FIELDS = (FieldSpec("image", FieldKind.IMAGE), FieldSpec("label", FieldKind.LABEL))


def refuse_several_sets(root: Path) -> None:
    """Raise FormatError for a folder of `train/` and `val/`: two datasets, not one of two classes."""
    sets = held_apart(root, list_classes(root))
    if sets:
        names = [os.fsdecode(name) for name in sets]
        raise FormatError(f"{root}: holds {len(sets)} datasets ({', '.join(names)}); open one, e.g. {root / names[0]}")


def index_folder(root: Path, notes: ScanNotes) -> Iterator[SidecarRows]:
    """List the folder. Yields sidecar rows of up to ROWS_PER_SIDECAR samples, in the order of ids.

    `notes` receives the directories that were read.

    Files are not opened, so sizes and checksums are unknown and extents are whole files. Raises
    MissingDataError if there is no image, or StorageError if a directory cannot be read.
    """
    names = list_classes(root)
    classes = tuple(map(os.fsdecode, names))
    rows, number = SidecarRows(("image",), classes=classes), 0
    for label, name in enumerate(names):
        for file in _sorted_class(root, name, notes):
            extent = FieldExtent("", 0, file.nbytes, None)
            rows.append(id=number, key=file.source, source=file.source, label=label, size=(0, 0), extents={"image": extent})
            number += 1
            if len(rows) == ROWS_PER_SIDECAR:
                yield rows
                rows = SidecarRows(("image",), classes=classes)
    if not number:
        raise MissingDataError(f"{root}: no images in its class folders; check the path")
    if len(rows):
        yield rows


def directory_times(root: Path, notes: ScanNotes) -> dict[str, int]:
    """Return the modification times (ns) of the root and all directories read: they change when files come or go."""
    times = {os.fsdecode(directory): mtime_ns for directory, mtime_ns in notes.directories.items()}
    return {".": os.stat(root).st_mtime_ns, **times}


def is_unchanged(root: Path, times: dict[str, int]) -> bool:
    """Return True if every directory still has its time."""
    try:
        return all(os.stat(os.path.join(root, directory)).st_mtime_ns == mtime_ns for directory, mtime_ns in times.items())
    except (OSError, ValueError):  # a name that no directory can have
        return False


def _sorted_class(root: Path, name: bytes, notes: ScanNotes) -> list[ListedFile]:
    files = sorted(scan_class(root, name, notes), key=lambda file: file.sort_key)
    if notes.problems:
        problem = notes.problems[0]
        raise StorageError(f"{root}: {os.fsdecode(problem.source)}: {problem.reason}")
    for file in files:
        if file.problem is not None:  # raised now rather than in mid-epoch, and so that no link out of the root is ever read
            source = os.fsdecode(file.source)
            raise StorageError(f"{root}: {source}: {file.problem}; remove it, or `datapipe convert` with --on-error skip")
    return files
