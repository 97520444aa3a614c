"""HDF5 files of images: where in the file each image's bytes lie, and which label it has.

Reads three layouts whose images can be had with `pread`: datapipe's own (`image/data` and `image/offsets`, see
`hdf5_format`), a dataset of variable-length uint8 arrays, an encoded image each, and an array of pixels in one piece or in
unfiltered chunks of one image. Others are refused with the reason.
Links to other files, external storage and virtual datasets are not followed.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from datapipe.containers import hdf5_format as form
from datapipe.containers.hdf5_pixels import npy_header, pixel_extents
from datapipe.containers.hdf5_vlen import vlen_extents
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.manifest import FieldSpec, Kind
from datapipe.probe import encoding_of
from datapipe.sidecar import FieldExtent, SidecarRows

_IMAGE_NAMES = ("image", "images", "img", "imgs", "jpeg", "jpegs", "x")
_LABEL_NAMES = ("label", "labels", "target", "targets", "y")
_MAX_OBJECTS = 10_000  # looked at; a file with a dataset for each sample has more
_MAX_KEY = 1024  # bytes
_LOOKED_AT = 64  # bytes of an image: enough to tell one
_MAX_LISTED = 12  # datasets named in an error
# what h5py raises for damaged files, from its own checks and from the library's
_H5PY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, AttributeError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Images:
    """Images found in a file."""

    name: str  # of their dataset or group
    offset: NDArray[np.int64]  # (n,) bytes from the start of the file
    nbytes: NDArray[np.int64]  # (n,)
    shape: tuple[int, ...] | None = None  # of each, where they are pixels without headers


def index_shard(path: Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Look through one file; ids are row numbers.

    Labels are a dataset of as many integers, called `label`, `labels`, `target`, `targets` or `y`, beside the images or at
    the root. Raises MissingDataError, StorageError or FormatError, naming the file and the datasets found.
    """
    try:
        with path.open("rb") as plain:
            if not plain.read(1):
                raise FormatError(f"{path}: empty file, not HDF5; get the file again or remove it")
            with mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as data:
                data.madvise(mmap.MADV_RANDOM)
                return _index(path, data)
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such shard") from exc
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be read ({exc.strerror})") from exc


def _index(path: Path, data: mmap.mmap) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    try:
        with h5py.File(path, "r", locking=False) as file:
            images = _find_images(file, data, str(path))
            num = len(images.offset)
            labels = _read_labels(file, images.name, num, str(path))
            keys = _read_keys(file, num, at_most=len(data))
    except FormatError:
        raise
    except _H5PY_ERRORS as exc:
        raise FormatError(f"{path}: not an HDF5 file, or damaged ({exc}); get the file again") from exc
    if labels is not None and labels.min() < -1:
        raise FormatError(f"{path}: a label is {labels.min()}, expected class numbers; write labels from 0")
    prefixes = {} if images.shape is None else {"image": npy_header(images.shape)}
    rows = SidecarRows(("image",), prefixes=prefixes)  # labels are read here and now: they may lie in pieces, or compressed
    for row, (offset, nbytes) in enumerate(zip(images.offset.tolist(), images.nbytes.tolist(), strict=True)):
        key = b"%d" % row if keys is None else keys[row]
        label = -1 if labels is None else int(labels[row])
        extents = {"image": FieldExtent("", offset, nbytes, None)}
        rows.append(id=row, key=key, source=b"", label=label, size=(0, 0), extents=extents)
    fields = (FieldSpec("image", Kind.IMAGE), FieldSpec("label", Kind.LABEL))
    return rows, fields if labels is not None else fields[:1]


def _find_images(file: h5py.File, data: mmap.mmap, where: str) -> _Images:
    """The images, by layout and content, or else by name."""
    objects = _objects(file, where)
    found: list[_Images] = []
    refusals: list[str] = []
    for name, entry in objects.items():
        reader = _reader_of(entry)
        if reader is None:
            continue
        try:
            images = reader(name, entry, data, file.userblock_size)
        except _UnreadableError as exc:
            refusals.append(f"{name!r} {exc}")
            continue
        except FormatError as exc:
            raise FormatError(f"{where}: {name!r}: {exc}; get the file again") from exc
        if images.shape is not None or _is_encoded(images, data):
            found.append(images)
    named = [images for images in found if images.name.rpartition("/")[2].lower() in _IMAGE_NAMES]
    chosen = named if len(named) == 1 else found
    if len(chosen) == 1:
        return chosen[0]
    what = f"images in several places ({', '.join(images.name for images in found)})" if found else "no images that can be read"
    why = "".join(f"; {text}" for text in refusals)
    remedy = "name one of them 'image'" if found else _REMEDY
    raise FormatError(f"{where}: {what}{why} (has: {_listed(objects)}); {remedy}")


_REMEDY = (
    "datapipe reads encoded images as uint8 (nbytes,) 'image/data' with 'image/offsets', or as variable-length uint8, and"
    " pixels as uint8 (n, h, w, 3) in one piece; write them so, or write images to a folder per class and run `datapipe convert`"
)


class _UnreadableError(Exception):
    """Why images that seem to be there cannot be read; the caller knows where."""


