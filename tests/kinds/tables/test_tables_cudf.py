"""The cuDF backend: the stand-in against the real signatures, what is refused, failures, and broken orders of streams.

That its batches are right is the suite's (tests/suites/test_table_backend_suite.py).
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cudf_device import fake_gpu, on_host
from fake_device import FakeDevice

import datapipe as dp
from benchmarks.gpu.cudf_stand_in import CONTENTS, Functions
from datapipe.columns import hashing
from datapipe.columns.layout import layout_of
from datapipe.containers.tables.files import open_table
from datapipe.kernel.loader import Loader
from datapipe.kinds.tables.choice import problem_for_cudf
from datapipe.kinds.tables.cudf import reader
from datapipe.kinds.tables.cudf.library import Library, library, stream_ordered_memory
from datapipe.kinds.tables.cudf.packing import SortedIds, bucket_of, keys_of_numbers
from datapipe.kinds.tables.device_parts import DeviceTableParts

NUM = 600
C = dp.Columns


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = np.arange(NUM)
    data = {"row": rows, "x": pa.array(rows / 8, pa.float32(), mask=rows % 5 == 0), "label": (rows % 2).astype(np.float32)}
    pq.write_table(pa.table(data), tmp_path / "t.parquet", row_group_size=40)
    return tmp_path / "t.parquet"


def load(table: Path, **options: Any) -> dp.TableLoader:
    arguments = {"batch_size": 32, "shuffle": True, "seed": 1, "num_workers": 0, "window_nbytes": 6000, "device": "cuda"}
    arguments |= {"columns": ["row"]}
    return dp.TableLoader(table, **{**arguments, "backend": "tables_cudf", **options})


# -- the stand-in against the wheel -------------------------------------------------------------------


def stub_of(module: str) -> ast.Module:
    """The wheel's own description of a module, which needs no import of it: that would need CUDA."""
    top, *inner = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{top} is not installed (the Makefile installs it without what it needs)")
    path = Path(spec.submodule_search_locations[0]).joinpath(*inner)
    found = path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")
    return ast.parse(found.read_text())


def parameters_of(node: ast.FunctionDef) -> list[tuple[str, bool]]:
    """Names, and whether there is a default."""
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return [(name, place >= len(names) - len(node.args.defaults)) for place, name in enumerate(names) if name != "self"]


def own_parameters(function: Any) -> list[tuple[str, bool]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.default is not one.empty) for one in found if one.name != "self"]


FUNCTIONS = [(module, member) for module, members in CONTENTS.items() for member in members if not isinstance(member, type)]
CLASSES = [(module, member) for module, members in CONTENTS.items() for member in members if isinstance(member, type)]
MADE_BY_CUDF = ("Column", "DataType", "TableWithMetadata", "ParquetReaderOptionsBuilder")  # nobody else makes one


