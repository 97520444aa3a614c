"""Datasets of the same 37 samples; made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures import make_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 JPEGs of one size. Not to be changed."""
    return make_folder(tmp_path_factory.mktemp("folder") / "set", size=(40, 48))
