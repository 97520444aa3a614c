"""Every command, given a name that is too long, of any bytes, a ring of links, a pipe: one line, and no traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixtures import make_folder

from datapipe.cli.main import main

NAMES = {
    "long": "n" * 300,
    "deep": "d" * 200 + 30 * ("/" + "d" * 200),
    "of any bytes": os.fsdecode(b"\xff\xfe"),
    "a ring": "ring",
    "a pipe": "pipe",
    "under a file": "script.py/x",
    "a device": "/dev/null",
}
COMMANDS = {
    "convert": ("convert", "{}", "out", "--to", "webdataset"),
    "convert, manifest": ("convert", "{}", "out", "--to", "webdataset", "--from", "manifest"),
    "convert, coco": ("convert", "{}", "out", "--to", "webdataset", "--from", "coco"),
    "convert, tar": ("convert", "{}", "out", "--to", "webdataset", "--from", "tar"),
    "convert, pairs": ("convert", "{}", "out", "--to", "webdataset", "--from", "pairs"),
    "convert, --root": ("convert", "list.csv", "out", "--to", "webdataset", "--root", "{}"),
    "verify": ("verify", "{}"),
    "inspect": ("inspect", "{}"),
    "index": ("index", "{}"),
    "bench": ("bench", "{}"),
    "train": ("train", "{}", "--device", "cpu"),
    "train, --val": ("train", "data", "--val", "{}", "--device", "cpu"),
    "diagnose": ("diagnose", "--", "{}"),
    "demo": ("demo", "--out", "demo", "--data", "{}"),
}
OUTPUTS = {
    "convert": ("convert", "data", "{}", "--to", "webdataset"),
    "inspect": ("inspect", "data", "--grid", "{}"),
    "inspect, below": ("inspect", "data", "--grid", "{}/sheet.png"),
    "train": ("train", "data", "--device", "cpu", "--out", "{}"),
    "diagnose": ("diagnose", "--out", "{}", "script.py"),
}


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "data", num=4)
    (tmp_path / "list.csv").write_text("path,label\nant/0000.jpg,x\n")
    (tmp_path / "script.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "ring").symlink_to("ring")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_cannot_be_read(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word.replace("{}", NAMES[name]) for word in COMMANDS[command]]) in (1, 2)
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("datapipe: ")


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "of any bytes"])
@pytest.mark.parametrize("command", OUTPUTS)
def test_a_name_that_cannot_be_written(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word.replace("{}", NAMES[name]) for word in OUTPUTS[command]]) in (1, 2)
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("datapipe: ")
