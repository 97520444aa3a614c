"""Finished rows of a table, kept on disk from the first epoch on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table_values import write_table

import datapipe as dp
from datapipe.errors import OptionError
from datapipe.kinds.tables.host_parts import HostTableParts
from datapipe.order.row_order import ShuffledRows

NUM = 1000


def loader_of(tmp_path: Path, **options: Any) -> dp.TableLoader:
    if not (tmp_path / "t.parquet").exists():
        write_table(tmp_path / "t.parquet", NUM, group_rows=50)
    arguments: dict[str, Any] = {
        "columns": {"dense": ["I*"], "ids": ["row", "C*"]}, "label": "label", "seed": 3, "device": "cpu",
        "cache": tmp_path / "kept", "num_workers": 2, "window_nbytes": 20_000,
        "transform": dp.Columns({"C*": dp.Columns.HashBucket(100)}),
    }  # fmt: skip
    return dp.TableLoader(tmp_path / "t.parquet", **({"batch_size": 64, "shuffle": True} | arguments | options))


def rows_of(batches: list[Any]) -> np.ndarray:
    return np.concatenate([x["ids"][:, 0].numpy() for x, _ in batches])


def _rows(piece: Any) -> tuple[int, int, int]:
    return piece.group, piece.start, piece.stop


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The rows that are read: (row group, row of it)."""
    found: list[tuple[int, int]] = []

    def counting(method: Any, group_of: Any) -> Any:
        def counted(self: Any, *arguments: Any) -> Any:
            group, start, stop = group_of(arguments)
            found.extend((group, row) for row in range(start, stop))
            return method(self, *arguments)

        return counted

    monkeypatch.setattr(HostTableParts, "fill", counting(HostTableParts.fill, lambda arguments: _rows(*arguments[2])))
    monkeypatch.setattr(HostTableParts, "keep", counting(HostTableParts.keep, lambda arguments: arguments))
    return found


def test_later_epochs_are_shuffled_in_full_and_read_nothing(tmp_path: Path, filled: list[tuple[int, int]]) -> None:
    loader, plain = loader_of(tmp_path), loader_of(tmp_path, cache=None)
    for (x, y), (expected, label) in zip(loader, plain, strict=True):  # the first epoch is that without a cache
        assert torch.equal(x["ids"], expected["ids"])
        assert torch.equal(x["dense"], expected["dense"])
        assert torch.equal(y, label)
    by_row = {int(x["ids"][i, 0]): (x["ids"][i], x["dense"][i], y[i]) for x, y in plain for i in range(len(y))}
    filled.clear()
    second = list(loader)
    np.testing.assert_array_equal(rows_of(second), ShuffledRows(NUM, 3)(1, np.arange(NUM)))
    for x, y in second:
        for i in range(len(y)):
            ids, dense, label = by_row[int(x["ids"][i, 0])]
            assert torch.equal(x["ids"][i], ids)
            assert torch.equal(x["dense"][i], dense)
            assert y[i] == label
    assert filled == []
    assert [path.suffix for path in (tmp_path / "kept").iterdir() if path.suffix != ".lock"] == [".h5"]


def test_only_what_is_missing_is_read_again(tmp_path: Path, filled: list[tuple[int, int]]) -> None:
    loader = loader_of(tmp_path, num_workers=0)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    first = set(filled)
    filled.clear()
    loader.set_epoch(1)
    assert sorted(rows_of(list(loader))) == list(range(NUM))
    assert len(first) + len(filled) == NUM
    assert filled
    assert len(first | set(filled)) == NUM


def test_another_loader_finds_it(tmp_path: Path, filled: list[tuple[int, int]]) -> None:
    first = loader_of(tmp_path)
    list(first)
    expected = rows_of(list(first))
    filled.clear()
    second = loader_of(tmp_path)
    second.set_epoch(1)
    np.testing.assert_array_equal(rows_of(list(second)), expected)
    assert filled == []
    other = loader_of(tmp_path, transform=None)  # other values: kept apart
    other.set_epoch(1)
    assert next(iter(other))[0]["ids"].max() > 100


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_share_it_and_resume_on_another_number(tmp_path: Path, world_size: int) -> None:
    one = loader_of(tmp_path)
    one.set_epoch(1)
    iterator = iter(one)
    seen = [next(iterator) for _ in range(4)]
    state = one.state_dict()
    rest = []
    for rank in range(world_size):
        if 64 % world_size:
            return
        loader = loader_of(tmp_path, ranks=(rank, world_size), batch_size=64 // world_size)
        loader.load_state_dict(state)
        rest += list(loader)
    assert sorted(rows_of([*seen, *rest])) == list(range(NUM))


def test_rows_of_another_boot_are_not_trusted(tmp_path: Path, filled: list[tuple[int, int]]) -> None:
    loader = loader_of(tmp_path, num_workers=0)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    (log,) = (tmp_path / "kept").glob("*.log")
    log.write_bytes(b"0" * 36 + log.read_bytes()[36:])
    filled.clear()
    again = loader_of(tmp_path)
    again.set_epoch(1)
    assert sorted(rows_of(list(again))) == list(range(NUM))
    assert len(set(filled)) == NUM


@pytest.mark.parametrize(
    ("options", "words"),
    [({"on_error": "skip"}, "on_error='raise'"), ({"shuffle": False}, "shuffle=True"), ({"cache": "ram"}, "choose 'disk'")],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        loader_of(tmp_path, **options)


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        next(iter(loader_of(tmp_path, cache=tmp_path / "file")))
