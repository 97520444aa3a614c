"""Fixtures of the converters' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures import OF_SAMPLES
from trees import make_tree

from converters.writers import TARGETS, Target


@pytest.fixture(params=OF_SAMPLES)
def target(request: pytest.FixtureRequest) -> Target:
    """Each format of samples in turn."""
    return TARGETS[request.param]


@pytest.fixture
def to(target: Target) -> str:
    """Its name."""
    return next(name for name, other in TARGETS.items() if other is target)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """24 small JPEGs in 3 classes."""
    return make_tree(tmp_path / "source")