@pytest.mark.parametrize(("module", "member"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", value))
def test_functions_take_what_the_real_ones_take(module: str, member: Any) -> None:
    stub = resources_stub() if module == "rmm.mr" else stub_of(module)
    (node,) = [one for one in stub.body if isinstance(one, ast.FunctionDef) and one.name == member.__name__]
    assert own_parameters(member) == parameters_of(node)


@pytest.mark.parametrize(("module", "kind"), CLASSES, ids=lambda value: getattr(value, "__name__", value))
def test_classes_have_methods_of_the_real_ones(module: str, kind: type) -> None:
    stub = resources_stub() if module == "rmm.mr" else stub_of(module)
    (node,) = [one for one in stub.body if isinstance(one, ast.ClassDef) and one.name == kind.__name__]
    real = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    methods = {name: value for name, value in vars(kind).items() if inspect.isfunction(value) or isinstance(value, staticmethod)}
    if issubclass(kind, int):
        members = {one.targets[0].id for one in node.body if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)}
        assert set(kind.__members__) <= members  # type: ignore[attr-defined]
        return
    for name, method in methods.items():
        if name == "__init__" and kind.__name__ in MADE_BY_CUDF:
            continue
        function = method.__func__ if isinstance(method, staticmethod) else method
        assert own_parameters(function) == parameters_of(real[name]), name
    fields = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    if kind.__name__ == "TableWithMetadata":
        assert "tbl" in fields


def resources_stub() -> ast.Module:
    spec = importlib.util.find_spec("rmm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("rmm is not installed")
    folder = Path(spec.submodule_search_locations[0], "pylibrmm", "memory_resource")
    return ast.parse("\n".join(path.read_text() for path in sorted(folder.glob("*.pyi"))))


def test_a_cudf_that_does_not_load_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    library.cache_clear()
    monkeypatch.setattr("datapipe.kinds.tables.cudf.library.version_of", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "pylibcudf", None)
    with pytest.raises(dp.errors.DependencyError, match=r"cuDF is not installed; pip install .*\[cudf-cu1[23]\]"):
        library()
    monkeypatch.setattr("datapipe.kinds.tables.cudf.library.version_of", lambda name: "26.10")
    with pytest.raises(dp.errors.DependencyError, match="cuDF is installed twice, for CUDA 12 and 13"):
        library()


def test_the_device_gets_a_resource_that_frees_without_waiting_unless_the_script_has_set_one() -> None:
    device = torch.device("cuda", 3)
    with fake_gpu():
        found = library()
        made = stream_ordered_memory(found, device)
        assert type(made) is found.async_memory
        assert made.release_threshold == 1 << 30, "by default the pool would never shrink"
        assert found.memory_of(3) is made
        assert stream_ordered_memory(found, device) is made
        found.set_memory(3, "a pool")
        assert stream_ordered_memory(found, device) == "a pool"


# -- arithmetic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [np.arange(-500, 500) * 10**15, np.array([0.0, -0.0, 1.5, -2.25, 1e300]), np.arange(9, dtype="i1")]
)
def test_keys_and_ids_are_those_of_numpy(values: np.ndarray) -> None:
    expected = hashing.keys_of_numbers(values)
    keys = keys_of_numbers(torch.from_numpy(values))
    np.testing.assert_array_equal(keys.numpy().view(np.uint64), expected)
    for size in (1, 2, 997, 2**31 - 1):
        np.testing.assert_array_equal(bucket_of(keys, size).numpy(), expected % np.uint64(size))
    known = np.unique(expected)[::2]
    table = hashing.IdTable.of(known)
    ids = SortedIds(*(torch.from_numpy(array) for array in table.sorted()))
    np.testing.assert_array_equal(ids.find(keys, otherwise=-7).numpy(), table.find(expected, otherwise=-7))
    none = SortedIds(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32))
    assert (none.find(keys, otherwise=5) == 5).all()


# -- what is refused ----------------------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {  # columns, arguments of the layout, reason
    "lists": ({"a": [[1], [2]]}, {"lists": "jagged"}, "is of lists"),
    "fields of structs": ({"s": [{"b": 1}, {"b": 2}]}, {}, "may be a field of a struct"),
    "half precision": ({"a": pa.array(np.zeros(2, np.float16))}, {}, "is halffloat"),
    "uint64": ({"a": pa.array([1, 2], pa.uint64())}, {}, "is uint64"),
    "narrower integers": ({"a": [1, 2]}, {"dtypes": "int32"}, "is int64, of which not every value fits int32"),
    "a narrowing cast": ({"a": [1, 2]}, {"recipe": C.Cast("int8")}, "is int64, of which not every value fits int8"),
    "a cast to integers": ({"a": [1.0, 2.0]}, {"recipe": C.Cast("int64")}, "is float64, of which not every value fits int64"),
    "buckets of what may be NaN": ({"a": [1.0, 2.0]}, {"recipe": C.Bucketize((1.0,))}, "put FillMissing first"),
    "padding": ({"a": [[1], [2]]}, {"recipe": C.PadList(2)}, "is list"),
    "bytes": ({"a": [b"x", b"y"]}, {"recipe": C.HashBucket(5)}, "is binary"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cudf_would_read_otherwise_is_refused(tmp_path: Path, case: str) -> None:
    columns, arguments, reason = REFUSED[case]
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    arguments = dict(arguments)
    recipe = arguments.pop("recipe", None)
    chains = (lambda column: ()) if recipe is None else C({"*": recipe}).fit(tmp_path / "t.parquet").chains_of
    index = open_table(tmp_path / "t.parquet")
    layout = layout_of(index, **{"columns": None, "label": None, "dtypes": None, "chains_of": chains, **arguments})
    problem = problem_for_cudf(index, layout)
    assert problem is not None
    assert reason in problem


def test_other_files_are_refused(table: Path, tmp_path: Path) -> None:
    import pyarrow.feather as feather

    feather.write_feather(pq.read_table(table), tmp_path / "t.feather")
    with (
        fake_gpu(),
        pytest.raises(
            dp.errors.OptionError, match=r"'tables_cudf': .*t\.feather is no Parquet file; pass backend='tables_arrow'"
        ),
    ):
        next(iter(load(tmp_path / "t.feather")))
    with fake_gpu(), pytest.raises(dp.errors.OptionError, match="a cache keeps rows in host memory"):
        next(iter(load(table, cache=tmp_path / "cache")))
    with pytest.raises(dp.errors.OptionError, match="'tables_cudf' needs a GPU, and device is cpu"):
        next(iter(load(table, device="cpu")))


# -- failures -----------------------------------------------------------------------------------------


def failing(error: Exception) -> Callable[..., Any]:
    def read(self: Functions, *arguments: Any) -> Any:
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            RuntimeError("CUDA error at: x.cu:5: cudaErrorIllegalAddress"),
            dp.errors.BackendError,
            "the device failed while cuDF read it",
        ),
        (
            MemoryError("std::bad_alloc: out_of_memory"),
            dp.errors.BackendError,
            "cuDF found no memory on meta .*lower window_nbytes",
        ),
        (
            RuntimeError("CUDF failure at: page.cu:1: bad page"),
            dp.errors.DecodeError,
            r"t\.parquet: row group \d+: does not decode",
        ),
    ],
)
def test_failures_of_cudf(
    table: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], words: str
) -> None:
    monkeypatch.setattr(Functions, "read_parquet", failing(error))
    with fake_gpu(), pytest.raises(kind, match=words):
        next(iter(load(table)))


