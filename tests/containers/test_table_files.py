"""The index of tables: which files, which row groups, one schema."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from table_values import table_of, write_groups, write_table

from datapipe.containers.tables.files import open_table
from datapipe.containers.tables.rows import GroupReader
from datapipe.errors import DecodeError, FormatError, IntegrityError, MissingDataError, OptionError
from datapipe.index.tables import ColumnKind


def test_files_and_groups(tmp_path: Path) -> None:
    write_groups(tmp_path / "b.parquet", [10, 20], first=25)
    write_table(tmp_path / "a.parquet", 25, group_rows=10)
    index = open_table(tmp_path)
    assert [Path(file.path).name for file in index.files] == ["a.parquet", "b.parquet"]
    assert index.starts.tolist() == [0, 10, 20, 25, 35, 55]
    assert len(index) == 55
    group = index.group(4)
    assert (Path(group.file.path).name, group.number, group.num_rows) == ("b.parquet", 1, 20)
    assert GroupReader(["row"]).read(group)["row"].to_pylist() == list(range(35, 55))


@pytest.mark.parametrize("form", ["directory", "pattern", "list", "file"])
def test_ways_to_name_a_table(tmp_path: Path, form: str) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "_temporary").mkdir()
    write_table(tmp_path / "_temporary" / "x.parquet", 3)
    first, second = write_table(tmp_path / "part" / "0.parquet", 10), write_table(tmp_path / "part" / "1.pq", 5)
    source = {"directory": tmp_path, "pattern": str(tmp_path / "part" / "*"), "list": [first, second], "file": first}[form]
    assert len(open_table(source)) == (10 if form == "file" else 15)


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "stream"])
def test_arrow_files(tmp_path: Path, compression: str) -> None:
    table, path = table_of(np.arange(30)), tmp_path / "t.arrow"
    if compression == "stream":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    else:
        feather.write_feather(table, str(path), compression=compression, chunksize=10)
    index = open_table(path)
    assert index.starts.tolist() == [0, 10, 20, 30]
    pq.write_table(table, tmp_path / "t.parquet")
    assert index.columns == open_table(tmp_path / "t.parquet").columns
    assert [column.name for column in index.columns] == table.schema.names
    arrays = GroupReader(["C1", "row"]).read(index.group(1))
    assert list(arrays) == ["C1", "row"]
    assert arrays["row"].to_pylist() == list(range(10, 20))
    assert arrays["C1"].to_pylist() == [row * 7 + 1 for row in range(10, 20)]
    assert pa.table(GroupReader(table.schema.names).read(index.group(2))) == table.slice(20)


def test_empty_row_groups_and_files_are_passed_over(tmp_path: Path) -> None:
    write_groups(tmp_path / "a.parquet", [0, 10, 0, 5])
    write_table(tmp_path / "b.parquet", 0)
    assert open_table(tmp_path).starts.tolist() == [0, 10, 15]


def test_fingerprint_is_of_names_and_contents(tmp_path: Path) -> None:
    for name in ("one", "two", "other"):
        (tmp_path / name).mkdir()
        write_table(tmp_path / name / "a.parquet", 30, first=name == "other")
    one, two, other = (open_table(tmp_path / name).fingerprint for name in ("one", "two", "other"))
    assert one == two != other


def test_types(tmp_path: Path) -> None:
    inner = pa.struct([("a", pa.float32()), ("b", pa.struct([("c", pa.int8())]))])
    schema = pa.schema([
        ("flag", pa.bool_()), ("u16", pa.uint16()), ("u64", pa.uint64()), ("when", pa.timestamp("ms", "UTC")),
        ("day", pa.date32()),
        ("text", pa.string()), ("price", pa.decimal128(9, 2)), ("embedding", pa.list_(pa.float32(), 4)),
        ("map", pa.map_("int8", "int8")),
        ("nested", inner), ("words", pa.dictionary(pa.int32(), pa.string())), ("deep", pa.list_(pa.list_(pa.int8()))),
    ])  # fmt: skip
    pq.write_table(schema.empty_table(), tmp_path / "e.parquet")
    pq.write_table(pa.table({"flag": [True]}), tmp_path / "f.parquet")
    columns = {column.name: column for column in open_table(tmp_path).columns}
    found = {name: (column.kind.value, column.dtype, column.unit) for name, column in columns.items()}
    assert found == {
        "flag": ("number", "bool", ""), "u16": ("number", "int32", ""), "u64": ("number", "int64", ""),
        "when": ("number", "int64", "ms"), "day": ("number", "int32", "d"), "text": ("text", "", ""),
        "price": ("decimal", "", ""),
        "embedding": ("list", "float32", ""), "map": ("unread", "", ""), "nested.a": ("number", "float32", ""),
        "nested.b.c": ("number", "int8", ""), "words": ("text", "", ""), "deep": ("unread", "", ""),
    }  # fmt: skip
    assert columns["deep"].kind is ColumnKind.UNREAD


def test_fields_of_structs_are_read(tmp_path: Path) -> None:
    values = [{"a": 1.0, "b": {"c": 7}}, None, {"a": 3.0, "b": None}]
    table = pa.table({"nested": values, "row": [0, 1, 2], "with.dot": values})
    pq.write_table(table, tmp_path / "t.parquet")
    feather.write_feather(table, str(tmp_path / "t.arrow"), compression="uncompressed")
    for name in ("t.parquet", "t.arrow"):
        index = open_table(tmp_path / name)
        assert [column.name for column in index.columns] == ["nested.a", "nested.b.c", "row", "with.dot.a", "with.dot.b.c"]
        for top in ("nested", "with.dot"):
            arrays = GroupReader([f"{top}.a", f"{top}.b.c"]).read(index.group(0))
            assert arrays[f"{top}.a"].to_pylist() == [1.0, None, 3.0]
            assert arrays[f"{top}.b.c"].to_pylist() == [7, None, None]


def test_types_are_widened_and_it_is_said(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "t": pa.array([1], pa.timestamp("s"))}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": pa.array([1], pa.int64()), "t": pa.array([1], pa.timestamp("us"))}), tmp_path / "1.parquet")
    index = open_table(tmp_path)
    assert [(column.dtype, column.unit) for column in index.columns] == [("int64", ""), ("int64", "us")]
    assert index.widened == ("a: int64, as the files differ", "t: int64 us, as the files differ")


@pytest.mark.parametrize(
    ("one", "other"), [("int32", "string"), ("int32", "float64"), ("date32", "timestamp[s]"), ("int8", "bool")]
)
def test_types_that_do_not_go_together_are_refused(tmp_path: Path, one: str, other: str) -> None:
    for name, kind in (("0", one), ("1", other)):
        schema = pa.schema([("a", pa.timestamp("s") if kind.startswith("time") else pa.type_for_alias(kind))])
        pq.write_table(schema.empty_table(), tmp_path / f"{name}.parquet")
    with pytest.raises(FormatError, match=r"1\.parquet: column 'a' is .*, in .*0\.parquet it is"):
        open_table(tmp_path)


def test_a_missing_column_names_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    index = open_table(tmp_path)
    index.check_present(["a"])
    with pytest.raises(FormatError, match=r"1\.parquet: lacks the column b that"):
        index.check_present(["a", "b"])


def test_what_is_no_table(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", 100)
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-20])
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "noise.arrow").write_bytes(os.urandom(1000))
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match=r"empty\.parquet: empty file, not Parquet"):
        open_table(tmp_path / "empty.parquet")
    for name in ("cut.parquet", "noise.arrow"):
        with pytest.raises(FormatError, match=rf"{name}: not an? (Parquet|Arrow) file, or truncated"):
            open_table(tmp_path / name)
    with pytest.raises(FormatError, match=r"rows\.csv: text.* datapipe convert"):
        open_table(tmp_path / "rows.csv")
    for missing in ("nothing.parquet", "no*.parquet"):
        with pytest.raises(MissingDataError):
            open_table(tmp_path / missing)
    with pytest.raises(OptionError, match="twice"):
        open_table([tmp_path / "t.parquet", tmp_path / "t.parquet"])
    with pytest.raises(OptionError, match="the table is"):
        open_table([])
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(FormatError, match="named pipe"):
        open_table(tmp_path / "pipe.parquet")


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", 0)
    with pytest.raises(FormatError, match="no rows"):
        open_table(tmp_path / "t.parquet")


def test_a_file_that_changed_is_named(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", 100)
    index = open_table(path)
    write_table(path, 200)
    with pytest.raises(IntegrityError, match="was changed"):
        GroupReader(["row"]).read(index.group(0))
    path.unlink()
    with pytest.raises(MissingDataError):
        GroupReader(["row"]).read(index.group(0))


def test_damaged_pages_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"a": np.random.default_rng(0).random(1000), "b": np.arange(1000)})
    for with_crc, error in ((True, IntegrityError), (False, DecodeError)):
        pq.write_table(table, path, row_group_size=500, write_page_checksum=with_crc, use_dictionary=False, compression="zstd")
        data = bytearray(path.read_bytes())
        metadata = pq.read_metadata(path).row_group(1).column(0)
        middle = metadata.data_page_offset + metadata.total_compressed_size // 2
        data[middle : middle + 64] = bytes(64)
        path.write_bytes(data)
        index = open_table(path)
        reader = GroupReader(["a"])
        assert len(reader.read(index.group(0))["a"]) == 500
        with pytest.raises(error, match=r"t\.parquet: row group 1"):
            reader.read(index.group(1))
        assert len(reader.read(index.group(0))["a"]) == 500


def test_patterns(tmp_path: Path) -> None:
    index = open_table(write_table(tmp_path / "t.parquet", 10))
    assert [column.name for column in index.matching(["C1", "I*", "C*"])] == ["C1", "I0", "I1", "I2", "C0"]
    assert next(column.name for column in index.matching(["*"], without=["label", "row"])) == "I0"
    with pytest.raises(OptionError, match=r"no column matches 'X\*'; .* has row"):
        index.matching(["X*"])
    with pytest.raises(OptionError, match="no column 'nothing'"):
        index.column("nothing")


def test_two_columns_of_one_name_and_an_empty_path_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["x", "x"]), path)
    with pytest.raises(FormatError, match=r"t\.parquet: two columns are named 'x'"):
        open_table(path)
    with pytest.raises(OptionError, match="the path to the table is empty"):
        open_table("")


_OPEN_ALL_DAMAGED = """
import sys
from datapipe.containers.tables.files import null_counts, open_table
from datapipe.errors import DatapipeError
path, start, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
whole, num_refused = open(path, "rb").read(), 0
for place in range(start, end):
    for change in (1, 16, 128):
        damaged = bytearray(whole)
        damaged[place] ^= change
        open(path, "wb").write(damaged)
        try:
            for file in open_table(path).files:
                null_counts(file)
        except DatapipeError:
            num_refused += 1
