"""Tables of others become well-shaped Parquet: types, order, bad rows, resumption."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from fixtures import jpeg
from trees import ROOT, contents

from converters import Limit, OnError
from converters.tables.conversion import TABLE_NAME, convert_table, preview_table
from converters.tables.options import TableConversion
from converters.tables.types import read_schema
from converters.verify import verify
from datapipe.cli.main import main
from datapipe.errors import DecodeError, FormatError, IntegrityError, MissingDataError, OptionError
from datapipe.opening.recognise import recognise
from datapipe.order.row_permutation import RowPermutation


def converted(source: Path, out: Path, **options: Any) -> pa.Table:
    """The rows of a conversion, in the order of the source."""
    report = convert_table(TableConversion(source, out, **options))
    table = pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("*.parquet"))])
    assert table.num_rows == report.num_rows
    key = json.loads((out / TABLE_NAME).read_text())["permutation_key"]
    return table if key is None else table.take(pa.array(RowPermutation(table.num_rows, key).at(np.arange(table.num_rows))))


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def numbers(num: int) -> pa.Table:
    """Columns of which every value is known from its row."""
    rows = np.arange(num)
    return pa.table({"row": rows, "x": rows / 8, "small": rows % 100, "word": [f"w{row % 7}" for row in rows]})


TYPES = {
    "int8": (["1", "-5", "127"], pa.int8(), [1, -5, 127]),
    "int16": (["1", "128"], pa.int16(), [1, 128]),
    "int64": (["9223372036854775807", "0"], pa.int64(), [2**63 - 1, 0]),
    "an integer beyond int64": (["9223372036854775808", "0"], pa.string(), ["9223372036854775808", "0"]),
    "leading zeros": (["00501", "10001"], pa.string(), ["00501", "10001"]),
    "leading zeros behind blanks": ([" 00501", " 10001"], pa.string(), [" 00501", " 10001"]),
    "leading zeros behind a wide blank": (["\u00a0007", "8"], pa.string(), ["\u00a0007", "8"]),
    "leading zeros behind a plus": (["+00501", "+10001"], pa.string(), ["+00501", "+10001"]),
    "leading zeros behind a minus": (["-007", "8", ""], pa.string(), ["-007", "8", None]),
    "leading zeros beside floats": (["007", "1.5"], pa.string(), ["007", "1.5"]),
    "leading zeros of floats": (["01.50", "2.5"], pa.string(), ["01.50", "2.5"]),
    "hexadecimal": (["0x1F", "+0X2"], pa.string(), ["0x1F", "+0X2"]),
    "zeros": (["0", "-0", "+0", " 0", "0 ", ""], pa.int8(), [0, 0, 0, 0, 0, None]),
    "floats below one": (["0.5", "-0.5", " +0.5", "0", "0e1", "-0."], pa.float64(), [0.5, -0.5, 0.5, 0, 0, 0]),
    "a large integer behind a blank": ([" 9007199254740993", "0.5"], pa.string(), [" 9007199254740993", "0.5"]),
    "a digit behind a blank beside truths": (["true", " 1"], pa.string(), ["true", " 1"]),
    "float": (["1", "2.5", "1e3"], pa.float64(), [1, 2.5, 1000]),
    "words for nothing": (["1", "NA", "", " 7"], pa.int8(), [1, None, None, 7]),
    "only words for nothing": (["NA", "NA"], pa.string(), ["NA", "NA"]),
    "bool": (["true", "False"], pa.bool_(), [True, False]),
    "text": (["1", "x", "true"], pa.string(), ["1", "x", "true"]),
    "date": (["2024-02-29", "1999-01-01"], pa.date32(), None),
    "time": (["2024-02-29", "1999-01-01 10:00:00.5"], pa.timestamp("us"), None),
    "time with a zone": (["2024-02-29T00:00:00Z", "1999-01-01T10:00:00+02:00"], pa.timestamp("us", "UTC"), None),
    "nothing": (["", ""], pa.float32(), [None, None]),
}


@pytest.mark.parametrize("case", TYPES)
@pytest.mark.parametrize("last", [False, True])
def test_types_are_found_by_reading_everything(tmp_path: Path, case: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far down the value is that decides: blocks are one row each here."""
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 1})
    values, kind, expected = TYPES[case]
    values = values[::-1] if last else values
    source = write(tmp_path / "t.csv", "n,v\n" + "".join(f"{n},{value}\n" for n, value in enumerate(values)))
    table = converted(source, tmp_path / "out")
    assert table.schema.field("v").type == kind
    assert table.schema.field("v").nullable == any(value in ("", "NA") for value in values)
    assert not table.schema.field("n").nullable
    if expected is not None:
        assert table["v"].to_pylist() == (expected[::-1] if last else expected)


