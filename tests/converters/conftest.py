"""Fixtures of the converters' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import make_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """24 small JPEGs in 3 classes."""
    return make_tree(tmp_path / "source")
