"""Files in the user's cache in which answers of the Hub are kept for all processes of a machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from datapipe.core import atomic
from datapipe.core.regular_files import read_bytes
from datapipe.core.user_cache import HUB, index_directory


def place_for(of: str, name: str) -> Path:
    """Return the file of that name among those of a server or a dataset. Raises StorageError if nothing can be kept."""
    return index_directory(HUB, digest(of)) / name


def digest(text: str) -> str:
    """Return a name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_kept(place: Path) -> dict[str, Any]:
    """Return what is kept at a place; {} if there is nothing that can be read."""
    try:
        found = msgspec.json.decode(read_bytes(place))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep(place: Path, contents: Mapping[str, Any]) -> None:
    """Keep JSON-safe contents at a place."""
    keep_data(place, json.dumps(contents).encode())


def keep_data(place: Path, data: bytes) -> None:
    """Keep bytes at a place."""
    with atomic.atomic_writer(place, mode=0o600, durable=False) as file:
        file.write(data)
