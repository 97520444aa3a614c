"""`TableLoader`: what its batches hold, its windows, and bad row groups. What all loaders promise is in the suite of loaders."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_values import table_of, write_groups, write_table

import datapipe as dp
from datapipe.kinds.tables.parts import LoadedWindow

NUM_ROWS = 3210
GROUPS = {"dense": ["I*"], "ids": ["C*", "row"]}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,210 rows in two files, row groups of 100 rows and a rest."""
    root = tmp_path_factory.mktemp("table")
    write_table(root / "a.parquet", 2000)
    write_table(root / "b.parquet", NUM_ROWS - 2000, first=2000)
    return root


def load(table: Path, **options: Any) -> dp.TableLoader:
    arguments = {"batch_size": 64, "shuffle": True, "seed": 5, "num_workers": 2, "columns": GROUPS, "label": "label"}
    return dp.TableLoader(table, **{**arguments, **options})


def rows_of(batch: Any) -> np.ndarray:
    """The row numbers of a batch, once everything else in it is what they say."""
    x, y = batch[:2]
    rows = x["ids"][:, 2].numpy()
    expected = table_of(rows)
    assert np.array_equal(x["dense"].numpy(), np.stack([expected[f"I{j}"].to_numpy() for j in range(3)], 1))
    assert np.array_equal(x["ids"][:, :2].numpy(), np.stack([expected[f"C{j}"].to_numpy() for j in range(2)], 1))
    assert np.array_equal(y.numpy(), expected["label"].to_numpy())
    return rows


def epoch_of(loader: dp.TableLoader) -> list[list[int]]:
    return [rows_of(batch).tolist() for batch in loader]


def test_shapes_and_dtypes(table: Path) -> None:
    x, y = next(iter(load(table)))
    assert (x["dense"].shape, x["dense"].dtype) == ((64, 3), torch.float32)
    assert (x["ids"].shape, x["ids"].dtype) == ((64, 3), torch.int64)  # int32 and int64
    assert (y.shape, y.dtype) == ((64,), torch.float32)
    assert x["dense"].is_contiguous()
    assert x["ids"].is_contiguous()


