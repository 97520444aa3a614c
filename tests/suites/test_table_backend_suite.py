"""The contract of every backend of tables: the same batches, whatever reads the row groups.

What is expected of a batch is computed from the file by pandas. A new backend joins by one entry in BACKENDS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cudf_device import fake_gpu, on_host
from fake_device import FakeDevice
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

import datapipe as dp
from datapipe.containers.tables.files import open_table

NUM = 1200
BACKENDS = ("tables_arrow", "tables_cudf")
C = dp.Columns


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of numbers with and without nulls, times and strings, in row groups of 90 rows."""
    rng, root = np.random.default_rng(0), tmp_path_factory.mktemp("suite")
    row = np.arange(NUM)

    def holes(values: Any, kind: Any = None) -> pa.Array:
        return pa.array(values, kind, mask=rng.random(NUM) < 0.2)

    data = {
        "row": row,
        "f32": rng.normal(size=NUM).astype(np.float32),
        "f64": rng.normal(size=NUM),
        "fnull": holes(rng.normal(size=NUM).astype(np.float32)),
        "i8": (row % 100).astype(np.int8),
        "i16": (row * 7 % 30_000).astype(np.int16),
        "u8": (row % 256).astype(np.uint8),
        "u16": (row * 53 % 65_536).astype(np.uint16),
        "u32": (row.astype(np.uint64) * 3_579_139 % 2**32).astype(np.uint32),
        "inull": holes(row * 11, pa.int64()),
        "flag": row % 3 == 0,
        "bnull": holes(row % 2 == 0),
        "time": pa.array(row * 1_000_003, pa.timestamp("us", "UTC")),
        "day": pa.array(row.astype(np.int32), pa.date32()),
        "word": pa.array([None if n % 13 == 0 else f"w{n % 17}" for n in row]),
        "code": pa.array([f"c{n % 5}" for n in row]).dictionary_encode(),
        "label": (row % 2).astype(np.float32),
    }
    whole = pa.table(data)
    for number, (start, stop) in enumerate(((0, 700), (700, NUM))):
        pq.write_table(whole.slice(start, stop - start), root / f"part-{number}.parquet", row_group_size=90)
    return root


class Backend:
    """Opens loaders of one backend, and reads their batches to the host."""

    def __init__(self, name: str, fake: FakeDevice | None) -> None:
        self.name, self._fake = name, fake

    def load(self, source: Path, **options: Any) -> dp.TableLoader:
        arguments = {"batch_size": 64, "shuffle": True, "seed": 5, "num_workers": 2, "columns": ["row"], "window_nbytes": 40_000}
        device = "cpu" if self._fake is None else "cuda"
        return dp.TableLoader(source, **{**arguments, "backend": self.name, "device": device, **options})

    def batches(self, loader: dp.TableLoader, count: int | None = None) -> list[Any]:
        """The batches of a pass, or the first of it."""
        later: list[Callable[[], Any]] = []
        for number, batch in enumerate(loader, 1):
            later.append((lambda batch=batch: batch) if self._fake is None else on_host(self._fake, batch))  # type: ignore[misc]
            if number == count:
                break
        if self._fake is not None:
            self._fake.drain()
        return [read() for read in later]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with ExitStack() as stack:
        fake = stack.enter_context(fake_gpu()) if request.param == "tables_cudf" else None
        yield Backend(request.param, fake)


def frame_of(table: Path) -> pd.DataFrame:
    return pq.read_table(table).to_pandas()


GROUPS: dict[str, tuple[Any, str]] = {  # columns, dtype
    "float32": (["f32"], "float32"),
    "floats with nulls": (["f32", "fnull", "f64"], "float64"),
    "small integers": (["i8", "i16", "u8"], "int16"),
    "unsigned": (["u16", "i16"], "int32"),
    "unsigned and long": (["u32", "row"], "int64"),
    "booleans": (["flag"], "bool"),
    "times": (["time", "row"], "int64"),
    "days": (["day"], "int32"),
}


@pytest.mark.daily(7)
@pytest.mark.parametrize("case", GROUPS)
def test_types_keep_their_values(backend: Backend, table: Path, case: str) -> None:
    columns, dtype = GROUPS[case]
    frame = frame_of(table)
    groups = {"x": columns, "at": ["row"]}
    batches = backend.batches(backend.load(table, columns=groups, label="label"))
    for x, y in batches:
        rows = x["at"][:, 0].numpy()
        assert str(x["x"].dtype) == f"torch.{dtype}"
        expected = np.stack([_numbers(frame[name]).to_numpy(dtype)[rows] for name in columns], 1)
        np.testing.assert_array_equal(x["x"].numpy(), expected)
        np.testing.assert_array_equal(y.numpy(), frame["label"].to_numpy()[rows])
    assert sorted(np.concatenate([x["at"][:, 0] for x, _ in batches]).tolist()) == list(range(NUM))


