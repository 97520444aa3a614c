"""Open the two files of a store on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from datapipe.core import atomic
from datapipe.core.errors import StorageError
from datapipe.core.user_cache import open_private, private_directory

ABOUT_NAME = "about.json"


class StoreFiles:
    """Descriptors of a store's index and data, closed when nothing refers to them any more."""

    def __init__(self, index: int, data: int, *, where: str, in_memory: bool) -> None:
        self.index = index
        self.data = data
        self.where = where  # its name in messages
        self.in_memory = in_memory

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the interpreter's end `os` may be gone
        close(self.index)
        close(self.data)


def open_on_disk(directory: Path, about: dict[str, str]) -> StoreFiles:
    """Open the files in `directory`, created if missing, for this user alone. `about`: written next to them, for people.

    Raises StorageError if they can be neither opened nor created, or are not this user's own.
    """
    opened: list[int] = []
    try:
        with private_directory(directory) as here:
            if not (directory / ABOUT_NAME).exists():
                atomic.write_json(directory / ABOUT_NAME, about, mode=0o600)
            for name in ("index", "data"):
                opened.append(open_private(name, here, where=directory))  # noqa: PERF401  # those opened are closed on an error
    except OSError as exc:
        for descriptor in opened:
            os.close(descriptor)
        raise StorageError(
            exc.errno, f"cache: {directory}: cannot be written ({exc.strerror}); pass a directory that can, or cache='ram'"
        ) from exc
    return StoreFiles(*opened, where=str(directory), in_memory=False)