def test_what_a_batch_is(table: Path) -> None:
    x, y = next(iter(load(table, columns=["I*"])))
    assert x.shape == (64, 3)
    assert next(iter(load(table, columns=["I*"], label=None))).shape == (64, 3)
    x, y = next(iter(load(table, columns=["I*"], label=["label", "I0"])))
    assert y.shape == (64, 2)
    both = next(iter(load(table, label=None)))
    assert sorted(both) == ["dense", "ids"]
    x, y, real = next(iter(load(table, columns=["I*"], tail="mask")))
    assert (real.dtype, real.shape) == (torch.bool, (64,))
    x, _ = next(iter(load(table, columns=["C*"], dtypes=torch.float32)))
    assert x.dtype is torch.float32
    summed = next(iter(load(table, columns=["I*"], batch_transform=lambda batch: batch[0].sum(1))))
    assert summed.shape == (64,)


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_texts_that_are_encoded_as_differences(tmp_path: Path, encoding: str) -> None:
    """As DuckDB, Spark and parquet-mr write them in version 2; pyarrow reads no such column as dictionaries."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"word": ["x", "y", "x"]}), path, use_dictionary=False, column_encoding={"word": encoding})
    recipe = dp.Columns({"word": dp.Columns.Categorify()}).fit(path)
    ids = next(iter(dp.DataLoader(dp.Table(path, columns={"word": ["word"]}, transform=recipe), 3)))
    assert ids.flatten().tolist() == [3, 4, 3]  # ids that stand for no text of the fit are 0 to 2


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd", "stream"])
def test_arrow_files_give_the_rows_of_parquet(tmp_path: Path, compression: str) -> None:
    rows, path = table_of(np.arange(300)), tmp_path / "t.feather"
    pq.write_table(rows, tmp_path / "t.parquet", row_group_size=40)
    if compression == "stream":
        with pa.ipc.new_stream(path, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=40)
    else:
        feather.write_feather(rows, str(path), compression=compression, chunksize=40)
    assert epoch_of(load(path)) == epoch_of(load(tmp_path / "t.parquet"))
    whole = list(load(path, columns=None, label=None, shuffle=False, dtypes="float64"))
    assert np.array_equal(torch.cat(whole).numpy(), np.stack([column.to_numpy() for column in rows.columns], 1))


def test_a_shuffled_batch_mixes_row_groups(table: Path) -> None:
    batches = [np.array(rows) for rows in epoch_of(load(table, batch_size=256))]
    assert min(len(np.unique(rows // 100)) for rows in batches[:-1]) >= 8


@pytest.mark.nightly
@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=25),
    batch_size=st.integers(1, 50),
    world_size=st.integers(1, 4),
    budget=st.integers(1, 20_000),
    tail=st.sampled_from(["pad", "drop", "mask"]),
    shuffle=st.booleans(),
    cut=st.integers(0, 100),
)
def test_any_table_any_split(
    tmp_path: Path, sizes: list[int], batch_size: int, world_size: int, budget: int, tail: str, shuffle: bool, cut: int
) -> None:
    """Exactly once and equal steps over ranks; a resumed pass is the rest of the whole one."""
    path, num = write_groups(tmp_path / "t.parquet", sizes), sum(sizes)
    options = {"batch_size": batch_size, "window_nbytes": budget, "tail": tail, "shuffle": shuffle}
    seen: list[np.ndarray] = []
    lengths = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **kwargs: None)
        for rank in range(world_size):
            loader = load(path, ranks=(rank, world_size), num_workers=0, **options)
            batches = list(loader)
            lengths |= {len(batches), len(loader)}
            found = [rows_of(batch)[batch[2].numpy()] if tail == "mask" else rows_of(batch) for batch in batches]
            seen += found
            again = load(path, ranks=(rank, world_size), num_workers=1, **options)
            taken = min(cut, len(batches))
            iterator = iter(again)
            for _ in range(taken):
                next(iterator)
            resumed = load(path, ranks=(rank, world_size), num_workers=0, **options)
            resumed.load_state_dict(again.state_dict())
            rest = [rows_of(batch)[batch[2].numpy()] if tail == "mask" else rows_of(batch) for batch in resumed]
            assert [one.tolist() for one in rest] == [one.tolist() for one in found[taken:]]
    assert len(lengths) == 1
    rows = np.concatenate([*seen, np.empty(0, np.int64)])
    if tail == "drop":
        assert len(rows) == len(np.unique(rows)) == num // (batch_size * world_size) * batch_size * world_size
    else:
        assert np.array_equal(np.unique(rows), np.arange(num))
        assert len(rows) - num < (1 if tail == "mask" else world_size)


def test_states_say_what_differs(table: Path, tmp_path: Path) -> None:
    loader = load(table)
    next(iter(loader))
    state = loader.state_dict()
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"columns": ["I*"]}, "other columns"),
        ({"window_nbytes": 10_000}, "row windows of"),
        ({"batch_size": 32}, "batch_size x world_size = 64"),
    ]
    for options, reason in refusals:
        with pytest.raises(dp.errors.StateError, match=reason):
            load(table, **options).load_state_dict(state)
    write_table(tmp_path / "other.parquet", 3210)
    with pytest.raises(dp.errors.StateError, match="another dataset"):
        load(tmp_path / "other.parquet").load_state_dict(state)


def test_labels_alone_do_not_keep_the_rest(table: Path) -> None:
    labels = [y for _, y in load(table)]
    assert all(len(y) <= 64 and y.untyped_storage().nbytes() <= 64 * 4 for y in labels)


def windows_in_memory() -> int:
    gc.collect()
    return sum(type(one) is LoadedWindow for one in gc.get_objects())


@pytest.mark.nightly
def test_a_pass_left_early_ends_its_threads_and_its_memory(table: Path) -> None:
    before, held_before = threading.active_count(), windows_in_memory()
    loader = load(table)
    for number, _ in enumerate(loader):
        if number == 3:
            break
    assert epoch_of(loader)
    del loader, _
    gc.collect()
    assert threading.active_count() == before
    assert windows_in_memory() == held_before


@pytest.mark.nightly
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_memory_is_bounded_by_the_windows(table: Path, num_workers: int) -> None:
    """A lane has a window and the one to come, and a third while a step crosses from one to the next.

    One thread alone may never have time to read ahead, and what it did not get to holds nothing.
    """
    held_before = windows_in_memory()
    loader = load(table, batch_size=64, window_nbytes=48 * 100 * 8, num_workers=num_workers)
    order = loader._passes.source().order
    assert order.kind == "row windows of 1 groups in 4 lanes"
    iterator, most = iter(loader), 0
    for step in range(len(loader)):
        next(iterator)
        if step % 16 == 15:
            most = max(most, windows_in_memory() - held_before)
    assert 0 < most <= 3 * 4 + loader.options.depth + 1


@pytest.mark.daily(1)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_that_an_error_ends_leaves_no_threads_and_no_memory(tmp_path: Path, num_workers: int) -> None:
    before, held_before = threading.active_count(), windows_in_memory()
    pq.write_table(pa.table({"x": pa.array([*range(500), None], pa.int64())}), tmp_path / "t.parquet")
    with pytest.raises(dp.errors.OptionError, match="column 'x' has 1 null in row group 0"):
        list(dp.TableLoader(tmp_path / "t.parquet", 10, columns=["x"], num_workers=num_workers))
    assert windows_in_memory() == held_before
    assert threading.active_count() == before


def test_observers_see_the_stages(table: Path) -> None:
    loader, seen = load(table), []
    loader.observe(seen.append)
    list(loader)
    rows = {stage: sum(event.num_samples for event in seen if event.stage is stage) for stage in dp.Stage}
    assert rows[dp.Stage.PLAN] == rows[dp.Stage.COLLATE] == rows[dp.Stage.WAIT] == NUM_ROWS
    assert rows[dp.Stage.READ] == rows[dp.Stage.DECODE] >= NUM_ROWS


# -- bad input ---------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """1,000 rows in ten row groups, of which one does not decode."""
    path = tmp_path / "t.parquet"
    pq.write_table(table_of(np.arange(1000)), path, row_group_size=100, write_page_checksum=True, use_dictionary=False)
    metadata = pq.read_metadata(path).row_group(4).column(0)
    data = bytearray(path.read_bytes())
    middle = metadata.data_page_offset + metadata.total_compressed_size // 2
    data[middle : middle + 32] = bytes(32)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_row_group_raises_and_the_pass_goes_on(damaged: Path, num_workers: int) -> None:
    loader = load(damaged, num_workers=num_workers, shuffle=False, batch_size=50)
    iterator, found, errors = iter(loader), [], []
    for _ in range(len(loader)):
        try:
            found += rows_of(next(iterator)).tolist()
        except dp.errors.IntegrityError as exc:
            errors.append(str(exc))
    assert found == [*range(400), *range(500, 1000)]
    assert len(errors) == 2
    assert all("t.parquet: row group 4: a page differs from its checksum" in error for error in errors)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_bad_row_group_is_skipped(damaged: Path, num_workers: int) -> None:
    loader = load(damaged, num_workers=num_workers, on_error="skip", batch_size=50)
    batches = epoch_of(loader)
    assert len(batches) == len(loader) == 20
    assert sorted(row for rows in batches for row in rows) == [*range(400), *range(500, 1000)]
    assert {bad.id for bad in loader.bad_samples} == {400}
    assert "t.parquet: row group 4 (100 rows from row 400" in loader.bad_samples[0].where


def test_a_bad_row_group_is_replaced(damaged: Path) -> None:
    options = {"on_error": "replace", "batch_size": 50, "window_nbytes": 48 * 100 * 8}
    batches = epoch_of(load(damaged, **options))
    assert [len(rows) for rows in batches] == [50] * 20
    rows = [row for rows in batches for row in rows]
    assert set(rows) == {*range(400), *range(500, 1000)}
    assert epoch_of(load(damaged, num_workers=0, **options)) == batches
    halves = [epoch_of(load(damaged, ranks=(rank, 2), **{**options, "batch_size": 25})) for rank in range(2)]
    assert [sorted([*one, *other]) for one, other in zip(*halves, strict=True)] == [sorted(step) for step in batches]


def test_a_window_of_bad_row_groups_cannot_be_replaced(damaged: Path) -> None:
    with pytest.raises(dp.errors.DecodeError, match="all 1 row groups of a window are bad"):
        list(load(damaged, on_error="replace", shuffle=False))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"columns": ["X*"]}, "no column matches 'X\\*'"),
        (
            {"label": "I0", "columns": ["I0", "I1"]},
            "'I0' matches nothing but the label.*; leave 'I0' out of columns=",
        ),
        ({"label": "nothing"}, "no column 'nothing'"),
        ({"columns": {}}, "columns is empty"),
        ({"columns": {"a": []}}, "group 'a' is empty"),
        ({"columns": ["I0", "C0"]}, "float32 does not hold every int32"),
        ({"columns": {"label": ["I*"]}}, "a group is named 'label'"),
        ({"columns": 5}, "pass names or patterns"),
        ({"dtypes": {"other": "int8"}}, "dtypes names the group 'other'"),
        ({"dtypes": {"ids": "complex64"}}, "is not one of"),
        ({"dtypes": {"dense": "int64"}}, "would cut it off"),
        ({"backend": "dali"}, "backend is 'dali'"),
        ({"window_nbytes": 0}, "window_nbytes is 0"),
    ],
)
def test_arguments_that_make_no_sense(table: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(dp.errors.OptionError, match=reason):
        load(table, **options)


def test_too_few_row_groups_for_the_ranks_is_said(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_table(tmp_path / "t.parquet", 300)
    loader = load(path, batch_size=8, ranks=(0, 4))
    with pytest.warns(RuntimeWarning, match=r"3 row groups make 1 lane\(s\) for 4 ranks"):
        next(iter(loader))
    print(dp.explain(loader))
    assert "up to 4 ranks read each row group" in capsys.readouterr().out


def test_explain(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print(dp.explain(load(table)))
    out = capsys.readouterr().out
    assert "3,210 rows in 2 files, 33 row groups of 10 to 100 rows" in out
    assert "shuffled in windows of" in out
    assert "dense: (b, 3) float32" in out
    assert "label: (b,) float32" in out
    assert "seed      5, as given" in out


def test_a_path_of_a_table_is_recognised(table: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"columns: the group 'x' has row .* give each kind a group of its own"):
        dp.DataLoader(table / "a.parquet")
    with pytest.raises(dp.errors.FormatError, match=r"holds a table, and no images; read it with datapipe\.Table"):
        dp.Images(table / "a.parquet")
    loader = dp.DataLoader(dp.Table([table / "a.parquet"], columns=["I0"]), 4)
    assert next(iter(loader)).shape == (4, 1)


def test_values_that_no_dtype_holds_are_named_with_their_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"u": pa.array([2**63] * 9, pa.uint64())}), tmp_path / "t.parquet")
    with pytest.raises(dp.errors.DecodeError, match=r"t\.parquet: row group 0: column 'u' holds unsigned values beyond int64"):
        list(dp.TableLoader(tmp_path, 4))
