"""Record which directories are caches of shards when they are opened, so that `datapipe doctor` finds them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from datapipe.core import atomic
from datapipe.core.errors import StorageError
from datapipe.core.private_files import private_directory
from datapipe.core.regular_files import read_bytes
from datapipe.core.user_cache import REMOTE_SHARDS, user_cache
from datapipe.fetch.shard_cache.directory import CacheDirectory


def open_cache_directory(path: Path, nbytes: int | None) -> CacheDirectory:
    """Open a cache directory, and record its path. Raises StorageError if it cannot be used."""
    opened = CacheDirectory(path.absolute(), nbytes)
    place = os.path.realpath(path)
    note = user_cache(REMOTE_SHARDS) / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError):  # the record is for people
        if not note.exists():
            with private_directory(note.parent):
                atomic.write_json(note, {"directory": place}, mode=0o600)
    return opened


def known_cache_directories() -> list[CacheDirectory]:
    """Return the cache directories of this user that still exist."""
    found = []
    for note in sorted(user_cache(REMOTE_SHARDS).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, StorageError):
            place = Path(json.loads(read_bytes(note))["directory"])
            if place.is_dir():
                found.append(CacheDirectory(place, None))
    return found
