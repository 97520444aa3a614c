"""Recognise the form of a source from names, with a bounded look; if it is not clear, ask rather than guess."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from datapipe.containers.form import ClassFrom
from datapipe.containers.formats import container_of, form_of_name
from datapipe.containers.forms import AUDIO, FORMS, VIDEOS
from datapipe.containers.listing import (
    AUDIO_SUFFIXES,
    NO_FOLDER,
    VIDEO_SUFFIXES,
    held_apart,
    is_audio_name,
    is_folder,
    is_image_name,
    is_junk,
    is_kept_by_tools,
    is_video_name,
    list_folders,
    walk,
)
from datapipe.core.printable import get_logger
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.listed import ScanNotes
from datapipe.index.manifest import MANIFEST_NAME
from datapipe.sources.archives.members import is_archive_name, split_archive_location, split_archive_path
from datapipe.sources.archives.recognise import archive_of_file, archives_of_folder
from datapipe.sources.json_stream import array_elements
from datapipe.sources.lists.parts import lists_files
from datapipe.sources.lmdb import DATA_NAME
from datapipe.sources.pairs import IMAGE, KINDS, MASK, is_pair_name, place_file, role_folders
from datapipe.stores.location import Location, Place
from datapipe.stores.objects import list_below, list_names

logger = get_logger(__name__)

_MAX_NAMES = 2000  # names read per folder
_MAX_FOLDERS = 20  # folders opened
_MAX_STORED_FOLDERS = 5  # ... of a prefix in a store
_MEDIA = {VIDEOS: (is_video_name, VIDEO_SUFFIXES), AUDIO: (is_audio_name, AUDIO_SUFFIXES)}  # their names, by form
_TITLES = {VIDEOS: "videos", AUDIO: "sound files"}
_LISTS = frozenset(name.encode() for stem in ("metadata", "manifest", "labels") for name in (f"{stem}.csv", f"{stem}.jsonl"))


@dataclass(frozen=True, slots=True)
class Recognition:
    """The form of a source, and the evidence for it."""

    form: str
    why: str
    is_certain: bool = True  # False where the conversion that follows will say what is missing

    def __str__(self) -> str:
        return f"{FORMS[self.form].title} ({self.why}; --from {self.form})"


@dataclass(slots=True)
class _Seen:
    """The contents of a folder and its subfolders."""

    num_images: int = 0
    num_images_deep: int = 0  # in folders
    num_arrays: int = 0
    num_media: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(_MEDIA, 0))  # by form
    with_images: set[bytes] = dataclasses.field(default_factory=set)  # folders in it that hold images, at any depth
    shards: dict[str, str] = dataclasses.field(default_factory=dict)  # suffixes of shards in the folder itself, by form
    archives: list[bytes] = dataclasses.field(default_factory=list)  # in the folder itself
    deep: str = ""  # a folder of it that holds shards or a converted dataset
    beside: str = ""  # a file with the stem of an image
    lists: list[str] = dataclasses.field(default_factory=list)  # manifests by their names, in the folder itself
    inner_lists: list[str] = dataclasses.field(default_factory=list)  # ... in its folders
    annotations: str = ""  # a JSON file that may be COCO's


def recognise_form(source: Place, class_from: ClassFrom | None = None, *, prefers_folders: bool = False) -> Recognition:
    """Return the form of a place.

    `prefers_folders`: images in folders are those of classes, whatever else there is, unless one of the folders is called masks,
    or holds what belongs to the images of another. Raises OptionError if it may be several forms, or none; MissingDataError or
    StorageError if it cannot be read.
    """
    if isinstance(source, Location):
        return _recognise_stored(source, class_from)
    if not source.exists() and glob.has_magic(str(source)):
        return _of_pattern(str(source))
    if source.is_file():
        return _of_file(source)
    if not source.exists() and split_archive_path(source) is not None:
        return Recognition("archive", "it is a folder in an archive")
    return _of_folder(source, class_from, prefers_folders=prefers_folders)


def _of_pattern(pattern: str) -> Recognition:
    """Return the form of the shards that a pattern matches, such as `train-*.parquet`."""
    names = glob.glob(pattern)
    for form, (is_wanted, _) in _MEDIA.items():
        if names and all(is_wanted(os.fsencode(name)) for name in names):
            return Recognition(form, "by the names that it matches")
    found = sorted({container_of(os.path.basename(name)) or "" for name in names})
    if len(found) != 1 or not found[0]:
        what = "nothing" if not found else f"files of {len(found)} kinds" if len(found) > 1 else "other files"
        raise OptionError(f"{pattern}: matches {what}; a pattern names shards of one form, such as 'train-*.parquet'")
    return Recognition(found[0], "by the names that it matches")


def _of_file(path: Path) -> Recognition:
    suffix = path.suffix.lower()
    why = archive_of_file(path)
    if why is not None:
        return Recognition("archive", why)
    if is_archive_name(os.fsencode(path.name)):
        return Recognition("tar", f"its name ends with {suffix}")
    form = container_of(path.name) or form_of_name(path.name)
    for name, (is_wanted, suffixes) in _MEDIA.items():
        if is_wanted(os.fsencode(path.name)):
            return Recognition(name, f"its name ends with {suffix}")
        if form == "manifest" and lists_files(path, suffixes):
            return Recognition(name, f"it lists {_TITLES[name]}")
    if form is not None:
        return Recognition(form, f"its name ends with {suffix}")
    if suffix == ".json":
        why_not = _why_not_coco(path)
        if why_not is None:
            return Recognition("coco", "it has `images` and `annotations`")
        for name, (_, suffixes) in _MEDIA.items():
            if lists_files(path, suffixes):
                return Recognition(name, f"it lists {_TITLES[name]}")
        raise OptionError(f"{path}: {why_not}; a manifest is a .csv, or a .jsonl with one object per line")
    if is_image_name(os.fsencode(path.name)):
        raise OptionError(f"{path}: a single image; pass the folder that holds the images, with a folder for each class")
    raise OptionError(
        f"{path}: not recognised by its name; pass a folder, a .csv, .tsv, .jsonl, .tar, .zip, .h5, .parquet, .tfrecord, .arrow"
        " or COCO's .json, or choose --from"
    )


def _why_not_coco(path: Path) -> str | None:
    """Return None for COCO's annotations."""
    try:
        is_coco = next(array_elements(path, frozenset(("images", "annotations"))), None) is not None
    except FormatError as exc:
        return f"not COCO's JSON: {str(exc).removeprefix(f'{path}: ')}"
    return None if is_coco else "JSON, but not COCO's"


