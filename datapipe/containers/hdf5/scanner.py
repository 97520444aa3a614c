"""Scan HDF5 files of images: where each image is, its label, and what else the file has of each sample.

Reads datapipe's own layout (`image/data` and `image/offsets`, see `containers.hdf5`), a dataset of variable-length uint8 arrays,
one encoded image each, and an array of pixels. Images that lie in one piece each are addressed by bytes; those in chunks of
several, or behind a filter, by rows. Datasets with the same number of rows are further fields.
Links to other files, external storage and virtual datasets are not followed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.probe import encoding_of
from datapipe.containers import hdf5 as form
from datapipe.containers.columns import add_field, rows_of_images
from datapipe.containers.form import Form
from datapipe.containers.hdf5.fields import ReadableDataset, UnreadableError, are_pixels, find_field, row_starts
from datapipe.containers.hdf5.row_major import is_row_major
from datapipe.containers.hdf5.rows import H5PY_ERRORS
from datapipe.containers.labels import label_names
from datapipe.containers.look import Evidence, Look, recognise_by_names
from datapipe.containers.mapped import mapped
from datapipe.core.printable import get_logger, listed
from datapipe.core.regular_files import opened_by_name
from datapipe.errors import FormatError
from datapipe.index.sidecar import SidecarRows

_IMAGE_NAMES = ("image", "images", "img", "imgs", "jpeg", "jpegs", "x")
_MAX_OBJECTS = 10_000  # objects read; a file with a dataset for each sample has more
_MAX_DEPTH = 64  # of groups
_MAX_KEY = 1024  # bytes
_MAX_REFUSALS = 12  # in an error

logger = get_logger(__name__)


_Objects = dict[str, "h5py.Group | h5py.Dataset"]


def index_shard(path: Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index one file; ids are row numbers. Fields: the image, the label, and further datasets with as many rows.

    Labels are a dataset of as many integers, named `label`, `labels`, `target`, `targets` or `y`, in any case, next to the
    images or at the root. Datasets that cannot be fields are recorded in `unread` of the rows. Raises MissingDataError,
    StorageError or FormatError, naming the file and the datasets found.
    """
    with mapped(path, "HDF5") as data:
        try:
            with opened_by_name(path) as name, h5py.File(name, "r", locking=False) as file:
                return _index(file, data, str(path))
        except FormatError:
            raise
        except H5PY_ERRORS as exc:
            raise FormatError(f"{path}: not an HDF5 file, or damaged ({exc}); get the file again") from exc


def recognise(look: Look, how: Form) -> Evidence | None:
    """Return why a place is HDF5 files of samples; None if it is none, or if they hold the rows of a table."""
    found = recognise_by_names(look, how.name)
    first = None if found is None else look.first_shard(how.name)
    return None if first is None or look.once(f"rows in {first}", lambda: is_row_major(first)) else found


def _index(file: h5py.File, data: mmap.mmap, where: str) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    objects = _objects(file, where)
    found, unread = _look_through(objects, data, where)
    image = _choose_images(found, unread, objects, where)
    num = len(image)
    label_name, labels = _read_labels(file, image.name, num, where)
    keys = _read_keys(file, num, at_most=len(data)) or [b"%d" % row for row in range(num)]
    rows, specs = rows_of_images(image.column, keys, labels, classes=None, where=where)
    passed_over = {image.name, label_name, form.KEY, *([form.SIZE] if isinstance(objects[image.name], h5py.Group) else [])}
    others = [one for name, one in found.items() if len(one) == num and name not in passed_over]
    for one in others:
        called = one.name.removeprefix(f"{image.name.rpartition('/')[0]}/")
        specs.append(add_field(rows, called, one.kind, one.column))
    rows.unread = {name: why for name, why in unread.items() if _num_rows(objects[name]) == num and not _is_view(objects[name])}
    rows.row_groups = row_starts([image, *others], num)
    return rows, tuple(specs)


def _look_through(objects: _Objects, data: mmap.mmap, where: str) -> tuple[dict[str, ReadableDataset], dict[str, str]]:
    """Return the fields by name, and for the other objects why they cannot be fields."""
    found: dict[str, ReadableDataset] = {}
    unread: dict[str, str] = {}
    for name, entry in objects.items():
        try:
            one = find_field(name, entry, data)
        except UnreadableError as exc:
            unread[name] = str(exc)
        except FormatError as exc:
            raise FormatError(f"{where}: {name!r}: {exc}; get the file again") from exc
        else:
            if one is not None:
                found[name] = one
    return found, unread


