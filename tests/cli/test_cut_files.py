"""`datapipe inspect` of files of tables that were cut: it says so, and of which form they are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from datapipe.cli.main import main

TABLE = pa.table({"a": [1.5, 2.5] * 500, "label": [0, 1] * 500})


@pytest.mark.parametrize("suffix", ["feather", "arrow", "ipc"])
@pytest.mark.parametrize("left", [0.5, 0.99])
def test_a_cut_arrow_file(suffix: str, left: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"t.{suffix}"
    feather.write_feather(TABLE, str(path), compression="uncompressed")
    data = path.read_bytes()
    cut = data[: int(left * len(data))]
    path.write_bytes(cut)
    assert main(["inspect", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"t.{suffix}: not an Arrow file, or " in said
    assert f"it begins as an Arrow or Feather file and its end is missing: it was cut after {len(cut)} bytes" in said


@pytest.mark.parametrize("suffix", ["parquet", "pq"])
def test_a_cut_parquet_file(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"t.{suffix}"
    pq.write_table(TABLE, path)
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["inspect", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"t.{suffix}: not a Parquet file, or " in said
    assert "it begins with 'PAR1' and does not end so: it was cut" in said


def test_feather_of_version_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.feather").write_bytes(b"FEA1" + bytes(64) + b"FEA1")  # which pyarrow will not write for ever
    assert main(["inspect", str(tmp_path / "t.feather")]) == 1
    assert "Feather of version 1, from before 2020" in capsys.readouterr().err
