"""The benchmark of recording: it runs, and its figures are of the right kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures import make_folder

from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.recording import measure


@pytest.mark.nightly
def test_recording_is_timed_apart_from_the_images(tmp_path: Path) -> None:
    try:
        import_torchvision()
    except ImportError:
        pytest.skip("torchvision is not installed")
    root = make_folder(tmp_path / "folder", num=70, size=(300, 400))
    found = measure(root, num_batches=1, num_rounds=1)["kinds"]
    assert set(found) == {"path", "functional", "two-crops"}
    for one in found.values():
        assert min(one["opening_us"], one["recording_us"], one["eager_us"]) > 0  # which is least says only an idle machine
