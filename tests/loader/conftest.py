"""The same 37 samples as a folder, as webdataset shards and converted; made once, not to be changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures import convert, make_folder, write_webdataset


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of one size, 40 x 48."""
    return make_folder(tmp_path_factory.mktemp("folder") / "set", size=(40, 48))


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of sizes that differ, in a folder."""
    return make_folder(tmp_path_factory.mktemp("uneven") / "set")


@pytest.fixture(scope="session")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as webdataset writes it."""
    return write_webdataset(folder, tmp_path_factory.mktemp("shards") / "set")


@pytest.fixture(scope="session")
def converted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as a converted dataset."""
    return convert(folder, tmp_path_factory.mktemp("converted") / "set")
