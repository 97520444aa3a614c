"""Tell tars of WebDataset from those that hold a folder or class tars, by a look at the first members."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator

from datapipe.containers.listing import is_image_name, is_junk
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.containers.tar.members import scan_members
from datapipe.containers.tar.scanner import split_name
from datapipe.errors import DatapipeError, FormatError
from datapipe.sources.archives.members import is_archive_name, stem_of_archive
from datapipe.sources.spool import compression_of, unpacked_chunks
from datapipe.stores.location import Location, Place

_MAX_MEMBERS = 300  # looked at in each archive
_MAX_TARS = 3
_HEAD_NBYTES = 8 << 20  # of a compressed tar
_SHORT_NUMBER = re.compile(rb"\d{1,3}")  # a name as of a digit's class; shards have a word, or more zeros, before the number
_NUMBERED = re.compile(rb"(.*?)(\d+)((?:[-_.]?of[-_.]?\d+)?)")


def archive_of_file(path: Place) -> str | None:
    """Return why a file is an archive of a folder, in words; None for WebDataset's tars and what is no archive.

    A tar that cannot be read is left to whoever reads it.
    """
    name = os.fsencode(path.name)
    if name.lower().endswith(b".zip"):
        return "its name ends with .zip"
    if not is_archive_name(name):
        return None
    names = _first_members(path)
    tars = [member for member in names if is_archive_name(member)]
    if tars:
        return f"it holds archives, such as {os.fsdecode(tars[0])}"
    if _are_images_alone(names) and any(b"/" in member.removeprefix(b"./") for member in names):
        return "it holds images in folders"
    return None


def archives_of_folder(source: Place, names: list[bytes]) -> dict[str, str]:
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
    if not all(_are_images_alone(_first_members(source / os.fsdecode(name))) for name in names[:_MAX_TARS]):
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
    """Return the names of the first members of a tar that are no system files; fewer where it does not parse."""
    names: list[bytes] = []
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
            _take(names, bytes(head))
        else:
            with byte_source(str(path), "a tar") as data:
                _take(names, data)
    except (DatapipeError, OSError):
        return names  # whoever reads it says what is wrong with it
    return names


def _is_hidden(name: bytes) -> bool:
    return any(is_junk(part) for part in name.split(b"/") if part not in (b"", b".", b".."))


def _take(names: list[bytes], data: ByteSource) -> None:
    members: Iterator[bytes] = (member.name for member in scan_members(data, ""))
    try:
        names.extend(name for name in itertools.islice(members, _MAX_MEMBERS) if not _is_hidden(name))
    except FormatError:
        return  # the rest was not looked at, or is damaged
