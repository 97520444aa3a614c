"""JSON lines as tables: faults of lines are found, named and left out; many, deep and strange members."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from converters.options import OnError
from converters.tables.conversion import convert_table
from converters.tables.options import TableConversion
from datapipe.errors import DecodeError, FormatError, MissingDataError


def write(path: Path, lines: list[str] | str | bytes) -> Path:
    text = lines if isinstance(lines, (str, bytes)) else "".join(f"{line}\n" for line in lines)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def converted(source: Path, **options: Any) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Return the rows in the order of the source, and the lines of errors.jsonl."""
    out = source.parent / "out"
    convert_table(TableConversion(source, out, seed=None, num_workers=2, **options))
    errors = out / "errors.jsonl"
    table = pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("*.parquet"))])
    return table, [json.loads(line) for line in errors.read_text().splitlines()] if errors.exists() else []


GOOD = '{"a": 1, "s": "x", "f": 0.5, "l": [1.5], "o": {"b": 1}}'
LONG = "9" * 5_000_000

# name: (line, column, words of the reason)
BAD = {
    "half of a surrogate pair": (r'{"s": "\ud800"}', "s", r"s: '\ud800' has half of a surrogate pair"),
    "half of a pair in a key": (r'{"\ud800": 1}', None, "the key '\\ud800' has half of a surrogate pair"),
    "a key twice": ('{"a": 1, "s": "y", "a": 1}', "a", "a: the key comes twice in one object"),
    "a key twice within a member": ('{"o": {"b": 1, "b": 2}}', "o.b", "o.b: the key comes twice"),
    "a key twice within a list": ('{"l": [], "new": [{"k": 1, "k": 2}]}', "new.k", "new.k: the key comes twice"),
    "a float beyond float64": ('{"f": 1e400}', "f", "f: 1e400 is beyond the numbers of float64"),
    "such a float in a list": ('{"l": [1, -1e400]}', "l", "l: -1e400 is beyond"),
    "a huge integer among floats": (f'{{"f": {LONG}}}', "f", "999... (5000000 characters) is beyond the numbers of float64"),
    "a huge integer among integers": (f'{{"a": {LONG}}}', "a", "999... (5000000 characters) is beyond the numbers of float64"),
    "an integer beyond int64": ('{"a": 12345678901234567890123}', "a", "a: 12345678901234567890123 is beyond int64"),
    "an integer that a float rounds": ('{"f": 9007199254740993}', "f", "f: 9007199254740993 is a whole number beyond 2^53"),
    "such an integer in a list": ('{"l": [9007199254740993]}', "l", "l: 9007199254740993 is a whole"),
    "a string among numbers": ('{"a": "x"}', "a", 'a: "x" is a string, where earlier values, or --schema, have a number'),
    "a number among strings": ('{"s": 5}', "s", "s: 5 is a number, where earlier values, or --schema, have a string"),
    "a boolean among numbers": ('{"f": true}', "f", "f: true is a boolean, where"),
    "a string in a list of numbers": ('{"l": ["x"]}', "l", 'l: "x" is a string, where'),
    "a number in place of an object": ('{"o": 3}', "o", "o: 3 is a number, where earlier values, or --schema, have an object"),
    "an object in place of a number": ('{"a": {"b": 1}}', "a", "a: an object, where earlier values, or --schema, have a number"),
    "a list in place of a number": ('{"a": [1]}', "a", "a: a list, where"),
    "two members of one name": (
        '{"o.c": 1, "o": {"c": 2}}', "o.c", "o.c: the member 'c' of the member 'o' and the member 'o.c' would be one column",
    ),
    "another member of a known name": ('{"o.b": 1}', "o.b", "o.b: the member 'o.b' and the member 'b' of the member 'o' would"),
    "lists 500 deep": ('{"a": ' + "[" * 500 + "]" * 500 + "}", None, "objects and lists lie more than 64 deep"),
    "objects 500 deep": ('{"d": ' * 500 + "1" + "}" * 500, None, "objects and lists lie more than 64 deep"),
    "lists 200,000 deep": ('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", None, "objects and lists lie more than 64 deep"),
    "two objects in one line": ('{"a": 1} {"a": 2}', None, "not JSON: Extra data"),
    "no UTF-8": (b'{"s": "\xff"}', None, "not UTF-8 at byte 8 of the line"),
}  # fmt: skip


@pytest.mark.daily(8)
@pytest.mark.parametrize("place", ["in a block", "in a block of its own"])
@pytest.mark.parametrize("case", BAD)
def test_bad_lines_are_named_and_left_out(tmp_path: Path, case: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if place != "in a block":
        monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 60})
    line, column, reason = BAD[case]
    encoded = line if isinstance(line, bytes) else line.encode()
    source = write(tmp_path / "t.jsonl", b"\n".join([GOOD.encode(), b"", GOOD.encode(), encoded, GOOD.encode(), b""]))
    with pytest.raises(DecodeError, match=r"t\.jsonl: row 3 \(line 4\): bad row: .*; repair it, or leave bad rows out") as failed:
        converted(source)
    assert reason in str(failed.value)
    assert len(str(failed.value)) < 500
    table, errors = converted(source, on_error=OnError.SKIP)
    assert table.to_pydict() == {"a": [1] * 3, "s": ["x"] * 3, "f": [0.5] * 3, "l": [[1.5]] * 3, "o.b": [1] * 3}
    assert [(one["source"], one["row"], one["line"], one["column"]) for one in errors] == [(str(source), 3, 4, column)]
    assert reason in errors[0]["reason"]