def test_shape_of_what_is_written(tmp_path: Path) -> None:
    pa.csv.write_csv(numbers(1000), tmp_path / "t.csv")
    table = converted(tmp_path / "t.csv", tmp_path / "out", group_rows=100, shard_nbytes=4000)
    assert table.cast(numbers(1).schema).equals(numbers(1000))
    paths = sorted((tmp_path / "out").glob("*.parquet"))
    assert len(paths) > 2
    metadata = pq.ParquetFile(paths[0]).metadata
    assert {metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)} == {100}
    columns = {metadata.schema.column(n).name: metadata.row_group(0).column(n) for n in range(4)}
    assert "RLE_DICTIONARY" in columns["word"].encodings
    assert "RLE_DICTIONARY" not in columns["row"].encodings
    assert {column.compression for column in columns.values()} == {"SNAPPY"}
    assert metadata.schema.column(0).max_definition_level == 0  # required
    stored = np.concatenate([pq.read_table(path)["row"].to_numpy() for path in paths])
    assert abs(np.corrcoef(stored, np.arange(1000))[0, 1]) < 0.15  # shuffled
    assert sorted(stored) == list(range(1000))


def test_order_of_the_source_is_kept_on_request(tmp_path: Path) -> None:
    pa.csv.write_csv(numbers(250), tmp_path / "t.csv")
    converted(tmp_path / "t.csv", tmp_path / "out", seed=None, group_rows=50, shard_nbytes=2000)
    stored = [row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(path)["row"].to_pylist()]
    assert stored == list(range(250))


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "arrow", "feather", "npy"])
def test_forms_of_sources(tmp_path: Path, form: str) -> None:
    table, source = numbers(300), tmp_path / "in"
    source.mkdir()
    if form == "npy":
        np.save(source / "row.npy", np.arange(300))
        np.save(source / "x-1.npy", np.arange(200, 300)[:, None] / [[8, 4]])
        np.save(source / "x-0.npy", np.asfortranarray(np.arange(200)[:, None] / [[8, 4]]))
        table = pa.table({"row": np.arange(300), "x0": np.arange(300) / 8, "x1": np.arange(300) / 4})
    for number in range(3) if form != "npy" else ():
        part, path = table.slice(100 * number, 100), source / f"{number}.{form}"
        if form == "parquet":
            pq.write_table(part, path, row_group_size=7)
        elif form == "arrow":
            with pa.ipc.new_stream(path, part.schema) as writer:
                writer.write_table(part, max_chunksize=7)
        elif form == "feather":
            pa.feather.write_feather(part, str(path), chunksize=7)
        elif form == "jsonl":
            write(path, "".join(json.dumps(row) + "\n" for row in part.to_pylist()))
        else:
            pa.csv.write_csv(part, path, pa.csv.WriteOptions(delimiter="\t" if form == "tsv" else ","))
    found = converted(source, tmp_path / "out")
    assert found.schema.field("row").type == pa.int16()
    assert found.cast(table.schema).equals(table)


def test_quoted_values_keep_delimiters_and_newlines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 5})
    text = '\ufeffa,b\r\n1,"x,\r\ny ""z"""\r\n2,""\r\n\r\n3,\r\n'
    table = converted(write(tmp_path / "t.csv", text), tmp_path / "out", seed=None)
    assert table.to_pydict() == {"a": [1, 2, 3], "b": ['x,\r\ny "z"', "", None]}


def test_csv_without_a_header(tmp_path: Path) -> None:
    source = write(tmp_path / "day.tsv", "1\t5\tab\n0\t\tcd\n")
    table = converted(source, tmp_path / "out", names=("label", "I1", "C1"), seed=None)
    assert table.to_pydict() == {"label": [1, 0], "I1": [5, None], "C1": ["ab", "cd"]}