def _numbers(column: pd.Series) -> pd.Series:
    if column.name == "time":
        return column.astype("datetime64[us, UTC]").astype("int64")
    if column.name == "day":
        return (pd.to_datetime(column) - pd.Timestamp(0)).dt.days
    return column


@pytest.mark.parametrize("name", ["inull", "bnull"])
def test_nulls_are_nan_where_a_floating_dtype_is_asked_for(backend: Backend, table: Path, name: str) -> None:
    frame = frame_of(table)
    for x in backend.batches(backend.load(table, columns={"x": [name], "at": ["row"]}, dtypes={"x": "float64"})):
        expected = frame[name].astype("Float64").to_numpy(np.float64, na_value=np.nan)[x["at"][:, 0].numpy()]
        np.testing.assert_array_equal(x["x"][:, 0].numpy(), expected)


def test_nulls_among_integers_name_column_file_and_count(backend: Backend, table: Path) -> None:
    with pytest.raises(
        dp.errors.OptionError, match=r"part-\d.parquet: column 'inull' has \d+ nulls in row group \d+, and int64 has no value"
    ):
        backend.batches(backend.load(table, columns=["inull"]))


def test_strings_without_an_operation_are_refused(backend: Backend, table: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match="strings are not numbers"):
        backend.load(table, columns=["word"])


RECIPES: dict[str, tuple[list[str], Any]] = {
    "filled by a number": (["fnull"], C.FillMissing(1.5, indicator=True)),
    "filled by the mean, normalised": (["fnull", "f32"], [C.FillMissing("mean"), C.Normalize()]),
    "integers filled by a fraction": (["inull"], [C.FillMissing(0.5)]),
    "integers filled and logarithms": (["inull"], [C.FillMissing(0), C.Log1p()]),
    "clipped": (["f64"], C.Clip(-0.5, 0.25)),
    "integers clipped": (["i16"], C.Clip(10, 2000)),
    "integers clipped between fractions": (["i16"], C.Clip(10.5, 2000)),
    "buckets": (["fnull"], [C.FillMissing(0), C.Bucketize((-1.0, 0.0, 0.5))]),
    "buckets of integers": (["i8"], C.Bucketize((10.0, 50.5))),
    "ids of integers": (["inull", "i8"], C.Categorify(min_count=2)),
    "ids of integers, few of them": (["i8"], C.Categorify(max_size=7)),
    "ids of floats": (["fnull"], C.Categorify()),
    "buckets of hashes": (["inull", "u32"], C.HashBucket(997)),
    "buckets of hashes of floats": (["fnull"], C.HashBucket(50)),
    "ids of strings": (["word", "code"], C.Categorify(min_count=2)),
    "buckets of hashes of strings": (["word"], [C.HashBucket(11), C.Cast("int64")]),
    "cast": (["i16"], C.Cast("float32")),
    "cast to a wider integer": (["u8"], C.Cast("int64")),
}


@pytest.mark.daily(12)
@pytest.mark.parametrize("case", RECIPES)
def test_operations_give_what_the_recipe_says(backend: Backend, table: Path, case: str) -> None:
    """Expected is what the operations give of one block of all values, in the order of the file."""
    names, operations = RECIPES[case]
    recipe = C(dict.fromkeys(names, operations)).fit(table)
    index = open_table(table)
    whole = {name: pq.read_table(table).column(name).unify_dictionaries().combine_chunks() for name in names}
    expected = [
        chain.bind(whole[name] if isinstance(whole[name], pa.Array) else whole[name].chunk(0), index.column(name))(0, NUM)
        for name in names
        for chain in recipe.chains_of(index.column(name))
    ]
    groups = {"at": ["row"]} | {name: [name] for name in names}
    seen = 0
    for x in backend.batches(backend.load(table, columns=groups, transform=recipe)):
        rows = x["at"][:, 0].numpy()
        found = np.concatenate([x[name].numpy().astype(np.float64) for name in names], 1)
        theirs = np.stack([values[rows].astype(np.float64) for values in expected], 1)
        np.testing.assert_allclose(found, theirs, rtol=1e-6, atol=1e-7)
        seen += len(rows)
    assert seen == NUM


@pytest.mark.daily(5)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_batches_are_the_same_whatever_reads_them(backend: Backend, table: Path, shuffle: bool, num_workers: int) -> None:
    options = {"shuffle": shuffle, "columns": {"x": ["f32", "fnull"], "at": ["row"]}, "label": "label", "tail": "mask"}
    plain = list(Backend("tables_arrow", None).load(table, num_workers=0, **options))
    found = backend.batches(backend.load(table, num_workers=num_workers, **options))
    assert len(found) == len(plain)
    for (x, *rest), (theirs, *others) in zip(found, plain, strict=True):
        assert all(np.array_equal(x[name].numpy(), theirs[name].numpy(), equal_nan=True) for name in theirs)
        assert all(torch.equal(one, other) for one, other in zip(rest, others, strict=True))


