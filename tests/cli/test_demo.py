"""`datapipe demo` from start to end, small; and what it refuses."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from datapipe.cli.main import main
from datapipe.testing.synthetic_images import make_image_folder

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """With small pictures: photographs are made by the test below."""
    monkeypatch.setattr("datapipe.cli.demo.make_image_folder", functools.partial(make_image_folder, scale="small"))
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # which the demo sets
    out = tmp_path / "demo"
    status = main(["demo", "--out", str(out), "--images", "130", "--workers", "1"])
    said = capfd.readouterr()
    assert status == 0, said.err
    assert "130 samples into WebDataset shards" in said.out
    assert "every byte of the shards is as written" in said.out
    result = json.loads((out / "result.json").read_text())
    assert all(result["images_per_s"][name] > 0 for name in ("torch", "datapipe"))
    assert "not enough steps" in said.out  # to diagnose
    for name in ("before", "after"):
        found = json.loads((out / f"diagnosis-{name}" / "diagnosis.json").read_text())
        assert (found["exit_code"], [rank["num_steps"] for rank in found["ranks"]]) == (0, [2])
        assert str(out / f"diagnosis-{name}" / "diagnosis.html") in said.out
    assert found["loaders"][0]["kind"] == "datapipe.kinds.loader.DataLoader"
    # a second run keeps the photographs, and says so if their number differs from the requested one
    assert main(["demo", "--out", str(out), "--images", "131"]) == 2
    assert "holds 130 photographs, not 131" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--images", "5"], "at least 100"),
        (["--data", "x", "--images", "500"], "give one of them"),
        (["--data", "x", "--photos", "y"], "give one of them"),
        (["--workers", "0"], "at least 1"),
    ],
)
def test_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["demo", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_only_photographs_if_that_is_asked_for(tmp_path: Path) -> None:
    assert main(["demo", "--photos", str(tmp_path / "photos"), "--images", "100"]) == 0
    assert len(list((tmp_path / "photos").glob("*/*.jpg"))) == 100
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