def test_json_objects_and_lists(tmp_path: Path) -> None:
    lines = [{"a": {"b": 1}, "l": [1, 2]}, {"a": None, "l": []}, {"a": {"b": 300}, "z": "new"}]
    source = write(tmp_path / "t.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    table = converted(source, tmp_path / "out", seed=None)
    assert table.to_pydict() == {"a.b": [1, None, 300], "l": [[1, 2], [], None], "z": [None, None, "new"]}
    assert table.schema.field("a.b").type == pa.int16()


def schema_of(tmp_path: Path, **types: str) -> dict[str, str]:
    (tmp_path / "schema.json").write_text(json.dumps(types))
    return read_schema(tmp_path / "schema.json")


def test_named_types(tmp_path: Path) -> None:
    source = write(tmp_path / "t.csv", "I1,I2,zip,n\n1,2,501,7\n3.5,,502,8\n")
    schema = schema_of(tmp_path, **{"I*": "float32", "zip": "string"})
    table = converted(source, tmp_path / "out", schema=schema, seed=None)
    assert [str(kind) for kind in table.schema.types] == ["float", "float", "string", "int8"]
    assert table.to_pydict() == {"I1": [1, 3.5], "I2": [2, None], "zip": ["501", "502"], "n": [7, 8]}


BAD = {
    "too few values": ("a,b\n1,2\n3\n5,6\n", {}, 2, "1 values where the header names 2", "3"),
    "not UTF-8": (b"a,b\n1,x\n2,\xff\n3,y\n", {}, 2, "b: not UTF-8", ""),
    "not of the named type": ("a,b\n1,x\n3.5,y\n7,z\n", {"a": "int8"}, 2, "a: '3.5' is no int8", '{"a": "3.5", "b": "y"}'),
    "beyond the named type": ("a,b\n1,x\n300,y\n7,z\n", {"a": "int8"}, 2, "a: '300' is no int8", '{"a": "300", "b": "y"}'),
    "beyond float32": ("a,b\n1,x\n1e300,y\n7,z\n", {"a": "float32"}, 2, "a: '1e300' is no float", '{"a": "1e300", "b": "y"}'),
    "beyond float16": ("a,b\n1,x\n70000,y\n7,z\n", {"a": "float16"}, 2, "a: '70000' is no halffloat", '{"a": "70000", "b": "y"}'),
    "beyond float64": ("a,b\n1,x\n+1e400,y\n7,z\n", {"a": "float64"}, 2, "a: '+1e400' is no double", '{"a": "+1e400", "b": "y"}'),
    "no JSON": ('{"a": 1}\n{"a": \n{"a": 2}\n', {}, 2, "Expecting value", '{"a": '),
    "no object": ('{"a": 1}\n[1]\n{"a": 2}\n', {}, 2, "list, not an object", "[1]"),
    "JSON numbers and texts": (
        '{"a": 1}\n{"a": "x"}\n{"a": 2}\n',
        {},
        2,
        'a: "x" is a string, where earlier values',
        '{"a": "x"}',
    ),
    "another JSON type than named": ('{"a": 1}\n{"a": "x"}\n{"a": 2}\n', {"a": "int32"}, 2, 'a: "x" is a string', '{"a": "x"}'),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named_and_left_out(tmp_path: Path, case: str) -> None:
    text, types, row, reason, shown = BAD[case]
    source = write(tmp_path / ("t.jsonl" if "{" in str(text)[:3] else "t.csv"), text)
    schema = schema_of(tmp_path, **types)
    with pytest.raises(DecodeError, match=rf"row {row} \(line \d+\): bad row: "):
        convert_table(TableConversion(source, tmp_path / "out", schema=schema))
    assert not (tmp_path / "out").exists()
    table = converted(source, tmp_path / "out", schema=schema, on_error=OnError.SKIP)
    assert table.num_rows == 2
    (line,) = [json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
    assert (line["source"], line["row"], line["text"]) == (str(source), row, shown)
    assert reason in line["reason"]
    with pytest.raises(DecodeError, match="1 bad rows exceed --max-errors 0 of 3"):
        convert_table(TableConversion(source, tmp_path / "b", schema=schema, on_error=OnError.SKIP, max_errors=Limit.parse("0")))


def test_rows_of_bad_rows_count_through_blocks_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 9})
    for name in ("a.csv", "b.csv"):
        write(tmp_path / "in" / name, "n,m\n" + "".join("9\n" if row == 7 else f"{row},0\n" for row in range(20)))
    converted(tmp_path / "in", tmp_path / "out", on_error=OnError.SKIP)
    lines = [json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
    assert [(Path(line["source"]).name, line["row"]) for line in lines] == [("a.csv", 8), ("b.csv", 8)]


REFUSED = {
    "nothing there": (lambda root: root / "nothing.csv", MissingDataError, "no such file"),
    "no rows": (lambda root: write(root / "t.csv", "a,b\n"), MissingDataError, "no rows"),
    "compressed": (lambda root: write(root / "t.csv.gz", "x"), FormatError, "unpack it first"),
    "an empty file": (lambda root: write(root / "t.csv", ""), FormatError, r"t\.csv: the file is empty, where a header"),
    "an empty first line": (
        lambda root: write(root / "t.csv", "\na\n1\n"),
        FormatError,
        "its first line is empty, where a header",
    ),
    "an empty name": (lambda root: write(root / "t.csv", "a,\n1,2\n"), FormatError, "names '' a column"),
    "a name twice": (lambda root: write(root / "t.csv", "a,a\n1,2\n"), FormatError, "'a' twice"),
    "an open quote": (
        lambda root: write(root / "t.csv", 'a\n"' + "x\n" * 3000),
        FormatError,
        "the quote at line 2, byte 2, is not closed",
    ),
    "arrays of other lengths": (
        lambda root: (
            [np.save(write(root / "in" / name, b""), np.zeros(num)) for name, num in (("x.npy", 3), ("y.npy", 4))] and root / "in"
        ),
        FormatError,
        "different numbers of rows: x 3, y 4",
    ),
    "a truncated array": (lambda root: write(root / "x.npy", b"\x93NUMPY\x01\x00"), FormatError, "not a .npy file"),
    "several forms": (
        lambda root: [write(root / "in" / name, "a\n1\n") for name in ("a.csv", "b.tsv", "c.jsonl")] and root / "in",
        FormatError,
        "several forms",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_sources(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.text_rows._MAX_BLOCK_NBYTES", 1 << 10)
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 512})
    make, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        convert_table(TableConversion(make(tmp_path), tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("delimiter", ["\n", "\r", '"', "\0", "\u00e9", ""])
def test_delimiters_that_cannot_be(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(OptionError, match=r"--delimiter .* pass one ASCII character, neither a line break nor a quote"):
        TableConversion(write(tmp_path / "t.csv", "a\n1\n"), tmp_path / "out", delimiter=delimiter)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_bad_rows_count_line_breaks_within_values(tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["a,b", '1,"x', "", 'y"', "", "2", '3,"', '"', "x,4", "", "5,6,7"]
    source = write(tmp_path / "t.csv", end.join(rows))
    for nbytes in (5, 1000):
        monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": nbytes})
        out, schema = tmp_path / str(nbytes), schema_of(tmp_path, a="int8")
        table = converted(source, out, on_error=OnError.SKIP, schema=schema, seed=None)
        assert table["a"].to_pylist() == [1, 3]
        lines = [json.loads(line) for line in (out / "errors.jsonl").read_text().splitlines()]
        assert [(line["row"], line["line"], line["column"]) for line in lines] == [(2, 6, None), (4, 9, "a"), (5, 11, None)]


def test_infinite_and_tiny_numbers_of_csv(tmp_path: Path) -> None:
    source = write(tmp_path / "t.csv", "a,b,c\ninf,1e400,1e-400\n-Infinity,1,2\n1.5,2,3\n")
    table = converted(source, tmp_path / "out", seed=None)
    assert table.to_pydict() == {"a": [np.inf, -np.inf, 1.5], "b": ["1e400", "1", "2"], "c": [0.0, 2.0, 3.0]}
    assert converted(source, tmp_path / "o", schema={"a": "float32"}, seed=None)["a"].to_pylist() == [np.inf, -np.inf, 1.5]


def test_numbers_beyond_a_named_floating_type_in_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.5, 1e300, np.inf, None], "b": [70000, 1, 2, 3]}), tmp_path / "t.parquet")
    schema = {"a": "float32", "b": "float16"}
    table = converted(tmp_path / "t.parquet", tmp_path / "out", schema=schema, on_error=OnError.SKIP, seed=None)
    assert table.to_pydict() == {"a": [np.inf, None], "b": [2, 3]}
    errors = [json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
    assert [(one["row"], one["line"], one["column"]) for one in errors] == [(1, None, "b"), (2, None, "a")]


def test_headers_that_differ_are_named(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", "a,b\n1,2\n")
    write(tmp_path / "in" / "b.csv", "b,c\n1,2\n")
    with pytest.raises(FormatError, match=r"b\.csv: its header and that of .*a\.csv differ in a, c"):
        convert_table(TableConversion(tmp_path / "in", tmp_path / "out"))


def test_columns_in_another_order_are_one_column(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", "a,b\n1,2\n")
    write(tmp_path / "in" / "b.csv", "b,a\n3,4\n")
    assert converted(tmp_path / "in", tmp_path / "out", seed=None).to_pydict() == {"a": [1, 4], "b": [2, 3]}


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_folders_that_name_columns(tmp_path: Path, form: str) -> None:
    for label in (0, 1):
        table, path = pa.table({"x": [label + 0.5] * 2}), tmp_path / "in" / f"label={label}" / "day=01" / f"t.{form}"
        path.parent.mkdir(parents=True)
        if form == "parquet":
            pq.write_table(table, path)
        else:
            write(path, f"x\n{label}.5\n{label}.5\n" if form == "csv" else f'{{"x": {label}.5}}\n' * 2)
    found = converted(tmp_path / "in", tmp_path / "out", seed=None)
    assert found.to_pydict() == {"x": [0.5, 0.5, 1.5, 1.5], "label": [0, 0, 1, 1], "day": ["01"] * 4}
    assert [str(kind) for kind in found.schema.types] == ["double", "int8", "string"]
    one = converted(tmp_path / "in" / "label=1", tmp_path / "one", schema={"day": "int16"})
    assert one.to_pydict() == {"x": [1.5, 1.5], "day": [1, 1]}


def test_folders_that_name_columns_of_some_files(tmp_path: Path) -> None:
    write(tmp_path / "in" / "label=0" / "t.csv", "x\n1\n")
    write(tmp_path / "in" / "u.csv", "x\n1\n")
    with pytest.raises(FormatError, match=r"u\.csv: is in no folder label=\.\.\."):
        converted(tmp_path / "in", tmp_path / "out")
    np.save(write(tmp_path / "n" / "label=0" / "x.npy", ""), np.zeros(3))
    with pytest.raises(FormatError, match=r"\.npy files in folders such as label=\.\.\."):
        converted(tmp_path / "n", tmp_path / "out")


def test_a_damaged_row_group_is_left_out_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(numbers(300), path, row_group_size=100, write_page_checksum=True, compression="none")
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(DecodeError, match="row group 1"):
        convert_table(TableConversion(path, tmp_path / "out"))
    table = converted(path, tmp_path / "out", on_error=OnError.SKIP)
    assert table["row"].to_pylist() == [*range(100), *range(200, 300)]
    assert "row group 1" in (tmp_path / "out" / "errors.jsonl").read_text()


def test_any_number_of_threads_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 400})
    monkeypatch.setattr("converters.tables.plan._RUN_NBYTES", 1000)
    pa.csv.write_csv(numbers(800), tmp_path / "t.csv")
    for num in (1, 4):
        convert_table(TableConversion(tmp_path / "t.csv", tmp_path / str(num), num_workers=num, group_rows=50, shard_nbytes=3000))
    assert contents(tmp_path / "1") == contents(tmp_path / "4")


@pytest.mark.nightly
@pytest.mark.parametrize("to", ["parquet", "hdf5"])
def test_killed_before_every_change_to_the_disk(tmp_path: Path, to: str) -> None:
    source = write(tmp_path / "t.csv", "a,b\n" + "".join(f"{row},{row / 4}\n" for row in range(600)))
    reference = tmp_path / "reference"
    convert_table(TableConversion(source, reference, to=to, group_rows=100, shard_nbytes=4000, num_workers=1, overwrite=True))
    driver = Path(__file__).with_name("table_kill_driver.py")
    (tmp_path / "scratch").mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{driver.parent}"}
    done = subprocess.run(
        [sys.executable, driver, source, tmp_path / "scratch", reference, to],
        capture_output=True, text=True, env=environment, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 15


def test_run_again(tmp_path: Path) -> None:
    source, out = write(tmp_path / "t.csv", "a\n1\n2\n"), tmp_path / "out"
    convert_table(TableConversion(source, out))
    before = contents(out)
    assert convert_table(TableConversion(source, out)).was_finished
    with pytest.raises(OptionError, match="seed was 0, now 1"):
        convert_table(TableConversion(source, out, seed=1))
    write(source, "a\n1\n2\n3\n")
    with pytest.raises(IntegrityError, match="made of other files"):
        convert_table(TableConversion(source, out))
    assert contents(out) == before
    assert convert_table(TableConversion(source, out, overwrite=True)).num_rows == 3
    assert verify(out).problems == ()


def test_a_source_that_changed_under_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = write(tmp_path / "t.csv", "a\n1\n2\n"), tmp_path / "out"
    with monkeypatch.context() as broken:
        broken.setattr("converters.tables.writing.pq.ParquetWriter", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            convert_table(TableConversion(source, out))
    write(source, "a\n1\n2\n3\n")
    with pytest.raises(IntegrityError, match=r"t\.csv was written again"):
        convert_table(TableConversion(source, out))


def test_other_files_in_the_destination_are_left_alone(tmp_path: Path) -> None:
    source = write(tmp_path / "t.csv", "a\n1\n2\n")
    write(tmp_path / "out" / "notes.txt", "mine")
    with pytest.raises(OptionError, match=r"no conversion wrote \(notes.txt\)"):
        convert_table(TableConversion(source, tmp_path / "out"))


def test_verify_names_damage(tmp_path: Path) -> None:
    convert_table(TableConversion(write(tmp_path / "t.csv", "a\n1\n2\n"), tmp_path / "out"))
    path = tmp_path / "out" / "part-000000.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    write(tmp_path / "out" / "other", "")
    assert {problem.what[:20] for problem in verify(tmp_path / "out").problems} == {
        "differs from what wa",
        "not part of the tabl",
    }


def test_preview_writes_nothing(tmp_path: Path) -> None:
    preview = preview_table(TableConversion(write(tmp_path / "t.csv", "a\n1\n2\n"), tmp_path / "out"))
    assert (preview.num_rows, preview.columns) == (2, (("a", "int8 not null"),))
    assert not (tmp_path / "out").exists()


# -- the command ------------------------------------------------------------------------------------


def test_what_the_loader_says_of_csv_is_what_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import datapipe as dp

    source, out = write(tmp_path / "t.csv", "a,label\n" + "".join(f"{row},{row % 2}\n" for row in range(50))), tmp_path / "out"
    with pytest.raises(FormatError) as refused:
        dp.TableLoader(source, 10)
    command = str(refused.value).partition("datapipe ")[2].replace("DST", str(out)).split()
    assert main(command) == 0
    told = capsys.readouterr()
    assert "recognised as a table" in told.err
    assert "50 rows in 1 file" in told.out
    loader = dp.TableLoader(out, 10, True, label="label", device="cpu")
    assert sorted(row for x, _ in loader for row in x[:, 0].tolist()) == list(range(50))
    assert main(["verify", str(out)]) == 0


def test_a_csv_that_lists_images_is_still_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "t.csv", "file,label\nmissing.jpg,0\n")
    main(["convert", str(source), str(tmp_path / "out"), "--to", "parquet"])
    assert "recognised as a manifest" in capsys.readouterr().err


@pytest.mark.parametrize("folder", [False, True])
def test_parquet_of_images_is_no_table_whatever_the_target(tmp_path: Path, folder: bool) -> None:
    """A plain column of encoded images, as pandas and Spark write it."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        pq.write_table(pa.table({"image": [b"\xff\xd8\xff"], "label": [number]}), tmp_path / "in" / f"{number}.parquet")
    assert recognise(tmp_path / "in" if folder else tmp_path / "in" / "0.parquet", target="parquet").kind == "images"


def test_options_of_images_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "t.csv", "a\n1\n")
    assert main(["convert", str(source), str(tmp_path / "o"), "--to", "parquet", "--from", "table", "--resize", "shorter:9"]) == 2
    assert "--resize is for files of samples" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["image", "picture"])
@pytest.mark.parametrize("is_dictionary", [False, True])
def test_a_column_of_images_is_no_table(tmp_path: Path, name: str, is_dictionary: bool) -> None:
    """Bytes alone do not make images: a table may have keys of bytes."""
    images, keys = pa.array([jpeg(0, 8, 8)] * 3), pa.array([b"k0", b"k1", b"k2"])
    for called, column, is_rows in ((name, images, False), ("hash", keys, True)):
        path = tmp_path / f"{called}.parquet"
        pq.write_table(pa.table({called: column.dictionary_encode() if is_dictionary else column, "n": [1, 2, 3]}), path)
        assert recognise(path).kind == recognise(path, target="parquet").kind == ("tables" if is_rows else "images")