def test_a_state_moves_between_backends(backend: Backend, table: Path) -> None:
    plain = Backend("tables_arrow", None)
    whole = [x[:, 0].tolist() for x in plain.load(table, num_workers=0)]
    begun = backend.load(table)
    assert [x[:, 0].tolist() for x in backend.batches(begun, 7)] == whole[:7]
    state = json.loads(json.dumps(begun.state_dict()))
    for one in (plain, backend):
        rest = one.load(table)
        rest.load_state_dict(state)
        assert [x[:, 0].tolist() for x in one.batches(rest)] == whole[7:]


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_an_epoch(backend: Backend, table: Path, world_size: int) -> None:
    loaders = [backend.load(table, batch_size=48 // world_size, ranks=(rank, world_size)) for rank in range(world_size)]
    found = [backend.batches(loader) for loader in loaders]
    assert len({len(one) for one in found}) == 1
    rows = torch.cat([x[:, 0] for one in found for x in one])
    assert sorted(set(rows.tolist())) == list(range(NUM))


def test_a_function_of_the_batch_comes_last(backend: Backend, table: Path) -> None:
    loader = backend.load(table, columns=["i8", "i16"], batch_transform=lambda x: x.sum(1))
    assert all(x.shape == (len(x),) for x in backend.batches(loader))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """1,000 rows in ten row groups, of which one does not decode."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"row": np.arange(1000)}), path, row_group_size=100, use_dictionary=False, compression="zstd")
    chunk = pq.read_metadata(path).row_group(4).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)
    return path


def test_a_bad_row_group_raises_and_the_pass_goes_on(backend: Backend, damaged: Path) -> None:
    iterator, found, errors = iter(backend.load(damaged, shuffle=False, batch_size=50)), 0, []
    for _ in range(20):
        try:
            found += len(next(iterator))
        except dp.errors.DecodeError as exc:
            errors.append(str(exc))
    assert found == 900
    assert len(errors) == 2
    assert all("t.parquet: row group 4: does not decode" in error for error in errors)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_bad_row_group_is_left_out(backend: Backend, damaged: Path, on_error: str) -> None:
    loader = backend.load(damaged, on_error=on_error, batch_size=50, window_nbytes=48 * 100 * 8)
    batches = backend.batches(loader)
    assert len(batches) == 20
    rows = torch.cat([x[:, 0] for x in batches]).tolist()
    assert set(rows) == {*range(400), *range(500, 1000)}
    assert len(rows) == (900 if on_error == "skip" else 1000)
    assert {bad.id for bad in loader.bad_samples} == {400}
    plain = Backend("tables_arrow", None).load(damaged, on_error=on_error, batch_size=50, window_nbytes=48 * 100 * 8)
    assert [x[:, 0].tolist() for x in plain] == [x[:, 0].tolist() for x in batches]


def test_a_changed_file_is_refused(backend: Backend, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes((table / "part-0.parquet").read_bytes())
    loader = backend.load(path)
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(dp.errors.IntegrityError, match="was changed since"):
        backend.batches(loader)


def test_a_file_that_is_gone_is_named(backend: Backend, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes((table / "part-0.parquet").read_bytes())
    loader = backend.load(path)
    path.unlink()
    with pytest.raises(dp.errors.MissingDataError, match=r"t\.parquet: no such file any more"):
        backend.batches(loader)


@pytest.mark.nightly
@quick
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    batch_size=st.integers(1, 50),
    budget=st.integers(1, 5000),
    seed=st.integers(0, 2**32),
    num_workers=st.integers(0, 2),
)
def test_any_table_on_a_late_device(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], batch_size: int, budget: int, seed: int, num_workers: int
) -> None:
    """On a device that runs when it wants to and gives freed memory away at once, rows arrive as on the CPU."""
    path = tmp_path_factory.mktemp("any") / "t.parquet"
    rows = pa.array(range(sum(sizes)), mask=np.arange(sum(sizes)) % 7 == 3)
    with pq.ParquetWriter(path, pa.schema({"x": pa.int64(), "row": pa.int64()})) as writer:
        start = 0
        for size in sizes:
            part = pa.table({"x": rows.slice(start, size), "row": np.arange(start, start + size)})
            writer.write_table(part, row_group_size=size)
            start += size
    options = {
        "batch_size": batch_size,
        "window_nbytes": budget,
        "num_workers": num_workers,
        "columns": {"x": ["x"], "y": ["row"]},
    }
    options["dtypes"] = {"x": "float32"}
    plain = list(Backend("tables_arrow", None).load(path, **options))
    with fake_gpu(seed) as fake:
        found = Backend("tables_cudf", fake)
        batches = found.batches(found.load(path, **options))
    for ours, theirs in zip(batches, plain, strict=True):
        assert all(np.array_equal(ours[name].numpy(), theirs[name].numpy(), equal_nan=True) for name in theirs)