def _of_folder(source: Path, class_from: ClassFrom | None, *, prefers_folders: bool) -> Recognition:
    folders = list_folders(source, otherwise=NO_FOLDER)
    if held_apart(source, folders) and class_from is not ClassFrom.NONE:
        return Recognition("image-folder", "it has class folders", is_certain=False)  # its errors then explain the problem
    if (source / MANIFEST_NAME).is_file():
        return Recognition("dataset", f"it holds {MANIFEST_NAME}")
    databases = [place for place in (b"", *folders) if os.path.isfile(source / os.fsdecode(place) / DATA_NAME)]
    if databases:
        return Recognition("lmdb", f"it holds {os.path.join(os.fsdecode(databases[0]), DATA_NAME)}")
    seen = _look(source, folders)
    found = [Recognition(form, f"it holds {suffix} files") for form, suffix in seen.shards.items()]
    if seen.archives:
        found += [Recognition(form, why) for form, why in archives_of_folder(source, sorted(seen.archives)).items()]
    roles = role_folders(folders)
    are_classes = prefers_folders and MASK not in roles.values() and roles.keys() <= seen.with_images
    if len(roles) > 1 and class_from in (None, ClassFrom.NONE) and not are_classes and _are_paired(source, roles):
        shown = ", ".join(f"{os.fsdecode(folder)}/" for folder in roles)
        return _only([*found, Recognition("pairs", f"it has the folders {shown}")], source, "")
    if seen.beside:
        found.append(Recognition("pairs", f"images with files of the same name beside, such as {seen.beside}"))
    if seen.num_images_deep:
        found.append(Recognition("image-folder", "images in folders"))
        if prefers_folders:
            if seen.inner_lists:
                inner = source / min(seen.inner_lists)
                logger.warning("%s: labels come from folders; %s lists images: pass that to take its labels", source, inner)
            return found[-1]
    elif seen.num_images and class_from is ClassFrom.NONE:
        found.append(Recognition("image-folder", "images in it"))
    elif seen.num_images and not seen.beside:
        raise _without_folders(source, seen)
    if seen.num_arrays and not found:
        found.append(Recognition("npy", "it holds .npy files"))
    media = [form for form, num in seen.num_media.items() if num]
    if not found:
        found += [Recognition(form, f"{_TITLES[form]} in it, or in folders in it") for form in media]
    lists = sorted(seen.lists or (seen.inner_lists if seen.num_images_deep else []))
    if lists and (seen.num_images + seen.num_images_deep or media):
        form = "image-folder" if seen.num_images + seen.num_images_deep else media[0]
        what = _TITLES.get(form, "images")
        raise OptionError(
            f"{source}: holds {what} and {lists[0]}: pass {source / lists[0]} to convert what it lists, or say"
            f" --from {form} to take the classes from the folders"
        )
    if not found and seen.deep:
        raise OptionError(f"{source}: its folder {seen.deep} holds shards: pass that folder, one set of them at a time")
    if not found and folders and not seen.lists and not seen.annotations:
        return Recognition("image-folder", "it has folders", is_certain=False)  # empty: its errors name what is missing
    files = [*seen.lists, *([seen.annotations] if seen.annotations else [])]
    if files:
        return _only(
            found, source, f"a folder with {files[0]}: pass {source / files[0]} itself, and --root for the folder of its files"
        )
    return _only(
        found,
        source,
        "no images, videos, sound, .npy files or shards in it, nor in its folders; check the path, or say --from what it is",
    )


