"""The benchmark of very many files: what it makes, what it runs, what it reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import list_million
from converters import recognise
from converters.options import ConvertOptions


def test_files_are_made_once_in_folders_of_a_thousand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_million, "_PER_FOLDER", 4)
    source = list_million.make_files(tmp_path / "many", 10)
    assert [len(list(folder.iterdir())) for folder in sorted(source.iterdir())] == [4, 4, 2]
    before = source.stat().st_mtime_ns
    assert list_million.make_files(tmp_path / "many", 10).stat().st_mtime_ns == before
    assert recognise(ConvertOptions(source, tmp_path / "out")).form == "image-folder"
    commands = list_million.commands(source, tmp_path / "out", 2)
    assert commands["convert"] == commands["convert-again"]
    times = {"list": 1.0, "convert": 4.0, "convert-again": 4.0, "tar": 2.0}
    rounds = {name: [{"wall_s": times[name], "peak_anonymous_mb": 30.0}] * 3 for name in commands}
    result = list_million.summarise(rounds, {"list": 20.0, "convert": 25.0}, 10, source)
    assert result["contenders"]["convert"]["us_per_file"] == 400_000
    assert result["contenders"]["list"]["files_per_s"] == 10
    assert result["ratios"]["convert / tar"]["ratio"] == 2.0
    assert result["memory"]["list"] == [
        {"num_files": 1, "peak_anonymous_mb": 20.0},
        {"num_files": 10, "peak_anonymous_mb": 30.0},
    ]
