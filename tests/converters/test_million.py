"""The benchmark of very many files: what it makes, what it runs, what it reports, what it leaves."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import million
from converters import recognise
from converters.options import ConvertOptions


def test_files_are_links_in_folders_of_a_thousand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(million, "_PER_FOLDER", 4)
    monkeypatch.setattr(million, "_NUM_MASTERS", 3)
    assert million.make_tree(tmp_path / "many", 10, masters=tmp_path / "masters", files="links") == "links"
    files = sorted((tmp_path / "many").glob("*/*"))
    assert [len(list(folder.iterdir())) for folder in sorted((tmp_path / "many").iterdir())] == [4, 4, 2]
    assert len({path.stat().st_ino for path in files}) == 3
    assert {Image.open(path).size for path in files} == {(16, 16)}
    assert recognise(ConvertOptions(tmp_path / "many", tmp_path / "out")).form == "image-folder"
    assert million.make_tree(tmp_path / "real", 10, masters=tmp_path / "masters", files="real") == "real"
    assert len({path.stat().st_ino for path in (tmp_path / "real").glob("*/*")}) == 10


def test_files_are_real_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def link(source: Path, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    assert million.make_tree(tmp_path / "many", 5, masters=tmp_path / "masters", files="links") == "real"
    assert len(list((tmp_path / "many").glob("*/*.jpg"))) == 5
    assert capsys.readouterr().out.count("cannot be a link (Operation not permitted)") == 1


def test_figures() -> None:
    times = {"list": 1.0, "convert": 4.0, "convert-again": 4.0, "tar": 2.0}
    rounds = {name: [{"wall_s": seconds, "peak_anonymous_mb": 30.0}] * 3 for name, seconds in times.items()}
    result = million.summarise(rounds, {"list": {10: 20.0, 1000: 30.0}, "convert": {10: 25.0, 100: 25.0, 1000: 26.0}}, 1000)
    assert result["contenders"]["convert"]["us_per_file"] == 4000
    assert result["contenders"]["list"]["files_per_s"] == 1000
    assert result["ratios"]["convert / tar"]["ratio"] == 2.0
    assert result["memory"]["convert"]["growth"] == 1.04
    assert [one["num_files"] for one in result["memory"]["convert"]["peaks"]] == [10, 100, 1000]


def test_ten_million_are_extrapolated_openly() -> None:
    """By the growth of the time per file between the two largest sizes, which is never taken to fall."""
    grown = million.scan_times({1_000: 1.0, 10_000: 2.0, 100_000: 22.0})
    assert grown["growth_per_tenfold"] == 1.1
    assert grown["extrapolated"] == {"num_files": 10_000_000, "seconds": pytest.approx(2200 * 1.1**2, abs=0.1)}
    assert million.scan_times({10: 1.0, 100: 2.0})["extrapolated"]["seconds"] == 200_000
    assert million.scan_times({10_000_000: 50.0})["extrapolated"]["seconds"] == 50


@pytest.mark.nightly
def test_parts_must_give_the_bytes_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    million.make_tree(tmp_path / "many", 60, masters=tmp_path / "masters", files="links")
    divided = million.divide(tmp_path / "many", tmp_path / "divided", 60)
    assert divided["same_bytes"]
    assert divided["num_shards"] >= 4
    assert "already converted: 60 samples" in divided["joining"]
    seen = iter([{"a": "1"}, {"a": "2"}])
    monkeypatch.setattr(million, "digests", lambda directory: next(seen))
    monkeypatch.setattr(million, "_run", lambda lines: [""] * len(lines))
    with pytest.raises(SystemExit, match="other bytes than one run: a"):
        million.divide(tmp_path / "many", tmp_path / "again", 60)


@pytest.mark.nightly
def test_all_of_it_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--data", str(tmp_path / "data"), "--results", str(tmp_path / "results")]
    parts = {"num_files": 1, "num_shards": 1, "same_bytes": True, "joining": ""}
    monkeypatch.setattr(million, "divide", lambda source, out, num: parts)  # has a test of its own
    monkeypatch.setattr(sys, "argv", ["million", "--num", "10", "--rounds", "1", "--workers", "1", *places])
    million.main()
    result = json.loads((tmp_path / "results" / "million.json").read_text())
    assert result["dataset"]["files"] == "links"
    assert {one["num_files"] for one in result["memory"]["list"]["peaks"]} == {1, 10}
    assert [one["num_files"] for one in result["scans"]["resume"]["measured"]] == [1, 10]
    assert all(one["seconds"] > 0 for one in result["scans"]["resume"]["measured"])
    assert "the same bytes as one run" in capsys.readouterr().out
    assert list((tmp_path / "data").iterdir()) == [], "it cleans up"


def test_a_full_disk_is_said_beforehand(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"needs \d+\.\d GB and has"):
        million.refuse_full_disk(tmp_path, 10**12, "links")