def _choose_images(found: dict[str, ReadableDataset], unread: dict[str, str], objects: _Objects, where: str) -> ReadableDataset:
    """Return the images, by layout and content, or else by name."""
    images = [one for one in found.values() if len(one) and _are_images(one, objects[one.name])]
    named = [one for one in images if one.name.rpartition("/")[2].lower() in _IMAGE_NAMES]
    chosen = named if len(named) == 1 else images
    if len(chosen) == 1:
        return chosen[0]
    what = f"images in several places ({', '.join(one.name for one in images)})" if images else "no images that can be read"
    why = "".join(f"; {name!r} {text}" for name, text in list(unread.items())[:_MAX_REFUSALS])
    remedy = "name one of them 'image'" if images else _REMEDY
    raise FormatError(f"{where}: {what}{why} (has: {_listed(objects)}); {remedy}")


def _are_images(one: ReadableDataset, entry: h5py.Group | h5py.Dataset) -> bool:
    if isinstance(entry, h5py.Dataset) and entry.dtype == np.uint8:
        return entry.ndim in (3, 4) and are_pixels(entry.shape)
    is_bytes = isinstance(entry, h5py.Group) or h5py.check_vlen_dtype(entry.dtype) == np.uint8
    return is_bytes and one.kind is not FieldKind.TEXT and encoding_of(one.head) is not None


def _num_rows(entry: h5py.Group | h5py.Dataset) -> int:
    return len(entry) if isinstance(entry, h5py.Dataset) and entry.ndim else -1


def _is_view(entry: h5py.Group | h5py.Dataset) -> bool:
    """Return True for the array of all images that datapipe's layout has next to their bytes."""
    return isinstance(entry, h5py.Dataset) and entry.is_virtual and entry.parent.get(form.OFFSETS) is not None


_REMEDY = (
    "datapipe reads encoded images as uint8 (nbytes,) 'image/data' with 'image/offsets', or as variable-length uint8, and"
    " pixels as uint8 (n, h, w, 3); write them so, or write images to a folder per class and run `datapipe convert`"
)


def _objects(file: h5py.File, where: str) -> _Objects:
    """Return all objects in the file by name, each once, groups before their members; only hard links, so nothing outside.

    Children are opened from their group: `visititems` opens each by its whole path, at a cost that grows with the depth.
    """
    objects: _Objects = {}
    seen = {_identity(file)}
    waiting = [_children(file, "", objects, where)]
    while waiting:
        name, entry = next(waiting[-1], (None, None))
        if name is None or entry is None:
            waiting.pop()
        elif (identity := _identity(entry)) not in seen:
            seen.add(identity)
            objects[name] = entry
            if isinstance(entry, h5py.Group):
                if len(waiting) == _MAX_DEPTH:
                    raise FormatError(f"{where}: groups more than {_MAX_DEPTH} deep, which no file of images has; {_REMEDY}")
                waiting.append(_children(entry, f"{name}/", objects, where))
    return objects


def _children(group: h5py.Group, prefix: str, objects: _Objects, where: str) -> Iterator[tuple[str, h5py.Group | h5py.Dataset]]:
    """Yield the direct members of a group, by name; `objects`: those found so far."""
    if len(objects) + len(group) > _MAX_OBJECTS:
        raise FormatError(f"{where}: more than {_MAX_OBJECTS} datasets, one for each sample? {_REMEDY}")
    for name in sorted(group):
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield prefix + name, group[name]


def _identity(entry: h5py.Group | h5py.Dataset) -> int:
    address: int = h5py.h5o.get_info(entry.id).addr
    return address


def _read_labels(file: h5py.File, images: str, num: int, where: str) -> tuple[str, list[int] | None]:
    """Return the name of a dataset next to the images or at the root, and the label of each image; or None."""
    directory = images.rpartition("/")[0]
    for place in dict.fromkeys((directory, "")):
        group = file[place] if place else file
        for name in label_names("hdf5", group):
            if not isinstance(group.get(name, getlink=True), h5py.HardLink) or not isinstance(group[name], h5py.Dataset):
                continue
            full, dataset = f"{place}/{name}".lstrip("/"), group[name]
            if dataset.dtype.kind in "iu" and dataset.shape in ((num,), (num, 1)) and not dataset.external:
                return full, dataset[()].reshape(num).tolist()
            logger.warning(
                "%s: %r holds no class numbers of %d images (%s %s); the set is read without labels", where, full, num,
                dataset.shape, dataset.dtype,
            )  # fmt: skip
    return "", None


def _read_keys(file: h5py.File, num: int, *, at_most: int) -> list[bytes] | None:
    keys = file.get(form.KEY) if isinstance(file.get(form.KEY, getlink=True), h5py.HardLink) else None
    if not isinstance(keys, h5py.Dataset) or keys.shape != (num,) or keys.dtype.kind != "S":
        return None
    if keys.external or keys.dtype.itemsize > _MAX_KEY or keys.nbytes > at_most:
        return None
    return [bytes(key) for key in keys[()]]


def _listed(objects: _Objects) -> str:
    datasets = [f"{name} {entry.shape} {entry.dtype}" for name, entry in objects.items() if isinstance(entry, h5py.Dataset)]
    return listed(datasets) or "no datasets"
