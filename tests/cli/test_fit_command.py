"""`datapipe fit`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datapipe as dp
from datapipe.cli.main import main


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"I1": [1.0, 2.0, None, 9.0], "C1": ["b", "a", "b", None]}), tmp_path / "t.parquet")
    columns = [["I*", [{"operation": "FillMissing", "value": "median"}]], ["C*", [{"operation": "Categorify"}]]]
    (tmp_path / "recipe.json").write_text(json.dumps({"version": 1, "columns": columns}))
    return tmp_path / "recipe.json"


def test_fit_writes_into_the_recipe(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(tmp_path / "t.parquet"), str(recipe)]) == 0
    told = capsys.readouterr()
    text = told.out + told.err
    assert "I1: fill 2" in text
    assert "C1: 2 values, the most frequent first: b, a" in text
    fitted = dp.Columns.load(recipe)
    loader = dp.TableLoader(tmp_path / "t.parquet", 4, columns={"i": ["I*"], "c": ["C*"]}, transform=fitted)
    (batch,) = list(loader)
    assert batch["i"][:, 0].tolist() == [1, 2, 2, 9]
    assert batch["c"][:, 0].tolist() == [3, 4, 3, 1]
    before = recipe.read_bytes()
    assert main(["fit", str(tmp_path / "t.parquet"), str(recipe), "--workers", "1"]) == 0
    assert recipe.read_bytes() == before


def test_fit_elsewhere_leaves_the_recipe(recipe: Path, tmp_path: Path) -> None:
    before = recipe.read_bytes()
    assert main(["fit", str(tmp_path / "t.parquet"), str(recipe), "--output", str(tmp_path / "fitted.json")]) == 0
    assert recipe.read_bytes() == before
    assert dp.Columns.load(tmp_path / "fitted.json").is_fitted


@pytest.mark.parametrize("broken", ["recipe", "source"])
def test_errors_are_one_line(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str) -> None:
    source = tmp_path / "t.parquet"
    if broken == "recipe":
        recipe.write_text("{}")
    else:
        source = tmp_path / "nothing.parquet"
    assert main(["fit", str(source), str(recipe)]) == 1
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert ("not a recipe" if broken == "recipe" else "no such file") in told[0]
