"""The benchmark of tables: its figures, and that its contenders give each row."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import large_table, table_contenders, tables
from datapipe.kinds.tables.trial_data import make


def test_bars_name_contenders_and_are_judged() -> None:
    names = [name for bar in tables.BARS for name in bar[:2]]
    assert set(names) <= set(table_contenders.CONTENDERS)
    rounds = {name: [[100.0, 90.0]] * 3 for name in table_contenders.CONTENDERS}
    rounds["datapipe, 65,536"] = [[50.0, 30.0]] * 3
    result = {**tables.summarise(rounds), "lock_held_ms_per_batch": 1.0, "memory_mb": {}}
    bare = result["speed"]["datapipe, 65,536 / bare"]
    assert (bare["ratio"], bare["cpu"]["ratio"], bare["bar"]) == (2.0, 3.0, 0.45)
    told = "\n".join(tables.as_lines(result))
    assert "datapipe, 65,536 / bare: 2.00x [2.00, 2.00], bar 0.45x holds; by CPU 3.00x" in told
    assert "TensorDataset, from_torch / TensorDataset, torch: 1.00x [1.00, 1.00], bar 20.0x MISSED" in told


@pytest.mark.parametrize("name", ["bare", "datapipe, 65,536", "Arrow take by hand", "order alone"])
def test_contenders_run(tmp_path: Path, name: str) -> None:
    make(tmp_path / "t.parquet", 3000)
    clock, cpu = table_contenders.CONTENDERS[name](tmp_path / "t.parquet")
    assert clock > 0
    assert cpu >= 0


def test_a_large_table_is_trained_on_once(tmp_path: Path) -> None:
    large_table.write(tmp_path, 20_000)
    found = large_table.train(tmp_path, 1000)
    assert len(found["memory_mb"]) == 10
    told = large_table.as_line({"settings": {"num_rows": 20_000}, **found})
    assert "20000 rows at" in told
    assert told.endswith("flat" if found["is_flat"] else "NOT FLAT")
