"""`datapipe demo` from start to end, small; and what it refuses."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest

import datapipe as dp
from datapipe.cli import demo
from datapipe.cli.main import main
from datapipe.errors import DependencyError
from datapipe.kinds.registry import open_path, part
from datapipe.testing.synthetic_images import make_image_folder


@pytest.mark.nightly
def test_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """With small pictures: photographs are made by the test below."""
    monkeypatch.setattr("datapipe.cli.demo.make_image_folder", functools.partial(make_image_folder, scale="small"))
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # which the demo sets
    out = tmp_path / "demo"
    status = main(["demo", "--out", str(out), "--images", "110", "--workers", "1", "--all"])
    said = capfd.readouterr()
    assert status == 0, said.err
    assert "110 samples into WebDataset shards" in said.out
    assert "every byte of the shards is as written" in said.out
    result = json.loads((out / "result.json").read_text())
    assert all(result["images_per_s"][name] > 0 for name in ("torch", "datapipe"))
    loading, training, following = said.out.splitlines()[-3:]
    assert re.fullmatch(
        r"Loading:  datapipe .* from shards, torch .* from files: [\d.]+ times as fast \(1 worker each\)", loading
    )
    assert training == "Training: too few steps to compare; pass more --images"
    assert following.startswith("Next:     datapipe diagnose ")
    for name in ("before", "after"):
        found = json.loads((out / f"diagnosis-{name}" / "diagnosis.json").read_text())
        assert (found["exit_code"], [rank["num_steps"] for rank in found["ranks"]]) == (0, [24])
        assert str(out / f"diagnosis-{name}" / "diagnosis.html") in said.out
    for kind in ("tables", "audio", "clips", "tokens"):
        rate = r"[\d,.]*[1-9][\d,.]* (a second|(M )?\S+/s)"
        assert re.search(rf"^{kind} .* [\d.]+ s\n +\S.* {rate}", said.out, re.MULTILINE), said.out
    assert found["loaders"][0]["kind"] == "datapipe.kinds.loader.DataLoader"
    # a second run keeps the photographs, and says so if their number differs from the requested one
    assert main(["demo", "--out", str(out), "--images", "111"]) == 2
    assert "holds 110 photographs (*/*.jpg), not 111; pass --images 110, or name a new directory" in capfd.readouterr().err


def test_the_last_lines_say_what_came_of_it() -> None:
    change = {"step_s": {"before": 0.0266, "after": 0.0149}, "starvation": {"before": 0.5, "after": 0.169}}
    assert demo._in_short({"torch": 664.0, "datapipe": 1354.0}, change, 2) == [
        "Loading:  datapipe 1,354 images/s from shards, torch 664 from files: 2.0 times as fast (2 workers each)",
        "Training: a step takes 14.9 ms, before 26.6 ms; it waits for data 17% of the time, before 50%",
        "Next:     datapipe diagnose YOUR_SCRIPT.py   (tables, sound, videos and texts: datapipe demo --all)",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--images", "5"], "at least 100"),
        (["--data", "x", "--images", "500"], "give one of them"),
        (["--data", "x", "--photos", "y"], "give one of them"),
        (["--workers", "0"], "at least 1"),
        (["--make", "dreams", "here"], "--make dreams: choose one of tables, audio, clips, conversations, tokens"),
    ],
)
def test_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["demo", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_only_photographs_if_that_is_asked_for(tmp_path: Path) -> None:
    assert main(["demo", "--photos", str(tmp_path / "photos"), "--images", "100"]) == 0
    assert len(list((tmp_path / "photos").glob("*/*.jpg"))) == 100
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["tables", "audio", "tokens"])
def test_data_of_a_kind_is_made_and_recognised(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / part(kind, "trial_data").TITLE
    assert main(["demo", "--make", kind, str(path)]) == 0
    if options := part(kind, "trial_data").convert_options(path):
        assert main(["convert", str(path), str(tmp_path / "converted"), *options]) == 0
        path = tmp_path / "converted"
    assert open_path(path)[0] == kind


@pytest.mark.nightly
def test_videos_that_are_made_show_their_classes(tmp_path: Path) -> None:
    """The camera pans to the left: what was at a place is further to the right in the next frame."""
    assert main(["demo", "--make", "clips", str(tmp_path / "videos")]) == 0
    data = dp.Clips(tmp_path / "videos", frames=2)
    assert data.classes == ("pan-left", "pan-right", "tilt-down", "tilt-up")
    batch = next(iter(dp.DataLoader(data, batch_size=1, device="cpu")))
    first, second = batch["video"][0].numpy().astype(np.int64)
    moved = [int(np.abs(second[:, :, 6:-6] - first[:, :, 6 - step : first.shape[2] - 6 - step]).mean()) for step in (-3, 0, 3)]
    assert moved[2] < min(moved[:2]), moved
    assert main(["demo", "--make", "clips", str(tmp_path / "videos")]) == 0, "what is there is kept"


def test_a_kind_whose_package_is_missing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise DependencyError("sound needs soundfile; pip install 'gpu-datapipe[audio]'")

    monkeypatch.setattr(part("audio", "trial_data"), "make", refused)
    said: list[str] = []
    demo._show("audio", tmp_path, said.append)
    assert re.search(r"^audio    left out: sound needs soundfile; pip install", said[0])


@pytest.mark.parametrize("kind", ["tables", "audio", "tokens"])
def test_a_place_that_cannot_be_written_is_named(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--make", kind, "/proc/nothing"]) == 1
    said = capsys.readouterr().err
    assert "/proc/" in said.splitlines()[-1], said
