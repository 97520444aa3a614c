"""Generated photographs of four classes, made once, not to be changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.testing.synthetic_images import make_image_folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 of them, to train on."""
    return make_image_folder(tmp_path_factory.mktemp("photos") / "set", num_images=90, num_classes=4, scale="small")


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 more of the same classes, to validate on."""
    return make_image_folder(tmp_path_factory.mktemp("others") / "set", num_images=37, num_classes=4, scale="small", seed=9)
