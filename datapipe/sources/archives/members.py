"""Archives read in place: which files are in them, and where their bytes lie. Nothing is extracted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, overload

from datapipe.codecs.stored import PLAIN, decode_stored, deflated, summed_crc32, why_absent
from datapipe.containers.listing import is_junk
from datapipe.containers.mapped import ByteSource, byte_source, mapped
from datapipe.containers.remote_shards import named_shards
from datapipe.containers.tar.members import scan_members
from datapipe.core.archive_links import Link, NoTarget, Targets
from datapipe.core.directories import read_directory
from datapipe.core.printable import printable
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError, StorageError
from datapipe.index.listed import Origin, ScanNotes, ScanProblem, Workspace
from datapipe.sources.archives.zip_directory import ZipMember, scan_zip
from datapipe.sources.spool import compression_of, unpack_tar
from datapipe.stores.location import Location, Place
from datapipe.stores.objects import ListedObject, list_objects, object_facts
from datapipe.stores.random_access import pin_object

_MAX_TARGET = 1 << 12  # bytes of a link


class ArchiveMember(NamedTuple):
    """A file in an archive."""

    name: bytes  # its path: below the archive's own name without suffix, for an archive in an archive
    origin: Origin
    problem: str | None = None  # why it cannot be read


@dataclass(frozen=True, slots=True)
class _Window:
    """Some of the bytes of an archive: the tar within a tar."""

    data: ByteSource
    start: int
    nbytes: int

    def __len__(self) -> int:
        return self.nbytes

    @overload
    def __getitem__(self, place: int, /) -> int: ...
    @overload
    def __getitem__(self, place: slice, /) -> bytes: ...
    def __getitem__(self, place: int | slice, /) -> int | bytes:
        if isinstance(place, int):
            return self.data[self.start + range(self.nbytes)[place]]
        start, end, _ = place.indices(self.nbytes)
        return self.data[self.start + start : self.start + max(start, end)]


def is_archive_name(name: bytes) -> bool:
    """Return True if a file of this name is an archive: a tar, plain or compressed, or a zip."""
    return name.lower().endswith((b".tar", b".zip")) or compression_of(name) is not None


def stem_of_archive(name: bytes) -> bytes:
    """Return the name of an archive without its suffixes."""
    lowered = name.lower()
    for suffix in (b".tar", b".zip"):
        if lowered.endswith(suffix):
            return name[: -len(suffix)]
    stem, suffix = os.path.splitext(name)
    return os.path.splitext(stem)[0] if stem.lower().endswith(b".tar") else stem


def archives_in(source: Path, is_wanted: Callable[[bytes], bool], nothing: str) -> list[bytes]:
    """Return the sorted names of wanted files in a folder. Raises StorageError, or MissingDataError, saying `nothing`."""
    try:
        found = (entry.name for entry in read_directory(source))
        names = [name for name in found if is_wanted(name) and not is_junk(name)]
    except OSError as exc:
        raise StorageError(f"{source}: cannot be read ({exc.strerror}); check its permissions") from exc
    if not names:
        raise MissingDataError(f"{source}: {nothing}")
    return sorted(names)


def split_archive_path(path: Path) -> tuple[Path, bytes] | None:
    """Return (archive, folder in it) of a path such as `photos.zip/train`; None for one that names no archive."""
    for place in (path, *path.parents):
        if is_archive_name(os.fsencode(place.name)) and place.is_file():
            return place, os.fsencode(path.relative_to(place)) if place != path else b""
    return None


def split_archive_location(location: Location) -> tuple[Location, bytes] | None:
    """Return (archive, folder in it) of a location such as `s3://bucket/photos.zip/train`; None if no part names an archive."""
    parts = location.key.split("/")
    for number in range(len(parts), 0, -1):
        if is_archive_name(parts[number - 1].encode()):
            return Location(location.scheme, location.root, "/".join(parts[:number])), "/".join(parts[number:]).encode()
    return None


def refuse_compressed(root: Location, names: Iterable[bytes]) -> None:
    """Raise OptionError for compressed tars in a store, which are one stream each."""
    for name in names:
        if compression_of(name) is not None:
            where = root / os.fsdecode(name)
            raise OptionError(f"{where}: a compressed tar cannot be read at random, and so not from a store; copy it to a disk")


def scan_archive(root: Place, name: bytes, space: Workspace, notes: ScanNotes) -> Iterator[ArchiveMember]:
    """Yield the files of the archive `name` of `root`, in its order, and those of tars in it.

    Hidden and system files and devices are passed over; a link is the file in the archive that it leads to. `notes` gets
    archives in it that cannot be read, where it is damaged, and links to folders, which are not followed. Raises
    MissingDataError, StorageError, or FormatError for one that cannot be read at all.
    """
    where = str(root / os.fsdecode(name))
    with opened_archive(root, name, space) as (data, holder):
        notes.files[name] = holder.nbytes, holder.mtime_ns
        scan = _scan_zip if name.lower().endswith(b".zip") else _scan_tar
        try:
            yield from scan(data, where, holder, notes)
        except FormatError as exc:
            reason = str(exc).removeprefix(f"{printable(where)}: ")
            notes.problems.append(ScanProblem(name, f"{reason}; members after that are missing", is_damaged=True))


@contextlib.contextmanager
def opened_archive(
    root: Place, name: bytes, space: Workspace, *, form: str = "an archive", found: ListedObject | None = None
) -> Iterator[tuple[ByteSource, ArchiveFile]]:
    """Open an archive, unpacked into the spool if it is compressed; `found`: the object as it was listed, looked up if None.

    Raises MissingDataError, StorageError, or FormatError for one that is empty or does not unpack, and where an object
    has changed since it was listed.
    """
    if isinstance(root, Location):
        found = found or object_facts(root / os.fsdecode(name))
        url = str(root / found.name)
        if found.etag is not None:
            pin_object(url, etag=found.etag, nbytes=found.nbytes)
        with byte_source(url, form) as data:
            yield data, ArchiveFile(name, found.nbytes, 0, etag=found.etag or "")
        return
    compression = compression_of(name)
    if compression is not None:
        name_in_spool, mtime_ns = unpack_tar(root, name, compression, space)
        assert space.spool is not None
        with mapped(space.spool / os.fsdecode(name_in_spool), form) as data:
            yield data, ArchiveFile(name_in_spool, len(data), mtime_ns, is_spooled=True)
        return
    path = root / os.fsdecode(name)
    with mapped(path, form) as data:
        status = path.stat()
        yield data, ArchiveFile(name, status.st_size, status.st_mtime_ns)


class ArchiveFile(NamedTuple):
    """The file or object that holds the bytes."""

    path: bytes
    nbytes: int
    mtime_ns: int
    is_spooled: bool = False
    etag: str = ""

    def origin(self, offset: int, nbytes: int, codec: str = PLAIN) -> Origin:
        """Return a range of it as that of a field."""
        return Origin(self.path, offset, nbytes, self.nbytes, self.mtime_ns, codec, self.is_spooled, self.etag)


def _scan_tar(
    data: ByteSource, where: str, holder: ArchiveFile, notes: ScanNotes, *, prefix: bytes = b"", start: int = 0
) -> Iterator[ArchiveMember]:
    for member in scan_members(data, where, needs_end=True):
        name, problem = _cleaned(prefix, member.name)
        problem = problem or (why_absent(member.codec) if member.codec else None)
        if _is_left_out(name, notes):
            continue
        if member.name.endswith(b"/"):  # a folder, of tars from before 1988, or a link to one
            notes.links += [name] if problem else []
        elif is_archive_name(name) and member.codec:
            notes.problems.append(ScanProblem(holder.path + b"/" + name, problem or _NOT_IN_ONE_PIECE, is_damaged=True))
        elif is_archive_name(name):
            yield from _nested(
                data, (member.offset, member.nbytes), (where, name), holder, notes, is_deep=bool(prefix), start=start
            )
        else:
            codec = PLAIN if problem else member.codec
            yield ArchiveMember(name, holder.origin(start + member.offset, member.nbytes, codec), problem)


_NOT_IN_ONE_PIECE = "an archive within an archive, and not in one piece, which is not read; unpack the outer one first"


def _nested(
    data: ByteSource,
    extent: tuple[int, int],
    named: tuple[str, bytes],
    holder: ArchiveFile,
    notes: ScanNotes,
    *,
    is_deep: bool,
    start: int,
) -> Iterator[ArchiveMember]:
    """Yield the files of a plain tar within an archive; note any other archive."""
    where, name = named
    source = holder.path + b"/" + name
    if not name.lower().endswith(b".tar") or is_deep:
        what = "an archive three levels deep" if is_deep else "a compressed archive within an archive"
        notes.problems.append(ScanProblem(source, f"{what}, which is not read; unpack the outer one first", is_damaged=True))
        return
    window = _Window(data, *extent)
    try:
        inner = f"{where}/{os.fsdecode(name)}"
        yield from _scan_tar(window, inner, holder, notes, prefix=stem_of_archive(name) + b"/", start=start + extent[0])
    except FormatError as exc:
        reason = str(exc).rpartition(f"{printable(inner)}: ")[2]
        notes.problems.append(ScanProblem(source, f"{reason}; members after that are missing", is_damaged=True))


def _scan_zip(data: ByteSource, where: str, holder: ArchiveFile, notes: ScanNotes) -> Iterator[ArchiveMember]:
    for member in _zip_files(data, where):
        name, problem = _cleaned(b"", member.name)
        if _is_left_out(name, notes):
            continue
        if member.name.endswith(b"/"):
            notes.links.append(name)
            continue
        problem = member.problem or problem
        if is_archive_name(name):
            if member.is_deflated or member.problem:
                notes.problems.append(
                    ScanProblem(
                        holder.path + b"/" + name, "a compressed archive within an archive, which is not read", is_damaged=True
                    )
                )
            else:
                extent = (member.offset, member.nbytes)
                yield from _nested(data, extent, (where, name), holder, notes, is_deep=False, start=0)
            continue
        codec = deflated(member.nbytes, member.crc32) if member.is_deflated else summed_crc32(member.crc32)
        yield ArchiveMember(name, holder.origin(member.offset, member.stored_nbytes, codec), problem)


def _zip_files(data: ByteSource, where: str) -> Iterator[ZipMember]:
    """Yield the files of a zip, links as those that they lead to.

    One that leads to a folder has a name that ends with a slash, and any that leads to no file a problem.
    """
    targets: Targets[ZipMember] | None = None
    for member in scan_zip(data, where):
        if not member.is_link:
            yield member
            continue
        if targets is None:
            targets = Targets(_zip_link(one, data) if one.is_link else (one.name, one) for one in scan_zip(data, where))
        found = targets.resolve(_zip_link(member, data))
        if isinstance(found, NoTarget):
            yield member._replace(name=member.name + b"/" * found.is_folder, problem=found.reason)
        else:
            yield found._replace(name=member.name)


def _zip_link(member: ZipMember, data: ByteSource) -> Link:
    """Return a link, of which a zip holds the target as the contents; one to itself if that cannot be read."""
    codec = deflated(member.nbytes, member.crc32) if member.is_deflated else summed_crc32(member.crc32)
    target = b""
    if member.problem is None and max(member.stored_nbytes, member.nbytes) <= _MAX_TARGET:
        with contextlib.suppress(DecodeError):
            target = decode_stored(bytes(data[member.offset : member.offset + member.stored_nbytes]), codec)
    return Link(member.name, target or member.name.rpartition(b"/")[2], is_hard=False)


def _cleaned(prefix: bytes, name: bytes) -> tuple[bytes, str | None]:
    """Return a member's path below `prefix`, and what is wrong with it. Paths are names only: nothing is written there."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    problem = None
    if name.startswith(b"/") or b".." in parts or b"\0" in name:
        problem = f"its name in the archive, {printable(os.fsdecode(name))!r:.80}, leads out of it: hostile, or damaged"
        parts = [b"_" if part == b".." else part.replace(b"\0", b"_") for part in parts]
    return prefix + b"/".join(parts or [b"_"]), problem


