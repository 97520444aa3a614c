"""Archives read in place: which files are in them, and where their bytes lie. Nothing is extracted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, overload

from converters.archives.unpacking import compression_of, unpack_tar
from converters.archives.zip_directory import scan_zip
from converters.packing import deflated, summed_crc32
from converters.sources import Origin, Workspace
from datapipe.containers.listing import ScanNotes, ScanProblem, is_junk
from datapipe.containers.mapped import mapped
from datapipe.containers.tar.scanner import scan_members
from datapipe.core.byte_source import ByteSource
from datapipe.core.errors import FormatError
from datapipe.core.printable import printable


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


def split_archive_path(path: Path) -> tuple[Path, bytes] | None:
    """Return (archive, folder in it) of a path such as `photos.zip/train`; None for one that names no archive."""
    for place in (path, *path.parents):
        if is_archive_name(os.fsencode(place.name)) and place.is_file():
            return place, os.fsencode(path.relative_to(place)) if place != path else b""
    return None


def scan_archive(root: Path, name: bytes, space: Workspace, notes: ScanNotes) -> Iterator[ArchiveMember]:
    """Yield the files of the archive `name` of `root`, in its order, and those of tars in it.

    Hidden and system files, links and devices are passed over. `notes` gets archives in it that cannot be read, and where it is
    damaged. Raises MissingDataError, StorageError, or FormatError for one that cannot be read at all.
    """
    compression = compression_of(name)
    if compression is not None:
        name_in_spool, mtime_ns = unpack_tar(root, name, compression, space)
        path = space.spool / os.fsdecode(name_in_spool)
        place = (name_in_spool, path.stat().st_size, mtime_ns, True)
    else:
        path = root / os.fsdecode(name)
    with mapped(path, "an archive") as data:
        if compression is None:
            status = path.stat()
            place = (name, status.st_size, status.st_mtime_ns, False)
        scan = _scan_zip if name.lower().endswith(b".zip") else _scan_tar
        try:
            yield from scan(data, str(root / os.fsdecode(name)), place, notes)
        except FormatError as exc:
            reason = str(exc).removeprefix(f"{printable(str(root / os.fsdecode(name)))}: ")
            notes.problems.append(ScanProblem(name, f"{reason}; members after that are missing"))


_Place = tuple[bytes, int, int, bool]  # of the file that holds the bytes: name, size, time, whether it is in the spool


def _scan_tar(
    data: ByteSource, where: str, place: _Place, notes: ScanNotes, *, prefix: bytes = b"", start: int = 0
) -> Iterator[ArchiveMember]:
    path, file_nbytes, mtime_ns, is_spooled = place
    for member in scan_members(data, where, needs_end=True):
        name, problem = _cleaned(prefix, member.name)
        if _is_left_out(name, notes):
            continue
        if is_archive_name(name):
            yield from _nested(
                data, (member.offset, member.nbytes), (where, name), place, notes, is_deep=bool(prefix), start=start
            )
        else:
            origin = Origin(path, start + member.offset, member.nbytes, file_nbytes, mtime_ns, is_spooled=is_spooled)
            yield ArchiveMember(name, origin, problem)


def _nested(
    data: ByteSource,
    extent: tuple[int, int],
    named: tuple[str, bytes],
    place: _Place,
    notes: ScanNotes,
    *,
    is_deep: bool,
    start: int,
) -> Iterator[ArchiveMember]:
    """Yield the files of a plain tar within an archive; note any other archive."""
    where, name = named
    source = place[0] + b"/" + name
    if not name.lower().endswith(b".tar") or is_deep:
        what = "an archive three levels deep" if is_deep else "a compressed archive within an archive"
        notes.problems.append(ScanProblem(source, f"{what}, which is not read; unpack the outer one first"))
        return
    window = _Window(data, *extent)
    try:
        inner = f"{where}/{os.fsdecode(name)}"
        yield from _scan_tar(window, inner, place, notes, prefix=stem_of_archive(name) + b"/", start=start + extent[0])
    except FormatError as exc:
        reason = str(exc).rpartition(f"{printable(inner)}: ")[2]
        notes.problems.append(ScanProblem(source, f"{reason}; members after that are missing"))


def _scan_zip(data: ByteSource, where: str, place: _Place, notes: ScanNotes) -> Iterator[ArchiveMember]:
    path, file_nbytes, mtime_ns, is_spooled = place
    for member in scan_zip(data, where):  # type: ignore[arg-type]
        name, problem = _cleaned(b"", member.name)
        if _is_left_out(name, notes):
            continue
        problem = member.problem or problem
        if is_archive_name(name):
            if member.is_deflated or member.problem:
                notes.problems.append(
                    ScanProblem(path + b"/" + name, "a compressed archive within an archive, which is not read")
                )
            else:
                extent = (member.offset, member.nbytes)
                yield from _nested(data, extent, (where, name), place, notes, is_deep=False, start=0)
            continue
        packing = deflated(member.stored_nbytes, member.crc32) if member.is_deflated else summed_crc32(member.crc32)
        origin = Origin(path, member.offset, member.nbytes, file_nbytes, mtime_ns, packing, is_spooled)
        yield ArchiveMember(name, origin, problem)


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