def _are_paired(source: Path, roles: dict[bytes, str]) -> bool:
    """Return True if a file of another folder has a partner among the first images, as those of classes have not."""
    stems: dict[bool, set[tuple[bytes, bytes]]] = {True: set(), False: set()}
    for folder in roles:
        files = walk(source, folder, ScanNotes(), is_pair_name)
        for placed in (place_file(file, roles) for file in itertools.islice(files, _MAX_NAMES)):
            stems[placed.field == IMAGE] |= {(placed.directory, stem) for stem in (placed.stem, placed.other_stem) if stem}
    return not stems[True].isdisjoint(stems[False])


def _only(found: list[Recognition], source: Place, otherwise: str) -> Recognition:
    """Return the only possible form. Raises OptionError if there are several, or, saying `otherwise`, none."""
    if len(found) == 1:
        return found[0]
    if found:
        shown = "; or ".join(f"--from {one.form} ({one.why})" for one in found)
        raise OptionError(f"{source}: may be several things, say which: {shown}")
    raise OptionError(f"{source}: {otherwise}")


def _without_folders(source: Path, seen: _Seen) -> OptionError:
    if seen.lists:
        return OptionError(f"{source}: images and {seen.lists[0]}: pass {source / seen.lists[0]} to convert what it lists")
    return OptionError(
        f"{source}: images in no class folders: pass --class-from none for a set without labels, a .csv or .jsonl that"
        " lists files and labels, or COCO's annotation file with --root"
    )


def _look(source: Path, folders: list[bytes]) -> _Seen:
    """Count some names of the folder, and of some folders in it, down to the first files."""
    seen = _Seen()
    top = os.fsencode(source)
    _count(top, seen, top=top)
    waiting = [os.path.join(top, folder) for folder in folders]
    for _ in range(_MAX_FOLDERS):
        if not waiting:
            break
        inner = [] if is_kept_by_tools(waiting[0]) else _count(waiting[0], seen, top=top)
        waiting = inner + waiting[1:]
    return seen