def _is_left_out(name: bytes, notes: ScanNotes) -> bool:
    if any(map(is_junk, name.split(b"/"))):
        notes.num_junk += 1
        return True
    return False


def objects_at(
    location: Location, is_wanted: Callable[[bytes], bool], *, what: str
) -> tuple[Location, dict[bytes, ListedObject]]:
    """Return the objects that a URL names, by name, and the prefix that names are below.

    The URL is that of one object of a wanted name, of shards by a pattern or braces, or of a prefix, whose wanted objects are
    taken, sorted. Raises MissingDataError, StorageError, and OptionError where the store cannot list.
    """
    named = None if is_wanted(location.name.encode()) and not _is_pattern(location) else named_shards(str(location))
    if named is not None:
        return named.location, {os.fsencode(one.name): one for one in named.objects}
    if is_wanted(location.name.encode()):
        return location.parent, {location.name.encode(): object_facts(location)}
    found = [one for one in list_objects(location) if is_wanted(one.name.encode()) and not is_junk(one.name.encode())]
    if not found:
        raise MissingDataError(f"{location}: no {what}; pass one, or the prefix that holds them")
    return location, {one.name.encode(): one for one in found}


def _is_pattern(location: Location) -> bool:
    return any(sign in location.name for sign in "*[{")
