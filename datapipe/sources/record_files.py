"""Files of texts, lines and rows under a place: which there are, and where their lines begin and end."""

from __future__ import annotations

import codecs
import glob
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from datapipe.containers.listing import ListedFile
from datapipe.core import regular_files
from datapipe.core.directories import matching
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.listed import ScanNotes, Workspace, divide, join, time_of_etag
from datapipe.sources.archives.members import ArchiveFile
from datapipe.sources.file_tree import open_tree
from datapipe.sources.spool import spooled, unpacked_chunks
from datapipe.stores.location import Location, Place
from datapipe.stores.objects import object_facts
from datapipe.stores.transfers import download_to

TEXT_SUFFIXES = (b".txt", b".text", b".md")
LINES_SUFFIXES = (b".jsonl", b".ndjson")
ROWS_SUFFIXES = (b".parquet", b".arrow")
JSON_SUFFIX = b".json"
_COMPRESSIONS = {b".gz": "gzip", b".bz2": "bz2", b".xz": "xz", b".zst": "zstd"}
_READ_NBYTES = 8 << 20
_MAX_LINE_NBYTES = 1 << 28
_NEWLINE = ord("\n")


def is_text_name(name: bytes) -> bool:
    """Return True for the name of a text file."""
    return name.lower().endswith(TEXT_SUFFIXES)


def is_lines_name(name: bytes) -> bool:
    """Return True for the name of JSON lines, compressed or not. What is called `.json` may be anything, unless compressed."""
    unpacked = _unpacked_name(name)
    return unpacked.endswith(LINES_SUFFIXES) or (unpacked.endswith(JSON_SUFFIX) and compression_of(name) is not None)


def is_rows_name(name: bytes) -> bool:
    """Return True for the name of a file of rows."""
    return name.lower().endswith(ROWS_SUFFIXES)


def compression_of(name: bytes) -> str | None:
    """Return how a file of that name is compressed; None if it is not."""
    return _COMPRESSIONS.get(os.path.splitext(name.lower())[1])


class RecordFiles:
    """The files of a place: itself, those that a pattern matches, or all below it that are wanted by name."""

    def __init__(
        self, place: Place, *, may_be: Callable[[bytes], bool], is_wanted: Callable[[bytes], bool], nothing: str
    ) -> None:
        """`may_be`: the names of files that are read if they are asked for; `is_wanted`: of those that are taken from a folder.

        Raises MissingDataError if a pattern matches no file, saying `nothing`.
        """
        self.root: Place = place
        self._names: list[bytes] = []  # relative to the root; none for all below it
        self._is_wanted = is_wanted
        if isinstance(place, Path) and not place.exists() and glob.has_magic(str(place)):
            found = [name for name in matching(str(place)) if may_be(os.fsencode(name))]
            if not found:
                raise MissingDataError(f"{place}: matches no {nothing}")
            self.root = Path(os.path.commonpath([os.path.dirname(name) or "." for name in found]))
            self._names = [os.fsencode(os.path.relpath(name, self.root)) for name in found]
        elif may_be(os.fsencode(place.name)) if isinstance(place, Location) else place.is_file():
            self.root, self._names = place.parent, [os.fsencode(place.name)]

    def listed(self, notes: ScanNotes) -> Iterator[ListedFile]:
        """Yield the files. Raises MissingDataError for one that is not there."""
        if not self._names:
            yield from (file for _, file in open_tree(self.root).files([b""], notes, self._is_wanted))
        for path in self._names:
            directory, name = divide(path)
            if isinstance(self.root, Location):
                found = object_facts(self.root / os.fsdecode(path))
                yield ListedFile(directory, name, found.nbytes, 0, etag=found.etag or "")
                continue
            here = self.root / os.fsdecode(path)
            try:
                status = here.stat()
            except FileNotFoundError as exc:
                raise MissingDataError(f"{here}: no such file; check the path of the source") from exc
            yield ListedFile(directory, name, status.st_size, status.st_mtime_ns)

    def time_of(self, file: ListedFile) -> int:
        """Return the time of a file; of an object, a number made of its etag."""
        return time_of_etag(file.etag) if isinstance(self.root, Location) else file.mtime_ns

    def unpacked(self, file: ListedFile, space: Workspace) -> tuple[Path, ArchiveFile]:
        """Return the file in which the lines can be read at random, itself or one in the spool, and what origins say of it.

        Raises FormatError where there is no spool, StorageError.
        """
        path = join(file.directory, file.name)
        compression = compression_of(file.name)
        here = self.root / os.fsdecode(path)
        if isinstance(here, Path) and compression is None:
            return here, ArchiveFile(path, file.nbytes, file.mtime_ns)
        if space.spool is None:
            raise FormatError(f"{here}: compressed, so its lines cannot be read one by one; unpack it, or convert it")
        mtime_ns = self.time_of(file)
        try:
            with spooled(space, path, nbytes=file.nbytes, mtime_ns=mtime_ns) as writer:
                if not writer.is_complete:
                    for chunk in _chunks(here, compression, space):
                        writer.put(chunk)
        except OSError as exc:
            if isinstance(exc, StorageError):
                raise
            raise StorageError(exc.errno, f"{here}: cannot be unpacked into {space.spool} ({exc.strerror}); free space") from exc
        kept = space.spool / os.fsdecode(writer.name)
        return kept, ArchiveFile(writer.name, kept.stat().st_size, mtime_ns, is_spooled=True)


def lines_of(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield (line number from 1, start, end without line end) of each line that is not blank.

    Raises FormatError for a line of more than 256 MB.
    """
    with regular_files.open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = len(codecs.BOM_UTF8) if os.pread(file.fileno(), len(codecs.BOM_UTF8), 0) == codecs.BOM_UTF8 else 0
        number = 0
        block_nbytes = _READ_NBYTES
        while start < size:
            data = os.pread(file.fileno(), min(block_nbytes, size - start), start)
            if not data:
                return
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE).tolist()
            if start + len(data) >= size and (not ends or ends[-1] != len(data) - 1):
                ends.append(len(data))
            if not ends:
                if block_nbytes >= _MAX_LINE_NBYTES:
                    raise FormatError(f"{path}: line {number + 1} has more than {_MAX_LINE_NBYTES >> 20} MB; repair the file")
                block_nbytes *= 2
                continue
            begin = 0
            for end in ends:
                number += 1
                if data[begin:end].strip():
                    yield number, start + begin, start + end
                begin = end + 1
            start += begin


def _chunks(place: Place, compression: str | None, space: Workspace) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file or object."""
    if isinstance(place, Path):
        assert compression is not None
        yield from unpacked_chunks(place, compression)
        return
    with tempfile.TemporaryDirectory(dir=space.scratch) as scratch:
        path = Path(scratch) / "object"
        download_to(path, place)
        if compression is not None:
            yield from unpacked_chunks(path, compression)
            return
        with path.open("rb") as file:
            yield from iter(lambda: file.read(_READ_NBYTES), b"")


def _unpacked_name(name: bytes) -> bytes:
    lowered = name.lower()
    stem, suffix = os.path.splitext(lowered)
    return stem if suffix in _COMPRESSIONS else lowered
