"""Find files that a list names under the root, or the reason why not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from converters.sources import Origin
from datapipe.core.errors import MissingDataError
from datapipe.core.regular_files import is_within

_MAX_FOLDERS = 4096  # folders whose real paths are remembered
_MISSES_IN_A_ROW = 20  # if the first files are all missing, the root is wrong


class NamedFiles:
    """Looks up files by the names in a list. A result never names anything outside `root`."""

    def __init__(self, root: Path, listed_in: Path) -> None:
        """Raises MissingDataError if `root` is not a folder."""
        if not root.is_dir():
            raise MissingDataError(f"{root}: no such folder; check --root")
        self._root = root
        self._top = os.fsencode(os.path.realpath(root))
        self._listed_in = listed_in
        self._folders: dict[bytes, bytes] = {}  # real paths
        self._num_missing = 0
        self._first_missing: str = ""
        self._has_found = False

    def find(self, text: str) -> tuple[bytes, Origin | None, str | None]:
        """Return (path relative to the root, location of its bytes, problem); either the location or the problem is None.

        `text`: relative to the root, or absolute within it. Raises MissingDataError if the first names of a list are all
        missing.
        """
        try:
            name = os.path.normpath(os.fsencode(text))
        except UnicodeEncodeError:
            return b"", None, f"{text!r} is not a name that a file can have"
        if b"\0" in name:
            return b"", None, f"{text!r} is not a name that a file can have"
        path = os.path.join(self._top, name)
        if os.path.isabs(name):
            name = os.path.relpath(os.path.join(self._real_folder(path), os.path.basename(path)), self._top)
        if name == b".." or name.startswith(b"../"):
            return b"", None, f"{text!r} leads out of {self._root}; pass a --root that holds all files"
        try:
            status = os.lstat(path)
            real = os.path.join(self._real_folder(path), os.path.basename(path))
            if stat.S_ISLNK(status.st_mode):
                real, status = os.path.realpath(path), os.stat(path)
        except OSError as exc:
            return name, None, self._missing(text, exc)
        self._has_found = True
        if not is_within(real, self._top):
            return name, None, f"leads out of {self._root}, to {os.fsdecode(real)}; copy or bind-mount what it points to"
        if not stat.S_ISREG(status.st_mode):
            what = "folder" if stat.S_ISDIR(status.st_mode) else "pipe, socket or device"
            return name, None, f"not a regular file but a {what}"
        return name, Origin.whole(name, status.st_size, status.st_mtime_ns), None

    def refuse_wrong_root(self) -> None:
        """Raise MissingDataError if files were named and none exists."""
        if self._num_missing and not self._has_found:
            raise MissingDataError(
                f"{self._listed_in}: none of the first {self._num_missing} files is there; the first is {self._first_missing!r},"
                f" looked for in {self._root}; pass the folder that the names start from as --root"
            )

    def _missing(self, text: str, exc: OSError) -> str:
        self._num_missing += 1
        self._first_missing = self._first_missing or text
        if self._num_missing == _MISSES_IN_A_ROW:
            self.refuse_wrong_root()
        return (
            "no such file" if isinstance(exc, FileNotFoundError | NotADirectoryError) else f"cannot be examined: {exc.strerror}"
        )

    def _real_folder(self, path: bytes) -> bytes:
        folder = os.path.dirname(path)
        real = self._folders.get(folder)
        if real is None:
            if len(self._folders) >= _MAX_FOLDERS:
                self._folders.clear()
            real = self._folders[folder] = os.path.realpath(folder)
        return real
