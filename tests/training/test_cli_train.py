"""`datapipe train`: from a folder to a trained network, stopped and gone on with, and what it refuses."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch

from datapipe.cli.main import main
from datapipe.testing.synthetic_images import make_image_folder

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "import sys; from datapipe.cli.main import main; sys.exit(main(sys.argv[1:]))", "train"]
SMALL = ["--size", "32", "--batch-size", "16", "--num-workers", "1", "--device", "cpu"]


def test_trains_and_reports(photos: Path, others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    arguments = [
        "train",
        str(photos),
        "--val",
        str(others),
        "--epochs",
        "5",
        "--batch-size",
        "15",
        "--size",
        "64",
        "--device",
        "cpu",
    ]
    arguments += ["--lr", "3e-3", "--precision", "bf16", "--num-workers", "1", "--out", str(out), "--json"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["status"] == "finished"
    assert result["epochs"][-1]["val_accuracy"] > 0.8
    assert "cnn: 139,228 weights, 4 classes; 90 images of 64 pixels on cpu" in said.err
    assert "epoch 5/5  train loss" in said.err
    record = json.loads((out / "run.json").read_text())
    assert (record["model_name"], record["num_classes"], record["options"]["precision"]) == ("cnn", 4, "bf16")


def test_a_set_smaller_than_a_batch_trains(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--size", "32", "--batch-size", "128", "--num-workers", "1", "--device", "cpu", "--epochs", "2"]
    assert main(["train", str(photos), *arguments, "--out", str(tmp_path)]) == 0
    assert "finished after 2 epochs, 2 steps" in capsys.readouterr().out


@pytest.mark.nightly
def test_stopped_by_ctrl_c_and_by_sigterm(photos: Path, tmp_path: Path) -> None:
    command = [
        *COMMAND,
        str(photos),
        *SMALL,
        "--epochs",
        "100000",
        "--log-every",
        "1",
        "--out",
        str(tmp_path),
        "--resume",
        "auto",
    ]
    steps = 0
    for number, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        deadline = time.monotonic() + 60
        while num_lines(tmp_path / "metrics.jsonl") < steps + 3:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == expected, said
        assert "Traceback" not in said
        assert ("resuming from" in said) == (steps > 0)
        saved = torch.load(tmp_path / "last.pt", weights_only=True)["place"]["step"]
        assert saved >= steps + 3
        steps = num_lines(tmp_path / "metrics.jsonl")
        assert not list(tmp_path.glob(".*"))


def num_lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


@pytest.fixture
def unlabelled(photos: Path, tmp_path: Path) -> Path:
    """A shard of images without classes."""
    path = tmp_path / "unlabelled.tar"
    with tarfile.open(path, "w") as tar:
        for file in sorted(photos.glob("*/*.jpg"))[:4]:
            data = file.read_bytes()
            info = tarfile.TarInfo(file.name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize(("arguments", "status", "said"), [
    (["/nowhere"], 1, "/nowhere: no such file or directory"),
    (["PHOTOS", "--num-classes", "3"], 2, "labels go up to 3, and a head of 3 classes ends at 2; ask for 4 or more"),
    (["PHOTOS", "--val", "FEWER"], 2, "name different classes (4 and 3 classes); make both with one `datapipe convert --split`"),
    (["PHOTOS", "--model", "cn"], None, "model 'cn'"),
    (["PHOTOS", "--lr", "-1"], 2, "lr is -1.0; it must be greater than 0"),
    (["PHOTOS", "--batch-size", "0"], 2, "--batch-size is 0; it must be at least 1"),
    (["PHOTOS", "--patience", "2"], 2, "there is no validation data"),
    (["PHOTOS", "--resume", "/nowhere.pt"], 1, "/nowhere.pt: no such file"),
    (["UNLABELLED"], 2, "its samples have no label (has: image)"),
])  # fmt: skip
def test_refuses(
    photos: Path,
    unlabelled: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int | None,
    said: str,
) -> None:
    places = {"PHOTOS": photos, "UNLABELLED": unlabelled, "FEWER": tmp_path / "fewer"}
    if "FEWER" in arguments:
        make_image_folder(places["FEWER"], num_images=6, num_classes=3, scale="small")
    arguments = [str(places.get(argument, argument)) for argument in arguments]
    code = main(["train", *arguments, "--num-workers", "1", "--device", "cpu", "--out", str(tmp_path / "out")])
    assert code == status or (status is None and code in (1, 2))
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "out" / "last.pt").exists()
