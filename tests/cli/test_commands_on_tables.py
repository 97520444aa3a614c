"""`inspect` and `bench` of tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_values import write_table

import datapipe as dp
from datapipe.cli.main import main


def test_inspect_shows_columns_groups_and_nulls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"x": pa.array([1.0, None, 3.0] * 40), "n": list(range(120)), "s": ["a"] * 120})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    assert main(["inspect", str(tmp_path / "t.parquet")]) == 0
    told = capsys.readouterr().out
    assert "120 rows of 3 columns" in told
    assert "12 row groups of 10 rows\n" in told
    assert "x: double, 40 nulls" in told
    assert "s: string, no nulls" in told
    assert "enough row groups for 3 ranks" in told
    assert "are small" in told
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rows_per_group"] == {"least": 10, "median": 10, "most": 10}


@pytest.mark.parametrize("option", ["--tokenizer", "--processor", "--buckets"])
def test_options_of_other_kinds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    write_table(tmp_path / "t.parquet", 50)
    assert main(["inspect", str(tmp_path / "t.parquet"), option, "4096"]) == 2
    assert re.search(rf"{option}: .*t.parquet holds tables, and no .*; leave it out", capsys.readouterr().err)


def test_inspect_advises_on_a_single_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path / "t.parquet", 50)
    assert main(["inspect", str(tmp_path / "t.parquet")]) == 0
    out = capsys.readouterr().out
    assert "1 row group of 50 rows" in out
    assert "each of several ranks would read whole" in out


def test_a_converted_table_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No index of samples is put next to it, by whatever looks at it."""
    write_table(tmp_path / "t.parquet", 50)
    out = tmp_path / "out"
    assert main(["convert", str(tmp_path / "t.parquet"), str(out), "--to", "parquet"]) == 0
    files = sorted(path.name for path in out.iterdir())
    assert main(["inspect", str(out)]) == 0
    assert main(["verify", str(out)]) == 0
    assert "intact; 50 rows in 1 file," in capsys.readouterr().out
    with pytest.raises(dp.errors.FormatError, match=r"holds a table, and no images; read it with datapipe\.Table"):
        dp.Images(out)
    assert isinstance(dp.DataLoader(out, 4).dataset, dp.Table)
    assert sorted(path.name for path in out.iterdir()) == files


def test_text_is_to_be_converted_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert main(["inspect", str(tmp_path / "t.csv")]) == 1
    assert re.search(r"rows have no places; .*convert it first: datapipe convert .* --to parquet", capsys.readouterr().err)


def test_what_is_neither_is_refused_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing")
    assert main(["inspect", str(tmp_path / "t.parquet")]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_bench_measures_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path / "t.parquet", 500)
    command = ["bench", str(tmp_path / "t.parquet"), "--rounds", "1", "--table-batch-size", "64", "--device", "cpu", "--json"]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["columns"]) == (500, 7)
    assert min(result["rows_per_s"].values()) > 0