def test_a_unit_that_differs_is_refused(table: Path, tmp_path: Path) -> None:
    for number, unit in enumerate(("us", "ns")):
        pq.write_table(pa.table({"t": pa.array([1, 2], pa.timestamp(unit))}), tmp_path / f"u{number}.parquet")
    with (
        fake_gpu(),
        pytest.raises(dp.errors.OptionError, match="cuDF reads column 't' in us, the table has it in ns; pass backend='tables_"),
    ):
        list(load(tmp_path / "u*.parquet", batch_size=1, shuffle=False, columns=["t"]))


# -- the choice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lead", "chosen"), [(1.2, "tables_arrow"), (1.4, "tables_cudf")])
def test_auto_takes_what_was_measured(table: Path, monkeypatch: pytest.MonkeyPatch, lead: float, chosen: str) -> None:
    monkeypatch.setattr("datapipe.kinds.tables.kind.rates_of", lambda candidates, open_loader, **about: [1e6, lead * 1e6])
    with fake_gpu() as fake:
        loader = load(table, backend="auto")
        choice = loader.choice
        assert choice.backend == chosen
        assert "measured here, rows/s" in choice.reason
        later = [on_host(fake, batch) for batch in loader]
        fake.drain()
        assert sorted(row for read in later for row in read()[:, 0].tolist()) == list(range(NUM))


def test_auto_measures_both_and_remembers(table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("datapipe.kernel.calibration._MEASURED_S", 0.0)
    opened: list[str] = []
    make = Loader.__init__

    def counting(self: Any, data: Any, arguments: dict[str, Any], **others: Any) -> None:
        opened.append(arguments["backend"])
        make(self, data, arguments, **others)

    monkeypatch.setattr(Loader, "__init__", counting)
    with fake_gpu(is_fair=True):
        reasons = {load(table, backend="auto").choice.reason for _ in range(2)}
    assert opened == ["auto", "tables_arrow", "tables_cudf", "tables_cudf", "tables_arrow", "auto"]
    assert len(reasons) == 1


def test_auto_says_why_it_took_arrow(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(table, backend="auto", device="cpu").choice.reason == "cuDF needs an NVIDIA GPU"
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.uint64())}), tmp_path / "u.parquet")
    with fake_gpu():
        assert load(tmp_path / "u.parquet", backend="auto", columns=["a"]).choice.reason == "cuDF cannot: column 'a' is uint64"

    def missing() -> Library:
        raise dp.errors.DependencyError("cuDF is not installed")

    monkeypatch.setattr("datapipe.kinds.tables.choice.library", missing)
    with fake_gpu(), pytest.warns(RuntimeWarning, match="tables are read on the CPU: cuDF is not installed"):
        assert load(table, backend="auto").choice.backend == "tables_arrow"


