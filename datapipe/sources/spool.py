"""Unpack, once and in order, what a source holds compressed as a whole: the values of row groups, and compressed tars.

The values are then read at random from the unpacked ("spooled") file. That file gets the modification time of the source's file,
and appears only when it is complete: a run that continues a conversion finds it there, and does not write it again.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import lzma
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from isal import igzip, igzip_lib

from datapipe.core import atomic, regular_files
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.listed import Workspace


class SpoolWriter:
    """A spooled file being written, or one that is complete, of which only the places are counted again."""

    def __init__(self, name: bytes, sink: IO[bytes] | None) -> None:
        self.name = name  # in the spool
        self.position = 0  # bytes
        self._sink = sink

    @property
    def is_complete(self) -> bool:
        """True if an earlier run wrote the file."""
        return self._sink is None

    def put(self, data: bytes) -> int:
        """Append a value and return its offset."""
        offset = self.position
        self.position += len(data)
        if self._sink is not None:
            self._sink.write(data)
        return offset


@contextlib.contextmanager
def spooled(space: Workspace, path: bytes, *, nbytes: int, mtime_ns: int) -> Iterator[SpoolWriter]:
    """Open the spooled file of the source's file `path` (relative to its root), which has that size and time.

    The file appears when the block ends without an exception. Raises OSError.
    """
    assert space.spool is not None
    digest = hashlib.sha256(b"%d %d " % (nbytes, mtime_ns) + path).hexdigest()[:32]
    target = space.spool / digest
    if target.exists():
        yield SpoolWriter(digest.encode(), None)
        return
    space.spool.mkdir(exist_ok=True)
    with atomic.atomic_writer(target) as sink:
        yield SpoolWriter(digest.encode(), sink)
        sink.flush()
        os.utime(sink.fileno(), ns=(mtime_ns, mtime_ns))


_CHUNK_NBYTES = 1 << 20
_MAX_RATIO = 200  # images hardly shrink; deflate reaches 1,032, of zeros
_BELIEVED_NBYTES = 1 << 30  # that much is unpacked whatever the ratio
_DAMAGE = (EOFError, gzip.BadGzipFile, igzip_lib.IsalError, lzma.LZMAError, pa.ArrowException)
_FORMS = {
    b".tar.gz": "gzip", b".tgz": "gzip", b".tar.bz2": "bz2", b".tbz2": "bz2", b".tbz": "bz2", b".tar.xz": "xz", b".txz": "xz",
    b".tar.zst": "zstd", b".tzst": "zstd", b".tar.lz4": "lz4",
}  # fmt: skip


def compression_of(name: bytes) -> str | None:
    """Return how a tar of that name is compressed; None if it is no compressed tar."""
    lowered = name.lower()
    return next((form for suffix, form in _FORMS.items() if lowered.endswith(suffix)), None)


def unpacked_chunks(path: Path, form: str) -> Iterator[bytes]:
    """Yield the unpacked bytes. Raises FormatError for damage, or for a file that unpacks without end; OSError."""
    with regular_files.open_file(path) as plain:
        limit = max(_BELIEVED_NBYTES, _MAX_RATIO * path.stat().st_size)
        try:
            with closing(_opened(plain, form)) as stream:
                total = 0
                while chunk := stream.read(_CHUNK_NBYTES):
                    total += len(chunk)
                    if total > limit:
                        raise FormatError(
                            f"{path}: unpacks to more than {limit} bytes, {_MAX_RATIO} times its size: a bomb? Not read"
                        )
                    yield bytes(chunk)
        except _DAMAGE as exc:  # type: ignore[misc]  # the stub of isal calls its error an exception, not a class
            raise FormatError(
                f"{path}: not {form}, cut off or damaged ({str(exc).strip() or exc!r}); get the file again"
            ) from exc
        except OSError as exc:
            if exc.errno is not None:
                raise
            raise FormatError(f"{path}: not {form}, cut off or damaged ({exc}); get the file again") from exc


def _opened(plain: Any, form: str) -> Any:
    if form == "gzip":
        return igzip.IGzipFile(fileobj=plain, mode="rb")
    if form == "bz2":
        return bz2.BZ2File(plain)
    if form == "xz":
        return lzma.LZMAFile(plain)
    return pa.CompressedInputStream(pa.PythonFile(plain, mode="r"), form)


def compressed_tar(path: Path) -> FormatError:
    """Return the error for a compressed tar that should be read in place."""
    return FormatError(
        f"{path}: a compressed tar, whose members cannot be read one by one; unpack it, or convert it with `datapipe convert`"
    )


def unpack_tar(root: Path, name: bytes, form: str, space: Workspace) -> tuple[bytes, int]:
    """Unpack the tar `name` of `root` into the spool unless it is there; return (name in the spool, mtime in ns).

    Raises MissingDataError, StorageError or FormatError.
    """
    path = root / Path(name.decode(errors="surrogateescape"))
    if space.spool is None:
        raise compressed_tar(path)
    try:
        status = path.stat()
        with spooled(space, name, nbytes=status.st_size, mtime_ns=status.st_mtime_ns) as writer:
            if not writer.is_complete:
                for chunk in unpacked_chunks(path, form):
                    writer.put(chunk)
                if not writer.position:
                    raise FormatError(f"{path}: unpacks to nothing: empty or cut off; get the file again")
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file; check the path of the source") from exc
    except (FormatError, StorageError):
        raise
    except OSError as exc:
        raise StorageError(
            exc.errno,
            f"{path}: cannot be unpacked into {space.spool} ({exc.strerror}); free space there, or set TMPDIR for a dry run",
        ) from exc
    return writer.name, status.st_mtime_ns