def _objects(file: h5py.File, where: str) -> dict[str, h5py.Group | h5py.Dataset]:
    """Everything in the file by name; hard links only, so nothing outside it."""
    objects: dict[str, h5py.Group | h5py.Dataset] = {}

    def note(name: str, entry: h5py.Group | h5py.Dataset) -> bool | None:
        objects[name] = entry
        return True if len(objects) > _MAX_OBJECTS else None

    if file.visititems(note):
        raise FormatError(f"{where}: more than {_MAX_OBJECTS} datasets, one for each sample? {_REMEDY}")
    return objects


_Reader = Callable[[str, "h5py.Group | h5py.Dataset", mmap.mmap, int], _Images]


def _reader_of(entry: h5py.Group | h5py.Dataset) -> _Reader | None:
    """What reads images laid out as `entry` is; None where nobody would lay them out so."""
    if isinstance(entry, h5py.Group):
        is_ours = isinstance(entry.get(form.DATA), h5py.Dataset) and isinstance(entry.get(form.OFFSETS), h5py.Dataset)
        return _read_own if is_ours else None
    if not isinstance(entry, h5py.Dataset) or entry.parent.get(form.OFFSETS) is not None:
        return None
    if entry.ndim == 1 and h5py.check_vlen_dtype(entry.dtype) == np.uint8:
        return _read_vlen
    return _read_pixels if entry.ndim in (3, 4) and entry.dtype == np.uint8 else None


def _read_pixels(name: str, entry: h5py.Dataset, data: mmap.mmap, userblock: int) -> _Images:
    try:
        return _Images(name, *pixel_extents(entry, len(data)), entry.shape[1:])
    except FormatError:
        raise
    except ValueError as exc:
        raise _UnreadableError(f"has {exc}") from exc


def _read_own(name: str, group: h5py.Group, data: mmap.mmap, userblock: int) -> _Images:
    blob, offsets = group[form.DATA], group[form.OFFSETS]
    if blob.ndim != 1 or blob.dtype != np.uint8 or offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise _UnreadableError("has 'data' and 'offsets', though not uint8 (nbytes,) and integers (n + 1,)")
    start = blob.id.get_offset()
    if blob.chunks or blob.external or start is None:
        raise _UnreadableError("has 'data' in chunks or outside the file, where no image lies in one piece")
    if start + len(blob) > len(data) or not 0 < len(offsets) <= len(data):
        raise FormatError("it reaches beyond the end: the file was cut")
    places = offsets[()].astype(np.int64)
    if places[0] != 0 or places[-1] > len(blob) or bool((np.diff(places) < 0).any()):
        raise _UnreadableError("has 'offsets' that do not ascend from 0 to the length of 'data'")
    return _Images(name, start + places[:-1], np.diff(places))


def _read_vlen(name: str, entry: h5py.Dataset, data: mmap.mmap, userblock: int) -> _Images:
    try:
        return _Images(name, *vlen_extents(entry, data, userblock))
    except FormatError:
        raise
    except ValueError as exc:
        raise _UnreadableError(f"cannot be read: {exc}") from exc


def _is_encoded(images: _Images, data: mmap.mmap) -> bool:
    if not len(images.offset):
        return False
    start = int(images.offset[0])
    return encoding_of(data[start : start + min(int(images.nbytes[0]), _LOOKED_AT)]) is not None


def _read_labels(file: h5py.File, images: str, num: int, where: str) -> NDArray[np.int64] | None:
    """(n,) or None; the label of each image, from a dataset beside the images or at the root."""
    directory = images.rpartition("/")[0]
    for place in dict.fromkeys((directory, "")):
        for name in _LABEL_NAMES:
            full = f"{place}/{name}".lstrip("/")
            if not isinstance(file.get(full, getlink=True), h5py.HardLink) or not isinstance(file[full], h5py.Dataset):
                continue
            dataset = file[full]
            if dataset.dtype.kind in "iu" and dataset.shape in ((num,), (num, 1)) and not dataset.external:
                labels: NDArray[np.int64] = dataset[()].astype(np.int64).reshape(num)
                return labels
            logger.warning(
                "%s: %r holds no class numbers of %d images (%s %s); the set is read without", where, full, num,
                dataset.shape, dataset.dtype,
            )  # fmt: skip
    return None


def _read_keys(file: h5py.File, num: int, *, at_most: int) -> list[bytes] | None:
    keys = file.get(form.KEY) if isinstance(file.get(form.KEY, getlink=True), h5py.HardLink) else None
    if not isinstance(keys, h5py.Dataset) or keys.shape != (num,) or keys.dtype.kind != "S":
        return None
    if keys.external or keys.dtype.itemsize > _MAX_KEY or keys.nbytes > at_most:
        return None
    return [bytes(key) for key in keys[()]]


def _listed(objects: dict[str, h5py.Group | h5py.Dataset]) -> str:
    datasets = [f"{name} {entry.shape} {entry.dtype}" for name, entry in objects.items() if isinstance(entry, h5py.Dataset)]
    more = f", and {len(datasets) - _MAX_LISTED} more" if len(datasets) > _MAX_LISTED else ""
    return (", ".join(datasets[:_MAX_LISTED]) or "no datasets") + more