print(num_refused)
"""


@pytest.mark.nightly
def test_no_damaged_footer_ends_the_process(tmp_path: Path) -> None:
    """pyarrow's own statistics do, for a type or a repetition that it does not know."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.0, 2.0, None] * 10, "s": ["x"] * 30}), path, row_group_size=15)
    whole = path.read_bytes()
    end = len(whole) - 8
    places = [str(end - int.from_bytes(whole[-8:-4], "little")), str(end)]
    command = [sys.executable, "-c", _OPEN_ALL_DAMAGED, str(path), *places]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert int(done.stdout) > 100


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_strings_in_delta_encodings_are_read_where_dictionaries_are_wanted(tmp_path: Path, encoding: str) -> None:
    """Of one file, beside one that has dictionaries."""
    words = pa.table({"w": ["a", "bb", None, "a"], "v": ["x", "y", "x", "y"]})
    pq.write_table(
        words, tmp_path / "a.parquet", use_dictionary=["v"], column_encoding={"w": encoding}, row_group_size=2, version="2.6"
    )
    pq.write_table(words, tmp_path / "b.parquet")
    index = open_table(tmp_path)
    reader = GroupReader(["w", "v"], dictionaries=["w", "v"])
    found = [reader.read(index.group(number)) for number in (2, 0, 1, 2)]
    for name in ("w", "v"):
        assert [one[name].to_pylist() for one in found] == [
            words[name].to_pylist(), words[name].to_pylist()[:2], words[name].to_pylist()[2:], words[name].to_pylist()
        ]  # fmt: skip