def _count(folder: bytes, seen: _Seen, *, top: bytes) -> list[bytes]:
    """Count the contents of `folder`; return its subfolders."""
    is_top = folder == top
    images: dict[bytes, bytes] = {}
    others: list[bytes] = []
    folders: list[bytes] = []
    for entry in itertools.islice(_entries(folder), _MAX_NAMES):
        name = entry.name
        stem, suffix = os.path.splitext(name)
        if is_junk(name):
            continue
        if is_folder(entry):
            folders.append(os.path.join(folder, name))
        elif is_image_name(name):
            seen.num_images += is_top
            seen.num_images_deep += not is_top
            if not is_top and not images:
                seen.with_images.add(folder[len(top) + 1 :].partition(b"/")[0])
            if stem in images and {suffix.lower(), os.path.splitext(images[stem])[1].lower()} & {b".png"}:
                seen.beside = seen.beside or os.fsdecode(min(name, images[stem]))
            images[stem] = name
        elif media := next((form for form, (is_wanted, _) in _MEDIA.items() if is_wanted(name)), ""):
            seen.num_media[media] += 1
        elif suffix.lower() in KINDS:
            seen.num_arrays += suffix.lower() == b".npy"
            others.append(name)
            if is_top and suffix.lower() == b".json" and not seen.annotations:
                seen.annotations = os.fsdecode(name)
        elif is_top and is_archive_name(name):
            seen.archives.append(name)
        elif container := container_of(os.fsdecode(name)):
            if is_top:
                seen.shards.setdefault(container, os.fsdecode(suffix.lower()))
            else:
                seen.deep = seen.deep or os.fsdecode(folder)
        if name.lower() in _LISTS:
            (seen.lists if is_top else seen.inner_lists).append(os.fsdecode(os.path.join(folder[len(top) + 1 :], name)))
    masks = [
        name
        for stem, name in images.items()
        for ending in (b"_mask", b"_seg")
        if stem.endswith(ending) and stem.removesuffix(ending) in images
    ]
    beside = sorted([*masks, *(name for name in others if os.path.splitext(name)[0] in images)])
    if beside:
        seen.beside = seen.beside or os.fsdecode(beside[0])
    return sorted(folders)


def _entries(folder: bytes) -> Iterator[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:  # the real scan reports it
        return


def _recognise_stored(location: Location, class_from: ClassFrom | None) -> Recognition:
    """Return the form of the objects that a URL names. Raises OptionError if it may be several forms, or none; StorageError."""
    name = location.name
    is_pattern = any(sign in name for sign in "*[{")
    container = container_of(name)
    if not is_pattern and split_archive_location(location) is not None:
        if not is_archive_name(name.encode()):
            return Recognition("archive", "it is a folder in an archive")
        why = archive_of_file(location)
        return Recognition("archive", why) if why else Recognition("tar", f"its name ends with {os.path.splitext(name)[1]}")
    if is_video_name(name.encode()):
        return Recognition("videos", f"its name ends with {os.path.splitext(name)[1]}")
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
    elif not found and any(is_video_name(name.encode()) for name in files):
        found.append(Recognition("videos", "videos in it"))
    elif not found and folders:
        found.append(_of_folders(location, folders))
    return _only(
        found,
        location,
        "no videos, folders of images, tars, archives or Parquet files in it; check the URL, or say --from what it is"
        " (--class-from none for images without labels)",
    )


def _of_folders(location: Location, folders: list[str]) -> Recognition:
    """Return the form of files in folders, by the first page of objects in some of them."""
    for folder in folders[:_MAX_STORED_FOLDERS]:
        names = [one.name.encode() for one in next(list_below(location / folder.rstrip("/")), [])]
        if any(map(is_image_name, names)):
            return Recognition("image-folder", "images in folders")
        if any(name.lower().endswith(b".npy") for name in names):
            return Recognition("npy", "it holds .npy files")
        if any(map(is_video_name, names)):
            return Recognition("videos", "videos in folders in it")
        shards = [name for name in names if name == MANIFEST_NAME.encode() or container_of(os.fsdecode(name))]
        if shards:
            raise OptionError(f"{location}: its folder {folder} holds shards: pass that folder, one set of them at a time")
    return Recognition("image-folder", "it has folders")  # its errors name what is missing