def test_the_first_value_of_a_column_says_its_kind_in_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['{"a": null}', '{"a": "x"}', '{"a": 1}', '{"a": 2}', '{"a": 3}', '{"a": "y"}', '{"a": true}', '{"a": "z"}']
    for nbytes in (8, 30, 1000):
        monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": nbytes})
        root = tmp_path / str(nbytes)
        root.mkdir()
        table, errors = converted(write(root / "t.jsonl", lines), on_error=OnError.SKIP)
        assert table.to_pydict() == {"a": [None, "x", "y", "z"]}
        assert [one["line"] for one in errors] == [3, 4, 5, 7]


@pytest.mark.parametrize("values", [[2**60, 1.5, 7, 2**53 + 1], [1.5, 2**60, 2**53 + 1, 7, 2**70], [3, 2**70, 0.5, 2**70]])
def test_large_whole_numbers_and_floats_do_not_go_together(
    tmp_path: Path, values: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes first says which rows are bad, for any size of blocks; floats take large integers that they hold exactly."""
    expected = {1.5: [1.5, 2.0**60, 7.0], 3: [3.0, 0.5], 2**60: [2**60, 7, 2**53 + 1]}[values[0]]
    for nbytes in (4, 20, 1000):
        monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": nbytes})
        root = tmp_path / str(nbytes)
        root.mkdir()
        source = write(root / "t.jsonl", [json.dumps({"a": value}) for value in values])
        assert converted(source, on_error=OnError.SKIP)[0]["a"].to_pylist() == expected


def test_dates_stay_dates_beside_bad_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 8})
    source = write(tmp_path / "t.jsonl", ['{"d": "2024-01-01"}', '{"d": 5}', '{"d": "2024-02-01"}'])
    table, errors = converted(source, on_error=OnError.SKIP)
    assert pa.types.is_timestamp(table.schema.field("d").type)
    assert [(one["line"], one["column"]) for one in errors] == [(2, "d")]


@pytest.mark.parametrize("nbytes", [8, 1000])
def test_two_members_of_one_name_in_different_lines(tmp_path: Path, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": nbytes})
    source = write(tmp_path / "t.jsonl", ['{"a.b": 1}', '{"a": {"b": 2}}', '{"a.b": null, "a": {"b": null}}'])
    table, errors = converted(source, on_error=OnError.SKIP)
    assert table.to_pydict() == {"a.b": [1, None]}
    assert [(one["line"], one["column"]) for one in errors] == [(2, "a.b")]


@pytest.mark.parametrize("nbytes", [8, 1000])
@pytest.mark.parametrize("schema", [{}, {"os.version": "int16"}])
def test_keys_with_dots(tmp_path: Path, nbytes: int, schema: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": nbytes})
    lines = ['{"os.version": 5}', '{"os": null, "os.version": 6}']
    table, _ = converted(write(tmp_path / "t.jsonl", lines + ([] if schema else ['{"os": "linux"}'])), schema=schema)
    assert table["os.version"].to_pylist() == [5, 6] + ([] if schema else [None])
    assert schema or table["os"].to_pylist() == [None, None, "linux"]


def test_named_floating_types_may_round_but_not_overflow(tmp_path: Path) -> None:
    lines = ['{"a": 9007199254740993, "b": 1}', '{"a": 0.5, "b": 20000001}', '{"a": 1, "b": 1e300}', '{"a": 1e39, "b": 3}']
    schema = {"a": "float64", "b": "float32"}
    table, errors = converted(write(tmp_path / "t.jsonl", lines), schema=schema, on_error=OnError.SKIP)
    assert table.to_pydict() == {"a": [9007199254740992.0, 0.5, 1e39], "b": [1.0, 20000000.0, 3.0]}
    assert [(one["line"], one["column"], one["reason"]) for one in errors] == [
        (3, "b", "b: 1e+300 is beyond the numbers of float")
    ]


def test_infinite_values_that_are_meant_stay(tmp_path: Path) -> None:
    table, errors = converted(write(tmp_path / "t.jsonl", ['{"a": -Infinity}', '{"a": 1.5}', '{"a": 1e300}']))
    assert (table["a"].to_pylist(), errors) == ([float("-inf"), 1.5, 1e300], [])


def test_parts_of_a_block_that_differ_in_types(tmp_path: Path) -> None:
    lines = [json.dumps({"a": row} if row != 5000 else {"a": 0.5, "z": "new"}) for row in range(6000)]
    table, _ = converted(write(tmp_path / "t.jsonl", lines))
    assert table["a"].to_pylist() == [*range(5000), 0.5, *range(5001, 6000)]
    assert table["z"].to_pylist() == [None] * 5000 + ["new"] + [None] * 999


def test_new_keys_in_each_line_are_bounded(tmp_path: Path) -> None:
    source = write(tmp_path / "t.jsonl", [f'{{"k{row}": {row}}}' for row in range(100_000)])
    began = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(
        FormatError, match=r"t\.jsonl: after line 0, 100,000 lines have .* different members, .* \(10,000 columns at most"
    ):
        converted(source)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    assert ended.ru_utime - began.ru_utime < 30  # of CPU time; it took hours


def test_new_keys_in_many_blocks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.plan.MAX_COLUMNS", 50)
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 60})
    with pytest.raises(FormatError, match=r"t\.jsonl: after line \d+: there are 5\d different members by now"):
        converted(write(tmp_path / "t.jsonl", [f'{{"k{row}": {row}}}' for row in range(100)]))


def test_a_thousand_sparse_columns(tmp_path: Path) -> None:
    source = write(tmp_path / "t.jsonl", [f'{{"k{row % 1000}": {row}}}' for row in range(3000)])
    table, _ = converted(source)
    assert table["k7"].to_pylist() == [row if row % 1000 == 7 else None for row in range(3000)]
    assert table.num_columns == 1000


@pytest.mark.parametrize("lines", [["{}"], ["{}", "{}"]])
def test_objects_without_members(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(MissingDataError, match=r"t\.jsonl: its rows have no columns: every line is an empty object"):
        converted(write(tmp_path / "t.jsonl", lines))
