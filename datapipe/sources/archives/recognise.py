"""Recognise archives: tell tars of WebDataset from those that hold a folder or class tars, by a look at the first members."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator

from datapipe.containers.form import Form
from datapipe.containers.listing import is_image_name, is_junk
from datapipe.containers.look import Evidence, Look, Nature, recognise_by_names
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.containers.remote_shards import kept_manifest, listed_shards
from datapipe.containers.tar.members import scan_members
from datapipe.containers.tar.scanner import split_name
from datapipe.errors import DatapipeError, FormatError, MissingDataError, StorageError
from datapipe.index.manifest import Manifest
from datapipe.sources.archives.members import is_archive_name, split_archive_location, split_archive_path, stem_of_archive
from datapipe.sources.spool import compression_of, unpacked_chunks
from datapipe.stores.location import Location, Place

ARCHIVE, TAR = "archive", "tar"  # forms
_MAX_MEMBERS = 300  # looked at in each archive
_MAX_STORED_MEMBERS = 8  # ... in a store, where each may be a request
_MAX_TARS = 3
_HEAD_NBYTES = 8 << 20  # of a compressed tar
_SHORT_NUMBER = re.compile(rb"\d{1,3}")  # a name as of a digit's class; shards have a word, or more zeros, before the number
_NUMBERED = re.compile(rb"(.*?)(\d+)((?:[-_.]?of[-_.]?\d+)?)")


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is an archive of a folder, or a folder of such; None if it is none."""
    if look.nature is Nature.NOTHING:
        place = look.place
        split = split_archive_location(place) if isinstance(place, Location) else split_archive_path(place)
        return None if split is None else Evidence("it is a folder in an archive")
    why = find_archives(look).get(ARCHIVE)
    return None if why is None else Evidence(why)


def find_archives(look: Look) -> dict[str, str]:
    """Return the forms that archives at a place may have, ARCHIVE or TAR, with the evidence for each in words."""
    return look.once("archives", lambda: _find_archives(look))


def first_members(look: Look, path: Place) -> list[bytes]:
    """Return the names of the first members of a tar that are no system files; fewer where it does not parse.

    Raises StorageError.
    """
    return look.once(f"members of {path}", lambda: _first_members(path))


def kept_shards(look: Look) -> Manifest | None:
    """Return the manifest of the index of tars in a store, which need not be looked into again; None if none is kept."""
    return look.once("kept tars", lambda: _kept_shards(look))


def _kept_shards(look: Look) -> Manifest | None:
    if not look.is_stored or recognise_by_names(look, TAR) is None:
        return None
    try:
        return kept_manifest(listed_shards(str(look.place)))
    except (FormatError, MissingDataError):  # what opens it says what is wrong
        return None


def _find_archives(look: Look) -> dict[str, str]:
    def read(path: Place) -> list[bytes]:
        return first_members(look, path)

    if kept_shards(look) is not None:
        return {TAR: "its index is kept"}
    if look.nature is Nature.FOLDER:
        names = [name for name in look.files if is_archive_name(name)]
        return _of_folder(look.place, names, read) if names else {}
    if look.nature is Nature.PATTERN:
        found = recognise_by_names(look, TAR)
        return {} if found is None else {TAR: found.why}
    if not is_archive_name(look.name):
        return {}
    why = _of_file(look.place, read)
    return {TAR: f"its name ends with {os.path.splitext(look.place.name)[1].lower()}"} if why is None else {ARCHIVE: why}


_Read = Callable[[Place], list[bytes]]  # the names of the first members of a tar


def _of_file(path: Place, read: _Read) -> str | None:
    """Return why a file is an archive of a folder, in words; None for WebDataset's tars and what is no archive.

    A tar that cannot be read is left to whoever reads it.
    """
    name = os.fsencode(path.name)
    if name.lower().endswith(b".zip"):
        return "its name ends with .zip"
    if not is_archive_name(name):
        return None
    names = read(path)
    tars = [member for member in names if is_archive_name(member)]
    if tars:
        return f"it holds archives, such as {os.fsdecode(tars[0])}"
    if _are_images_alone(names) and any(b"/" in member.removeprefix(b"./") for member in names):
        return "it holds images in folders"
    return None


def _of_folder(source: Place, names: list[bytes], read: _Read) -> dict[str, str]:
    """Return the forms that the archives `names` of a folder may have, with the evidence for each in words.

    "tar" for WebDataset's, "archive" for class tars and archives of folders. There are two where the tars hold images alone
    and are called 0.tar, 1.tar, ...: shards without labels, or digits as classes.
    """
    first = os.fsdecode(names[0])
    shards = {"tar": f"it holds {os.path.splitext(first)[1]} files"}
    zips = [name for name in names if name.lower().endswith(b".zip")]
    if zips:
        return {"archive": f"it holds zips, such as {os.fsdecode(zips[0])}"}
    are_numbered = _are_numbered(names)
    if len(names) < 2 or (are_numbered and not all(_SHORT_NUMBER.fullmatch(stem_of_archive(name)) for name in names)):
        return shards
    if not all(_are_images_alone(read(source / os.fsdecode(name))) for name in names[:_MAX_TARS]):
        return shards
    if are_numbered:
        return {"tar": f"shards without labels, such as {first}", "archive": f"tars of one class each, such as {first}"}
    return {"archive": f"it holds tars of images alone, such as {first}, so their names are the classes"}


def _are_images_alone(members: list[bytes]) -> bool:
    """Return True if most members are images, none with another member of its key, as samples of WebDataset have."""
    images = [name for name in members if is_image_name(name)]
    keys = {split[0] for split in map(split_name, members) if split is not None}
    return len(images) * 2 > len(members) and len(keys) == len({name for name in members if split_name(name) is not None})


def _are_numbered(names: list[bytes]) -> bool:
    """Return True for names such as shard-000000.tar, shard-000001.tar: parts of one set, not classes."""
    found = [_NUMBERED.fullmatch(stem_of_archive(name)) for name in names]
    if not all(found):
        return False
    stems = {(match[1], match[3]) for match in found if match}
    numbers = sorted(int(match[2]) for match in found if match)
    return len(stems) == 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _first_members(path: Place) -> list[bytes]:
    names: list[bytes] = []
    at_most = _MAX_STORED_MEMBERS if isinstance(path, Location) else _MAX_MEMBERS
    try:
        compression = compression_of(os.fsencode(path.name))
        if compression is not None:
            if isinstance(path, Location):  # whoever reads it says that it is not read from stores
                return names
            head = bytearray()
            for chunk in unpacked_chunks(path, compression):
                head += chunk
                if len(head) >= _HEAD_NBYTES:
                    break
            _take(names, bytes(head), at_most)
        else:
            with byte_source(str(path), "a tar") as data:
                _take(names, data, at_most)
    except StorageError:
        raise
    except (DatapipeError, OSError):
        return names  # whoever reads it says what is wrong with it
    return names


def _is_hidden(name: bytes) -> bool:
    return any(is_junk(part) for part in name.split(b"/") if part not in (b"", b".", b".."))


def _take(names: list[bytes], data: ByteSource, at_most: int) -> None:
    members: Iterator[bytes] = (member.name for member in scan_members(data, ""))
    try:
        names.extend(name for name in itertools.islice(members, at_most) if not _is_hidden(name))
    except FormatError:
        return  # the rest was not looked at, or is damaged
