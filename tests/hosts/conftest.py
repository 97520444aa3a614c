"""Data for the hosts: made once, not to be changed."""

from __future__ import annotations

from pathlib import Path

import host_ranks  # noqa: F401 (the server of processes is told what to import before anybody starts it)
import pytest
from fixtures import convert, make_folder

NUM = 50


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 JPEGs of 3 classes in a folder."""
    return make_folder(tmp_path_factory.mktemp("hosts") / "photos", num=NUM, size=(24, 32))


@pytest.fixture(scope="session")
def shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, converted."""
    return convert(photos, tmp_path_factory.mktemp("hosts") / "shards")
