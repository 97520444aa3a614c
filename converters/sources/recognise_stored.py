"""Recognise the form of a source in a store, from its URL and one listing of the prefix."""

from __future__ import annotations

import os
from dataclasses import dataclass

from converters.archives import is_archive_name, split_archive_location
from converters.options import ClassFrom
from converters.sources.recognise_archives import archive_of_file, archives_of_folder
from datapipe.containers import container_of
from datapipe.containers.listing import is_image_name, is_junk
from datapipe.core.errors import MissingDataError, OptionError
from datapipe.index.manifest import MANIFEST_NAME
from datapipe.stores.location import Location
from datapipe.stores.objects import list_below, list_names

_MAX_NAMES = 2000  # that are looked at
_MAX_FOLDERS = 5
_TITLES = {
    "image-folder": "an image folder", "manifest": "a manifest", "pairs": "files paired by name", "coco": "COCO annotations",
    "tar": "WebDataset tars", "archive": "images in archives", "npy": "a folder of arrays",
    "dataset": "a converted dataset", "hdf5": "HDF5 files",
    "parquet": "Parquet files", "tfrecord": "TFRecord files", "arrow": "Arrow files", "lmdb": "LMDB databases of images",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recognition:
    """The form of a source, and the evidence for it."""

    form: str
    why: str

    def __str__(self) -> str:
        return f"{_TITLES[self.form]} ({self.why}; --from {self.form})"


def recognise_stored(location: Location, class_from: ClassFrom | None) -> Recognition:
    """Return the form of the objects that a URL names. Raises OptionError if it may be several forms, or none; StorageError."""
    name = location.name
    is_pattern = any(sign in name for sign in "*[{")
    container = container_of(name)
    if not is_pattern and split_archive_location(location) is not None:
        if not is_archive_name(name.encode()):
            return Recognition("archive", "it is a folder in an archive")
        why = archive_of_file(location)
        return Recognition("archive", why) if why else Recognition("tar", f"its name ends with {os.path.splitext(name)[1]}")
    if container is not None:
        return Recognition(container, f"its name ends with .{container}" if not is_pattern else "by the names that it matches")
    names = list_names(location, at_most=_MAX_NAMES)
    if not names:
        raise MissingDataError(
            f"{location}: nothing under this prefix; check the URL, or name objects, as in train-{{000..099}}.tar"
        )
    if MANIFEST_NAME in names:
        return Recognition("dataset", f"it holds {MANIFEST_NAME}")
    files = [name for name in names if not name.endswith("/") and not is_junk(name.encode())]
    found: list[Recognition] = []
    archives = sorted(name.encode() for name in files if is_archive_name(name.encode()))
    if archives:
        found += [Recognition(form, why) for form, why in archives_of_folder(location, archives).items()]
    forms = sorted({container_of(name) or "" for name in files} - {"", "tar"})
    found += [Recognition(form, f"it holds {form} files") for form in forms]
    folders = [name for name in names if name.endswith("/") and not is_junk(name.encode())]
    if any(is_image_name(name.encode()) for name in files) and class_from is ClassFrom.NONE:
        found.append(Recognition("image-folder", "images in it"))
    elif not found and folders:
        found.append(_of_folders(location, folders))
    if len(found) == 1:
        return found[0]
    if found:
        shown = "; or ".join(f"--from {one.form} ({one.why})" for one in found)
        raise OptionError(f"{location}: may be several things, say which: {shown}")
    raise OptionError(
        f"{location}: no folders of images, tars, archives or Parquet files in it; check the URL, or say --from what it is"
        " (--class-from none for images without labels)"
    )


def _of_folders(location: Location, folders: list[str]) -> Recognition:
    """Return the form of files in folders, by the first page of objects in some of them."""
    for folder in folders[:_MAX_FOLDERS]:
        names = [one.name.encode() for one in next(list_below(location / folder.rstrip("/")), [])]
        if any(map(is_image_name, names)):
            return Recognition("image-folder", "images in folders")
        if any(name.lower().endswith(b".npy") for name in names):
            return Recognition("npy", "it holds .npy files")
        shards = [name for name in names if name == MANIFEST_NAME.encode() or container_of(os.fsdecode(name))]
        if shards:
            raise OptionError(f"{location}: its folder {folder} holds shards: pass that folder, one set of them at a time")
    return Recognition("image-folder", "it has folders")  # its errors name what is missing