def test_explain_tells_the_choice(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_gpu():
        print(dp.explain(load(table)))
    out = capsys.readouterr().out
    assert "choice    tables_cudf: asked for" in out
    assert "backend   tables_cudf: row groups decoded by cuDF" in out


# -- the order of streams, each rule broken on purpose ---------------------------------------------------


class _InOrder(FakeDevice):
    """A device that does nothing until it is drained, then one stream before the other wherever events allow it.

    `ranks`: of the consumer's stream, the gathering one and all others; the lowest goes first, among the others the older.
    """

    ranks = (0, 1, 2)

    def __init__(self, seed: int) -> None:
        super().__init__(seed, is_lazy=True)

    def new_stream(self) -> Any:
        stream, number = super().new_stream(), len(self._streams) - 1
        stream.pace = 1e-9 ** self.ranks[min(number, 2)] * 1e-6 ** max(0, number - 2)
        return stream


def wrong_batches(table: Path, seed: int, kind: type[FakeDevice]) -> int:
    """How many batches differ from the CPU's, on a device that runs late."""
    arguments = {"columns": {"x": ["x"], "row": ["row"]}, "batch_size": 48}
    expected = list(load(table, device="cpu", backend="tables_arrow", **arguments))
    with fake_gpu(seed, kind=kind) as fake:
        later = [{name: fake.read(tensor) for name, tensor in batch.items()} for batch in load(table, **arguments)]
        fake.drain()
    return sum(
        not all(torch.equal(ours[name]().nan_to_num(-1), theirs[name].nan_to_num(-1)) for name in theirs)
        for ours, theirs in zip(later, expected, strict=True)
    )


class _NoWait(_InOrder):
    """No stream waits for another but the consumer's."""

    def wait_event(self, stream: Any, event: Any) -> None:
        if stream is self.default_stream:
            super().wait_event(stream, event)


class _NoWaitForBatches(_InOrder):
    """The consumer's stream does not wait for its batch."""

    def wait_event(self, stream: Any, event: Any) -> None:
        if stream is not self.default_stream:
            super().wait_event(stream, event)


class _ConsumerLast(_InOrder):
    ranks = (2, 0, 1)


class _NoRecordStream(_ConsumerLast):
    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        pass


def _no_wait_for_the_fill(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("datapipe.kinds.tables.device_parts.DeviceTableParts._join", lambda self, window: None)


def _tables_on_another_stream(patch: pytest.MonkeyPatch) -> None:
    """Columns that are read on a stream of their own, without a wait for it."""
    patch.setattr(reader, "CudaStream", lambda stream: _Elsewhere(stream._fake.new_stream()))


class _Elsewhere:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


def _nothing(patch: pytest.MonkeyPatch) -> None:
    pass


BROKEN: dict[str, tuple[type[FakeDevice], Callable[[pytest.MonkeyPatch], None], bool]] = {
    "nothing is": (_InOrder, _nothing, False),
    "nothing is, and the consumer is late": (_ConsumerLast, _nothing, False),
    "streams wait for nothing": (_NoWait, _nothing, True),
    "the consumer waits for nothing": (_NoWaitForBatches, _nothing, True),
    "no record_stream": (_NoRecordStream, _nothing, True),
    "gathered before it is filled": (_InOrder, _no_wait_for_the_fill, True),
    "packed before it is read": (_InOrder, _tables_on_another_stream, True),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_seen(table: Path, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    kind, patch, is_seen = BROKEN[rule]
    patch(monkeypatch)
    assert bool(wrong_batches(table, 0, kind)) == is_seen


def test_the_host_waits_for_nothing(table: Path) -> None:
    """The device is halted, and batches are made all the same."""
    with fake_gpu(is_lazy=True) as fake:
        later = [on_host(fake, batch) for batch in load(table)]
        fake.drain()
        assert sorted(row for read in later for row in read()[:, 0].tolist()) == list(range(NUM))


@pytest.mark.parametrize("backend", ["tables_cudf", "tables_arrow"])
def test_a_pass_that_ends_keeps_no_memory_that_the_device_is_done_with(
    table: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    with fake_gpu() as fake:
        monkeypatch.setattr(fake, "is_done", lambda event: False)
        iterator = iter(load(table, backend=backend))
        for _ in range(len(iterator)):
            next(iterator)
        assert len(fake.pending) > 0
        monkeypatch.setattr(fake, "is_done", lambda event: True)
        assert next(iterator, None) is None
        assert len(fake.pending) == 0


def test_a_batch_that_fails_half_way_leaves_the_device_its_indices(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of its first window are chosen by indices in page-locked memory, which the device has not copied yet."""
    gather, num_gathered = DeviceTableParts.gather, 0

    def out_of_memory_at_the_second(*arguments: Any) -> None:
        nonlocal num_gathered
        num_gathered += 1
        if num_gathered == 2:
            raise RuntimeError("CUDA out of memory")
        gather(*arguments)

    monkeypatch.setattr(DeviceTableParts, "gather", out_of_memory_at_the_second)
    with fake_gpu(is_lazy=True) as fake:
        with pytest.raises(RuntimeError, match="out of memory"):
            next(iter(load(table, batch_size=48)))
        gc.collect()  # the error's traceback refers to the batch
        fake.drain()  # fails where an index lies outside of the window
